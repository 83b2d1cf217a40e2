"""What a process of a run has written, as a viewer knows it: the newest lines of each stream."""

from __future__ import annotations

from typing import NamedTuple

from hoptui.domain.outputs import READ, StreamName, StreamOrigin
from hoptui.domain.terminal_text import TerminalText, TextLine, plain
from hoptui.protocol.messages import RunOutput

BY_USE: tuple[StreamName, ...] = ("stderr", "output", "stdout")
"""Where the reason of a crash is, the likeliest first. `output` is both in one file."""


class FoundStream(NamedTuple):
    """One stream. `source` is that of its parts, `dropped` how many lines came before those in `lines`.

    `missing`: there are earlier lines, in number unknown or dropped. `open`: the last line has no end yet.
    """

    stream: StreamName
    origin: StreamOrigin
    source: str = ""
    path: str = ""
    lines: tuple[TextLine, ...] = ()
    dropped: int = 0
    missing: bool = False
    open: bool = False


class FoundOutput(NamedTuple):
    """The streams of a process. `ranks` are those that can be asked for.

    `problem` is `no_answer`, `failed`, `old_daemon`, `not_recorded`, or empty.
    """

    rank: int = 0
    streams: tuple[FoundStream, ...] = ()
    ranks: tuple[int, ...] = ()
    problem: str = ""


def last_lines(found: FoundOutput | None, most: int) -> tuple[str, ...]:
    """Return the newest lines with text: of stderr, or of stdout if nothing is known of stderr."""
    streams = found.streams if found is not None else ()
    written = {one.stream: [line for line in map(plain, one.lines) if line.strip()] for one in streams}
    last = next((written[name] for name in BY_USE if written.get(name)), [])
    return tuple(last[-most:])


class _Stream:
    """The text of a source, and the offset up to which it is known."""

    def __init__(self, start: int) -> None:
        self.text = TerminalText()
        self.end = start
        self.begun = start == 0  # otherwise the first line is a part of one
        self.missing = start > 0

    def add(self, data: bytes) -> None:
        self.end += len(data)
        if not self.begun:
            _, newline, data = data.partition(b"\n")
            self.begun = bool(newline)
        self.text.feed(data)


class OutputText:
    """Puts the parts of a process together. `since` is what it has, for the next request."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    @property
    def since(self) -> dict[str, int]:
        return {source: stream.end for source, stream in self._streams.items()}

    def add(self, answer: RunOutput) -> tuple[FoundOutput, bool]:
        """Continue with an answer. Return what is known now, and whether more can be asked for at once."""
        more, found, sources = False, [], set()
        for part in answer.parts:
            if part.origin not in READ:
                found.append(FoundStream(part.stream, part.origin, part.source, part.path))
                continue
            sources.add(part.source)
            stream = self._streams.get(part.source)
            if stream is None or stream.end != part.start:
                stream = self._streams[part.source] = _Stream(part.start)
            stream.add(part.data)
            more = more or (bool(part.data) and stream.end < part.end)
            text = stream.text
            missing = stream.missing or text.dropped > 0
            where = (part.stream, part.origin, part.source, part.path)
            found.append(FoundStream(*where, text.lines, text.dropped, missing, text.open))
        if not answer.problem:
            self._streams = {source: one for source, one in self._streams.items() if source in sources}
        return FoundOutput(answer.rank, tuple(found), answer.ranks, answer.problem), more
