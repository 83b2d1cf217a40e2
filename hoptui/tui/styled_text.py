"""Lines of styled text, laid out to a width: panels produce them and the `Lines` widget draws them. No
Textual.

A span names its ink (a token of `themes.INKS`), not a colour. Widths are terminal cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from hoptui.presentation import numbers


class Span(NamedTuple):
    """A piece of a line in one ink. `width` 0 is as wide as the text; wider text is cut, narrower padded."""

    text: str
    ink: str = ""
    width: int = 0
    right: bool = False


Line = tuple[Span, ...]
GAP = Span("", width=-1)
"""Takes what the rest of the line leaves; what stands after it is flush right."""

FULL, HALF, TRACK = "━", "╸", "─"
_OWN_ASCII = str.maketrans(
    {
        FULL: "=",
        HALF: "-",
        TRACK: ".",
        "›": ">",
        "┆": ":",
        "│": "|",
        "°": "",
        "┤": "+",
        "└": "+",
        "▶": ">",
        "▴": "^",
        "▾": "v",
        "←": "<",
        "⇧": "+",
        "▒": ":",
        "▓": "o",
        "≤": "<=",
        "≥": ">=",
    }
)

HOTTEST = "heat-4"
"""The ink of the most remarkable cell of a heat map. Its character is that of the one below."""

_WITH_A_BLANK = {"± ": "+-", "→ ": "->", "≤ ": "<=", "≥ ": ">=", " … ": "..."}
"""ASCII replacements that are longer than the symbol take a blank beside it, so that measured text still
fits.
"""

_NUMBER = re.compile(r"(?<![\w.])[+\-−]?\d(?:[\d.,:/…]|e[+-]?(?=\d)| (?=\d{3}(?!\d))| [kMGTPE](?!\w))*")
"""A number as `hoptui.presentation.numbers` writes it, a range, share or time of day.

Examples: `16 384`, `+110.8`, `160 k…244 k`, `1.0e-6`, `14:51:39`.
"""


_UPPER, _LOWER = 0x01 | 0x02 | 0x08 | 0x10, 0x04 | 0x40 | 0x20 | 0x80  # the dots of a braille cell


def _halves(characters: str) -> dict[int, str]:
    """Every braille cell as one of four characters: empty, upper half, lower half, both."""
    return {
        0x2800 + dots: characters[bool(dots & _UPPER) + 2 * bool(dots & _LOWER)] for dots in range(1, 256)
    }


_OWN_ASCII |= _halves(" '.:")


def _textures() -> dict[tuple[str, bool], dict[int, str]]:
    """How curves and bars are written without colours, by the ink and whether it is for ASCII."""
    found: dict[tuple[str, bool], dict[int, str]] = {}
    for ink, bar, braille, letter in (
        ("2", "╍", {0x2800 + dots: chr(0x2800 + (dots & 0x95 or dots)) for dots in range(1, 256)}, "o"),
        ("3", "▄", _halves(" ▀▄█"), "#"),
        ("4", ":", _halves(" '.:"), "x"),
        ("dim", "·", _halves(" ···"), "~"),
    ):
        found[ink, False] = {ord(FULL): bar, **braille}
        found[ink, True] = {ord(FULL): letter, **_halves(f" {letter * 3}")}
    found[HOTTEST, False] = {ord("█"): "▲"}
    found[HOTTEST, True] = {ord("█"): "@"}
    found["band", False] = {0x2800 + dots: "⠐" for dots in range(1, 256)}
    found["band", True] = _halves(" " * 4)
    return found


_TEXTURES = _textures()


def as_ascii(string: str) -> str:
    """The same text in ASCII. It has as many cells if each longer replacement finds a blank beside its
    symbol.
    """
    if string.isascii():
        return string
    for symbol, stand_in in _WITH_A_BLANK.items():
        string = string.replace(symbol, stand_in)
    return numbers.ascii_only(string.translate(_OWN_ASCII))


def as_shown(string: str, ink: str, *, plain: bool = False, colours: bool = True) -> str:
    """A text in an ink, with the symbols that a terminal has.

    Without colours, the curves and bars of each ink have their own texture.
    """
    if string.isascii():
        return string
    if not colours:
        string = string.translate(_TEXTURES.get((ink, plain), {}))
    return as_ascii(string) if plain else string


def lay(
    line: Iterable[Span], width: int, *, plain: bool = False, colours: bool = True
) -> list[tuple[str, str]]:
    """(text, ink) pieces that fill exactly `width` cells.

    Gaps share the free cells. A line that is too long is cut before the first gap. So text that is flush
    right stays complete, as long as it takes at most two thirds of the width. A number is never cut: text
    ends before a number without room. `plain` is for terminals without UTF-8 or braille. `colours` is false
    for terminals without colours.
    """
    spans = list(line)
    if plain or not colours:
        spans = [Span(as_shown(s.text, s.ink, plain=plain, colours=colours), *s[1:]) for s in spans]
    ellipsis = "~" if plain else "…"
    gaps = [i for i, span in enumerate(spans) if span.width < 0]
    pieces = [(_sized(span, ellipsis), span.ink) for span in spans]
    spare = width - sum(cell_len(piece) for piece, _ in pieces)
    if spare < 0:
        flush = pieces[gaps[0] :] if gaps else []
        kept = sum(cell_len(piece) for piece, _ in flush)
        if not flush or kept > width * 2 // 3:
            return _cut(pieces, width, ellipsis)
        return [*_cut(pieces[: gaps[0]], width - kept, ellipsis), *(piece for piece in flush if piece[0])]
    for count, i in enumerate(gaps):
        share = spare // (len(gaps) - count)
        pieces[i] = (" " * share, "")
        spare -= share
    pieces.append((" " * spare, ""))
    return [piece for piece in pieces if piece[0]]


def fitted(line: Iterable[Span], width: int, *, plain: bool = False) -> Line:
    """The line in exactly `width` cells, to be a part of a longer one."""
    return tuple(Span(piece, ink) for piece, ink in lay(line, width, plain=plain))


def bar(fraction: float | None, width: int, ink: str) -> Line:
    """A bar of `width` cells in half-cell steps; unknown (None, NaN) is blank, never an empty bar."""
    if fraction is None or fraction != fraction:
        return (Span(" " * width),)
    halves = round(min(max(fraction, 0.0), 1.0) * width * 2)
    full = FULL * (halves // 2) + HALF * (halves % 2)
    return Span(full, ink), Span(TRACK * (width - len(full)), "track")


def first_fitting(lines: Iterable[Line], width: int) -> Line:
    """The first of these lines that fits into `width` cells, else the last: pass the most informative one
    first.
    """
    line: Line = ()
    for line in lines:
        if width_of(line) <= width:
            break
    return line


def width_of(line: Iterable[Span]) -> int:
    """The cells a line needs, gaps not counted."""
    return sum(span.width if span.width > 0 else cell_len(span.text) for span in line if span.width >= 0)


def pack(chunks: Iterable[Line], width: int, between: str = "   ") -> list[Line]:
    """Chunks set one after the other, as many in a line as fit in `width`."""
    lines: list[Line] = []
    current: Line = ()
    for chunk in chunks:
        if current and width_of(current) + len(between) + width_of(chunk) > width:
            lines.append(current)
            current = ()
        current = (*current, Span(between), *chunk) if current else chunk
    return [*lines, current] if current else lines


def _sized(span: Span, ellipsis: str) -> str:
    if span.width <= 0:
        return "" if span.width else span.text
    shown = span.text if cell_len(span.text) <= span.width else _shortened(span.text, span.width, ellipsis)
    pad = " " * (span.width - cell_len(shown))
    return pad + shown if span.right else shown + pad


def _cut(pieces: list[tuple[str, str]], width: int, ellipsis: str) -> list[tuple[str, str]]:
    """The pieces cut to exactly `width` cells, of which there are too many."""
    found: list[tuple[str, str]] = []
    for piece, ink in pieces:
        size = cell_len(piece)
        if size >= width:
            if width > 0:
                found.append((set_cell_size(_shortened(piece, width, ellipsis), width), ink))
            break
        found.append((piece, ink))
        width -= size
    return found


def _shortened(string: str, width: int, ellipsis: str) -> str:
    """The start of a longer text, in at most `width` cells; a number that would be cut is left out."""
    kept = set_cell_size(string, width - 1)
    end = len(kept) if string.startswith(kept) else len(kept) - 1  # half a wide character became a blank
    for number in _NUMBER.finditer(string):
        if number.start() < end <= number.end():
            return string[: number.start()] + ellipsis
    return kept + ellipsis
