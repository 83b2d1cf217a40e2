"""Values to braille, 2 × 4 dots a cell. Pure.

A trace has one (low, high) pair a dot column, so a spike narrower than a column is still drawn; NaN is a gap. Where a terminal
has no braille, `lines.lay` writes ASCII in its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

MARK = 255  # owner of a cell that holds a mark
CROSS = 254  # owner of a cell that holds the crosshair
ACROSS, DOWN = 2, 4  # dots of a cell
NO_MARKS: Mapping[int, str] = MappingProxyType({})
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_STROKES = [[[sum(column[a : b + 1]) for b in range(DOWN)] for a in range(DOWN)] for column in _DOTS]
"""By the dot column of a cell, the first and the last dot of a vertical stroke in it: its bits."""
_CHARACTERS = " " + "".join(chr(0x2800 + bits) for bits in range(1, 256))
"""By the bits of a cell, what is written there."""


class Trace(NamedTuple):
    """One series: the least and greatest value in each dot column, oldest first, NaN where there is none."""

    low: Sequence[float]
    high: Sequence[float]


class Picture(NamedTuple):
    """Lines of characters, top first, and who owns each cell: 0 nobody, 1 … the trace, `MARK`, `CROSS`."""

    text: list[str]
    owner: list[bytes]


def place(
    t: Sequence[int], low: Sequence[float], high: Sequence[float], x0: int, x1: int, dots: int
) -> Trace:
    """Stamped (low, high) buckets in `dots` columns between `x0` and `x1`.

    Columns between two neighbours are interpolated; a NaN bucket between them is a gap.
    """
    lows, highs = [math.nan] * dots, [math.nan] * dots
    before = -1
    for stamp, least, most in zip(t, low, high, strict=True):
        if math.isnan(least) or math.isnan(most):
            before = -1
            continue
        column = (stamp - x0) * dots // max(1, x1 - x0)
        if not 0 <= column < dots:
            continue
        if math.isnan(lows[column]):
            lows[column], highs[column] = least, most
            if before >= 0:
                _bridge(lows, before, column)
                _bridge(highs, before, column)
        else:
            lows[column], highs[column] = min(lows[column], least), max(highs[column], most)
        before = column
    return Trace(lows, highs)


def draw(
    traces: Sequence[Trace],
    width: int,
    height: int,
    bottom: float,
    top: float,
    *,
    marks: Mapping[int, str] = NO_MARKS,
    cross: int | None = None,
) -> Picture:
    """The traces in `width` × `height` cells. Those that share a cell own it by turns, column by column: each is seen.

    `marks` and `cross`, the crosshair, are cell columns, drawn where nothing else is; a mark may have a sign, which stands in the
    first of its cells. Values outside `bottom` … `top` are drawn at
    the edge.
    """
    cells = [bytearray(width) for _ in range(height)]
    owner = [bytearray(width) for _ in range(height)]  # the last one to get there
    shared: dict[tuple[int, int], bytes] = {}  # of the few cells with more than one, all of them
    for number in range(len(traces), 0, -1):
        trace = traces[number - 1]
        for x, (upper, lower) in enumerate(_spans(trace, width * ACROSS, height * DOWN, bottom, top)):
            if lower < upper:
                continue
            column, strokes = x // ACROSS, _STROKES[x % ACROSS]
            first, last = upper // DOWN, lower // DOWN
            for row in range(first, last + 1):
                a = upper % DOWN if row == first else 0
                cells[row][column] |= strokes[a][lower % DOWN if row == last else DOWN - 1]
                before = owner[row][column]
                if before != number:
                    owner[row][column] = number
                    if before:
                        others = shared.get((row, column), bytes((before,)))
                        shared[row, column] = bytes((number,)) + others
    for (row, column), own in shared.items():
        owner[row][column] = own[column % len(own)]
    text = []
    signs = {column: sign for column, sign in marks.items() if sign}
    for bits, owners in zip(cells, owner, strict=True):
        characters = list(bits.decode("latin-1").translate(_CHARACTERS))
        if cross is not None and 0 <= cross < width and not owners[cross]:
            characters[cross], owners[cross] = "│", CROSS
        for column in marks:
            if 0 <= column < width and not owners[column]:
                characters[column], owners[column] = signs.pop(column, "┆"), MARK
        text.append("".join(characters))
    return Picture(text, [bytes(owners) for owners in owner])


def _spans(trace: Trace, columns: int, rows: int, bottom: float, top: float) -> list[tuple[int, int]]:
    """(upper, lower) dot row a column, joined to the column before; an empty range (0, -1) in a gap."""
    scale = (rows - 1) / (top - bottom) if top > bottom else 0.0
    least, most = _rows(trace.low[:columns], top, scale, rows), _rows(trace.high[:columns], top, scale, rows)
    spans: list[tuple[int, int]] = []
    above, below = rows, -1  # of the column before; without one nothing is to be joined
    for lower, upper in zip(least, most, strict=True):
        if lower < 0 or upper < 0:
            spans.append((0, -1))
            above, below = rows, -1
            continue
        joined = above < rows
        spans.append(
            (
                below + 1 if joined and below < upper else upper,
                above - 1 if joined and above > lower else lower,
            )
        )
        above, below = upper, lower
    return spans


def _rows(values: Sequence[float], top: float, scale: float, rows: int) -> list[int]:
    """The dot row of each value, -1 for an unknown one; what is outside lies at the edge."""
    last = rows - 1
    if not scale:
        return [0 if v == v else -1 for v in values]
    raw = [(top - v) * scale for v in values]
    return [round(r) if 0.0 < r < last else 0 if r <= 0.0 else last if r >= last else -1 for r in raw]


def _bridge(values: list[float], start: int, end: int) -> None:
    step = (values[end] - values[start]) / (end - start)
    for column in range(start + 1, end):
        values[column] = values[start] + step * (column - start)
