"""A picture of the dashboard as text, for review in a diff.

It has the text of each size, then the styles of one size in one theme. A line of styles names the styled
spans of a row: `row 3: 1-12 title/key · 15-21 good on surface`. Rows and columns count from 1. Equal rows
share a line. Plain text on the background of the theme has no entry. `palette` explains the names.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from tests.tui.snapshots.palette import PLAIN, name

RULE = 80
STYLED = (120, 40)
"""The size whose styles are in a picture; the last size where a screen is not drawn at this one."""
WORDS = re.compile(r"\s+|\S+")


class Piece(NamedTuple):
    """A word or blanks in one style, and their width in cells.

    `style` and `ground` are names: of the style, and of what a blank in this style shows.
    """

    text: str
    width: int
    style: str
    ground: str

    @property
    def blank(self) -> bool:
        return self.text.isspace()


@dataclass
class _Run:
    """Adjacent pieces of one style; `ink` is `None` while all of them are blank."""

    ground: str
    ink: str | None = None
    width: int = 0

    def takes(self, piece: Piece) -> bool:
        """Whether the next piece has the style of this run."""
        return piece.ground == self.ground and (piece.blank or self.ink in (None, piece.style))

    def add(self, piece: Piece) -> None:
        self.width += piece.width
        if not piece.blank:
            self.ink = piece.style


class View(NamedTuple):
    """A screen at one size, row by row, with the styles of its first theme."""

    size: tuple[int, int]
    rows: list[list[Piece]]


class OtherTextError(Exception):
    """A theme changes the text of a screen, and not only its colours."""


class OtherStyleError(Exception):
    """A theme draws in a colour without a name what the first theme draws in a named style."""


def view(
    size: tuple[int, int], themes: Sequence[str], screens: Sequence[Sequence[Iterable[Segment]]]
) -> View:
    """A screen from its rows of segments in each of the themes.

    Raises:
        OtherTextError: the text differs between themes.
        OtherStyleError: only the first theme has a name for a style.
    """
    rows = zip(*screens, strict=True)
    return View(size, [list(_pieces([list(row) for row in drawn], themes)) for drawn in rows])


def styled(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the size whose styles are written."""
    return STYLED if STYLED in sizes else sizes[-1]


def text(title: str, theme: str, views: Sequence[View]) -> str:
    """The whole picture: the text of each size, then the styles of one size in one theme."""
    parts = [title]
    for size, rows in views:
        parts += [
            "",
            _rule(f"{size[0]} × {size[1]}"),
            *("".join(piece.text for piece in row).rstrip() for row in rows),
        ]
    size = styled([view.size for view in views])
    rows = next(view.rows for view in views if view.size == size)
    parts += ["", _rule(f"styles, {size[0]} × {size[1]}, {theme}"), *_styles(rows)]
    return "\n".join(parts) + "\n"


def _rule(name: str) -> str:
    return f"── {name} ".ljust(RULE, "─")


def _pieces(drawn: Sequence[Sequence[Segment]], themes: Sequence[str]) -> Iterator[Piece]:
    """One row, cut wherever a style of any theme ends and where blanks begin or end."""
    written = ["".join(segment.text for segment in row) for row in drawn]
    for other in written[1:]:
        if other != written[0]:
            raise OtherTextError(f"one theme writes {written[0].rstrip()!r}, another {other.rstrip()!r}")
    styles = [[segment.style or Style.null() for segment in row] for row in drawn]
    ends = [list(accumulate(len(segment.text) for segment in row)) for row in drawn]
    at = 0
    for end in sorted(set().union(*ends)):
        here = [style[bisect_right(stops, at)] for style, stops in zip(styles, ends, strict=True) if at < end]
        for word in WORDS.findall(written[0][at:end]):
            names = [name(s, theme, blank=word.isspace()) for s, theme in zip(here, themes, strict=True)]
            for other, theme in zip(names[1:], themes[1:], strict=True):
                if "#" in other and "#" not in names[0]:
                    raise OtherStyleError(f"{word!r} is {names[0]!r} in {themes[0]}, {other!r} in {theme}")
            yield Piece(word, cell_len(word), names[0], name(here[0], themes[0], blank=True))
        at = end


def _styles(rows: list[list[Piece]]) -> Iterator[str]:
    """A line for each stretch of equal rows that have a styled span."""
    at = 1
    for spans, equal in groupby(_spans(row) for row in rows):
        count = len(list(equal))
        if spans:
            yield f"row {at}: {spans}" if count == 1 else f"rows {at}-{at + count - 1}: {spans}"
        at += count


def _spans(row: list[Piece]) -> str:
    """`1-12 title · 15-21 good`. A blank joins the run before it, or the one after it, if the ground is
    equal."""
    runs: list[_Run] = []
    for piece in row:
        if not (runs and runs[-1].takes(piece)):
            runs.append(_Run(piece.ground))
        runs[-1].add(piece)
    spans: list[str] = []
    end = 0
    for run in runs:
        first, end = end + 1, end + run.width
        style = run.ground if run.ink is None else run.ink
        if style not in ("", PLAIN):
            spans.append(f"{first}-{end} {style}" if end > first else f"{first} {style}")
    return " · ".join(spans)
