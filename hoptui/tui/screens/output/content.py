"""The text of the screen of output: what can be chosen, the lines, and why there are none. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from hoptui.domain.outputs import READ
from hoptui.domain.terminal_text import LONGEST_LINE, StyledText, TextLine, plain
from hoptui.model.outputs import FoundOutput, FoundStream
from hoptui.presentation import numbers, outputs
from hoptui.tui.components import options
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span

_INKS = {
    "red": "bad",
    "yellow": "warn",
    "green": "good",
    "blue": "mark",
    "cyan": "mark",
    "magenta": "mark",
    "dim": "dim",
    "bold": "strong",
}
NAMES = {"output": "stdout and stderr", "stdout": "stdout", "stderr": "stderr"}


def chosen(found: FoundOutput | None, stream: int) -> FoundStream | None:
    """The stream of this number, counted round and round; None if none is known."""
    streams = found.streams if found is not None else ()
    return streams[stream % len(streams)] if streams else None


def choice(found: FoundOutput | None, stream: int, rank: int, width: int) -> Line:
    """What is shown of what can be chosen: `›stdout  stderr   ranks ›0  1`, and where the stream goes."""
    line: Line = (Span(" "),)
    one = chosen(found, stream)
    for each in found.streams if found is not None else ():
        line = (*line, *options.option(NAMES.get(each.stream, each.stream), chosen=each is one))
    if found is not None and (len(found.ranks) > 1 or rank):
        line = options.ranks(line, found.ranks, rank, width, all_ranks=False)
    return line


def rows(lines: Sequence[TextLine]) -> list[Line]:
    """Lines of a stream in the inks of the theme."""
    return [tuple(map(_span, line)) for line in lines]


def _span(piece: StyledText) -> Span:
    words = piece.style.split()
    return Span(numbers.clean(piece.text, LONGEST_LINE), _INKS.get(words[-1], "") if words else "")


def matching(lines: Sequence[TextLine], wanted: str) -> list[int]:
    """The numbers of the lines that contain all of these words, whatever their case."""
    words = wanted.casefold().split()
    if not words:
        return list(range(len(lines)))
    return [i for i, line in enumerate(lines) if all(word in plain(line).casefold() for word in words)]


def place(stream: FoundStream | None) -> str:
    """Where the stream goes, for the border; empty if that is why nothing is shown."""
    return outputs.origin_text(stream.origin, stream.path) if stream and stream.origin in READ else ""


def reason(view: View, found: FoundOutput | None, stream: FoundStream | None) -> str:
    """Why there are no lines, in one sentence."""
    if found is None:
        return "asking the daemon" if view.link.state == "live" else "no daemon has answered yet"
    if found.problem:
        return outputs.problem_text(found.problem)
    if stream is None:
        return outputs.NOBODY_LOOKED
    if stream.origin not in READ:
        return f"{NAMES.get(stream.stream, stream.stream)} {outputs.origin_text(stream.origin, stream.path)}"
    return "nothing has been written yet"


def wrapped(line: TextLine, width: int) -> list[Line]:
    """A whole line, in as many as it takes."""
    text = numbers.clean(plain(line), LONGEST_LINE)
    return [(Span(part),) for part in textwrap.wrap(text, max(16, width), drop_whitespace=False) or [""]]
