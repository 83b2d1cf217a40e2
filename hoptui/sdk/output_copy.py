"""Copies what the Python code of this process writes to stdout and stderr, for the daemon.

File descriptors, streams and their types stay as they are. Only `write` of the two stream objects is another
function, which calls the original first. What it appends to is bounded and never waits. A stream that goes to
a regular file is left alone: the daemon reads the file. What C code writes is not copied.
"""

from __future__ import annotations

import itertools
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from hoptui.domain.outputs import PAGE_BYTES, TAIL_BYTES, OutputPart, StreamName

MOST_PIECES = 4096
"""Calls of `write` that wait for the link. It takes them twice a second; the oldest are lost beyond that."""
LONGEST_PIECE = 4096
"""Characters that are kept of one call, the last ones."""
OUTPUT_EVERY_S = 0.5

_current: OutputCopy | None = None


class OutputCopy:
    """What was written and is not sent yet. `copied` may be called in any thread, the rest in the link's."""

    def __init__(self, stream: StreamName) -> None:
        self.stream = stream
        self._source = f"copied:{os.urandom(6).hex()}"
        self._pieces: deque[tuple[int, str]] = deque(maxlen=MOST_PIECES)
        self._numbers = itertools.count()
        self._expected = 0  # the number of the next piece
        self._waiting = bytearray()  # from byte `_start` of the copy on
        self._start = 0

    def copied(self, text: str) -> None:
        """Keep a text that was written."""
        if len(text) > LONGEST_PIECE:
            text = text[-LONGEST_PIECE:]
        self._pieces.append((next(self._numbers), text))

    def clear(self) -> None:
        """Forget what was written: in a forked child it is the parent's."""
        self._pieces.clear()

    def take(self) -> OutputPart | None:
        """Return the next part, None if nothing has been written since."""
        while self._pieces:
            try:
                number, text = self._pieces.popleft()
            except IndexError:  # pushed out meanwhile, or cleared
                break
            if number > self._expected:  # what was pushed out counts as one byte: its length is not known
                self._start += len(self._waiting) + 1
                self._waiting.clear()
            self._expected = max(self._expected, number + 1)
            self._waiting += text.encode("utf-8", "replace")
            if (over := len(self._waiting) - TAIL_BYTES) > 0:
                del self._waiting[:over]
                self._start += over
        if not self._waiting:
            return None
        data = bytes(self._waiting[:PAGE_BYTES])
        start = self._start
        del self._waiting[: len(data)]
        self._start += len(data)
        return OutputPart(
            stream=self.stream,
            origin="copied",
            source=self._source,
            start=start,
            end=start + len(data),
            data=data,
        )


def install_if_asked(environ: Mapping[str, str]) -> None:
    """Copy from now on what goes to stdout and stderr, if `HOPTUI_OUTPUT` is `copy`."""
    if environ.get("HOPTUI_OUTPUT") == "copy":
        install()


def install() -> None:
    """Copy from now on what goes to stdout and stderr, as far as they do not go to regular files."""
    global _current
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}
    chosen = {name: stream for name, stream in streams.items() if stream is not None and not _to_file(stream)}
    if _current is not None or not chosen:
        return
    names: tuple[StreamName, ...] = ("stdout", "stderr")
    copy = OutputCopy("output" if len(chosen) > 1 else next(name for name in names if name in chosen))
    for stream in dict.fromkeys(chosen.values()):
        _copy_writes(stream, copy.copied)
    os.register_at_fork(after_in_child=copy.clear)
    _current = copy


def current() -> OutputCopy | None:
    """Return the copy of this process, None if it makes none."""
    return _current


def _copy_writes(stream: Any, copied: Callable[[str], None]) -> None:
    original = stream.write

    def write(text: str, /) -> int:
        written: int = original(text)
        try:  # noqa: SIM105 - `suppress` would take longer than the copy
            copied(text)
        except Exception:
            pass
        return written

    try:
        stream.write = write
    except (AttributeError, TypeError):  # a stream of another kind, without attributes of its own
        return


def _to_file(stream: Any) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, AttributeError, ValueError, TypeError):  # no file: it is copied
        return False
