"""What the processes of a run write to stdout and stderr, as it goes between processes."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

TAIL_BYTES = 256 << 10
"""The most bytes of a stream that can be asked for: the newest ones."""
PAGE_BYTES = 64 << 10
"""The most bytes of a stream in one message."""
LINES_KEPT = 2000
"""The most lines of a stream that a viewer keeps."""

StreamName = Literal["output", "stdout", "stderr"]
"""`output` is stdout and stderr in one file, or copied in their order."""
STREAM_NAMES: tuple[StreamName, ...] = get_args(StreamName)

StreamOrigin = Literal[
    "file",  # the daemon reads the regular file that the stream goes to
    "copied",  # the process copies what its Python code writes: `hoptui run --output`
    "terminal",  # not read: the stream goes to a terminal
    "pipe",  # not read: it goes to a pipe or a socket
    "discarded",  # not read: it goes to /dev/null or another device
    "closed",  # the process has closed it
    "unreadable",  # the daemon may not read the file
    "unknown",  # it was not looked at while the process lived
]
READ: frozenset[StreamOrigin] = frozenset(("file", "copied"))
"""The origins with bytes."""


class OutputPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a stream: `data` begins at byte `start` of it, and `end` is its size, as far as known.

    `source` names the file or the process. Offsets of another source mean something else. `path` is where
    the file is, as its process sees it. Bytes that were written and cannot be asked for are between the
    cursor of the viewer and `start`.
    """

    stream: StreamName
    origin: StreamOrigin
    source: str = ""
    path: str = ""
    start: int = 0
    end: int = 0
    data: bytes = b""


def check(part: OutputPart) -> None:
    """Check a part that was decoded.

    Raises:
        ValueError: it is larger than a page, or its offsets contradict each other.
    """
    if len(part.data) > PAGE_BYTES:
        raise ValueError(f"a part of an output has {len(part.data)} bytes")
    if not 0 <= part.start <= part.start + len(part.data) <= part.end:
        raise ValueError("a part of an output ends before it begins")


class OutputTail:
    """The newest bytes of one stream, from parts in order. `data` begins at byte `start`."""

    def __init__(self) -> None:
        self.source = ""
        self.start = 0
        self.data = bytearray()

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def add(self, part: OutputPart) -> None:
        """Continue with a part. One that does not continue what is there begins anew."""
        if part.source != self.source or part.start != self.end:
            self.source, self.start = part.source, part.start
            self.data.clear()
        self.data += part.data
        if (over := len(self.data) - TAIL_BYTES) > 0:
            del self.data[:over]
            self.start += over

    def page(self, since: int) -> tuple[int, bytes]:
        """Return the bytes from an offset on, at most a page, and the offset of the first of them."""
        start = since if self.start <= since <= self.end else self.start
        return start, bytes(self.data[start - self.start :][:PAGE_BYTES])
