"""A picture of the dashboard as text that a person can review in a diff: what is written, and beneath it in which styles.

A row of styles reads `a12b3`: twelve cells in style `a`, three in `b`; rows that look alike are one line. The legend at the end
has each style in every theme, so that another colour changes a line of the legend and nothing else.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby
from typing import NamedTuple

from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

LETTERS = string.ascii_letters + "αβγδεζηθικλμνξοπρστυφχψω"
RULE = 80
WORDS = re.compile(r"\s+|\S+")
ATTRIBUTES = ("bold", "dim", "italic", "underline", "reverse", "strike")
SEEN_ON_BLANKS = ("underline", "reverse", "strike")

Look = tuple[str, ...]
"""How a cell is drawn: in words, one a theme."""


class Piece(NamedTuple):
    """A word or blanks in one look, and the cells of the screen that they take; a blank's look is that of its ground alone."""

    text: str
    width: int
    look: Look
    ground: Look

    @property
    def blank(self) -> bool:
        return self.text.isspace()


@dataclass
class _Run:
    """Pieces of one style beside each other; of blanks alone while there is no ink."""

    ground: Look
    ink: Look | None = None
    width: int = 0

    def takes(self, piece: Piece) -> bool:
        """Whether a piece next to these looks like them."""
        return piece.ground == self.ground and (piece.blank or self.ink in (None, piece.look))

    def add(self, piece: Piece) -> None:
        self.width += piece.width
        if not piece.blank:
            self.ink = piece.look


class View(NamedTuple):
    """A screen at one size, row by row, in the themes of its picture."""

    size: tuple[int, int]
    rows: list[list[Piece]]


class OtherTextError(Exception):
    """A theme changes what is written on a screen, and not only its colours."""


def view(size: tuple[int, int], themes: Sequence[Sequence[Iterable[Segment]]]) -> View:
    """A screen from its rows of segments as each of the themes draws them.

    Raises:
        OtherTextError: the text is not the same in all of them.
    """
    return View(size, [list(_pieces([list(row) for row in rows])) for rows in zip(*themes, strict=True)])


def text(title: str, themes: Sequence[str], views: Sequence[View]) -> str:
    """The whole picture: for each size what is written and its styles, and at the end what the letters mean."""
    letters: dict[Look, str] = {}
    parts = [title]
    for size, rows in views:
        parts += ["", _rule(f"{size[0]} × {size[1]}"), *("".join(piece.text for piece in row).rstrip() for row in rows)]  # fmt: skip
        parts += [_rule("styles"), *_styles(rows, letters)]
    parts += ["", _rule("legend")]
    for look, letter in letters.items():
        told = " │ ".join(f"{theme} {one:<36}" for theme, one in zip(themes, look, strict=True))
        parts.append(f"{letter}  {told.rstrip()}")
    return "\n".join(parts) + "\n"


def _rule(name: str) -> str:
    return f"── {name} ".ljust(RULE, "─")


def _pieces(themes: Sequence[Sequence[Segment]]) -> Iterator[Piece]:
    """One row, cut wherever a style of any theme ends and where blanks begin or end."""
    written = ["".join(segment.text for segment in row) for row in themes]
    for other in written[1:]:
        if other != written[0]:
            raise OtherTextError(f"one theme writes {written[0].rstrip()!r}, another {other.rstrip()!r}")
    styles = [[segment.style or Style.null() for segment in row] for row in themes]
    ends = [list(accumulate(len(segment.text) for segment in row)) for row in themes]
    at = 0
    for end in sorted(set().union(*ends)):
        here = [style[bisect_right(stops, at)] for style, stops in zip(styles, ends, strict=True) if at < end]
        for word in WORDS.findall(written[0][at:end]):
            ground = tuple(_words(style, blank=True) for style in here)
            look = ground if word.isspace() else tuple(_words(style, blank=False) for style in here)
            yield Piece(word, cell_len(word), look, ground)
        at = end


@lru_cache(maxsize=4096)
def _words(style: Style, *, blank: bool) -> str:
    """`bold #d0d0d0 on #121212`; of a blank only what is seen of it."""
    attributes = [name for name in (SEEN_ON_BLANKS if blank else ATTRIBUTES) if getattr(style, name)]
    inked = not blank or attributes
    ink = [_colour(style.color)] if inked else []
    return " ".join((*attributes, *ink, "on", _colour(style.bgcolor)))


def _colour(colour: Color | None) -> str:
    if colour is None or colour.is_default:
        return "default"
    return colour.triplet.hex if colour.triplet else colour.name


def _styles(rows: list[list[Piece]], letters: dict[Look, str]) -> Iterator[str]:
    """A line for each stretch of rows that look alike."""
    at = 1
    for runs, alike in groupby(_runs(row, letters) for row in rows):
        count = len(list(alike))
        where = f"{at}" if count == 1 else f"{at}-{at + count - 1}"
        yield f"{where:<6} {runs}"
        at += count


def _runs(row: list[Piece], letters: dict[Look, str]) -> str:
    """`a12b3`. A blank between two words joins the run before it, or the one after it, where the ground is the same."""
    runs: list[_Run] = []
    for piece in row:
        if not (runs and runs[-1].takes(piece)):
            runs.append(_Run(piece.ground))
        runs[-1].add(piece)
    return "".join(f"{_letter(run.ink or run.ground, letters)}{run.width}" for run in runs)


def _letter(look: Look, letters: dict[Look, str]) -> str:
    if look not in letters:
        letters[look] = LETTERS[len(letters)]
    return letters[look]
