"""Series as braille dots: columns, lines with bands, and who owns each cell. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

MARK = 255  # owner of a cell that holds a mark
CROSS = 254  # owner of a cell that holds the crosshair
BAND = 253  # owner of a cell that holds values beside a line alone
PEAK = 252  # owner of a cell at an edge, with a mark of values beyond it
UP, DOWNWARD = "▴", "▾"
ACROSS, DOWN = 2, 4  # dots of a cell
NO_MARKS: Mapping[int, str] = MappingProxyType({})
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_STROKES = [[[sum(column[a : b + 1]) for b in range(DOWN)] for a in range(DOWN)] for column in _DOTS]
"""By the dot column of a cell, the first and the last dot of a vertical stroke in it: its bits."""
_CHARACTERS = " " + "".join(chr(0x2800 + bits) for bits in range(1, 256))
"""By the bits of a cell, what is written there."""


class Trace(NamedTuple):
    """One series: the least and greatest value in each dot column, oldest first, NaN where there is none.

    With `middle` it is a line with a band behind it, otherwise an area.
    """

    low: Sequence[float]
    high: Sequence[float]
    middle: Sequence[float] | None = None

    @property
    def line(self) -> Trace:
        """What is drawn in the ink of the series."""
        return self if self.middle is None else Trace(self.middle, self.middle)


class Picture(NamedTuple):
    """Lines of characters, top first, and who owns each cell: 0 nobody, 1 … the trace, `MARK`, `CROSS`,
    `BAND`, `PEAK`.
    """

    text: list[str]
    owner: list[bytes]


def place(
    t: Sequence[int],
    low: Sequence[float],
    high: Sequence[float],
    x0: int,
    x1: int,
    dots: int,
    middle: Sequence[float] | None = None,
) -> Trace:
    """Stamped (low, high) buckets in `dots` columns between `x0` and `x1`.

    Columns between two neighbours are interpolated; a NaN bucket between them is a gap. Of two buckets in a
    column, the mean of their `middle` counts.
    """
    if middle is not None:
        extremes = place(t, low, high, x0, x1, dots)
        ends = place(t, middle, middle, x0, x1, dots)
        return extremes._replace(middle=[(a + b) / 2 for a, b in zip(ends.low, ends.high, strict=True)])
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


def rasterize(
    traces: Sequence[Trace],
    width: int,
    height: int,
    bottom: float,
    top: float,
    *,
    marks: Mapping[int, str] = NO_MARKS,
    cross: int | None = None,
) -> Picture:
    """The traces in `width` × `height` cells. Traces in one cell own it by turns, column by column, so each
    is visible.

    `marks` and `cross`, the crosshair, are cell columns, drawn where no trace is. A mark may have a sign, in
    its top cell. Values outside `bottom` … `top` are drawn at the edge; of a band, only a mark is.
    """
    cells = [bytearray(width) for _ in range(height)]
    owner = [bytearray(width) for _ in range(height)]  # the last one to get there
    shared: dict[tuple[int, int], bytes] = {}  # of the few cells with more than one, all of them
    for number in range(len(traces), 0, -1):
        trace = traces[number - 1]
        for x, (upper, lower) in enumerate(_spans(trace.line, width * ACROSS, height * DOWN, bottom, top)):
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
    peaks: dict[tuple[int, int], str] = {}
    for trace in traces:
        if trace.middle is not None:
            _add_band(trace, cells, owner, bottom, top)
            peaks |= _peaks(trace, width, height, bottom, top)
    text = []
    signs = {column: sign for column, sign in marks.items() if sign}
    for row, (bits, owners) in enumerate(zip(cells, owner, strict=True)):
        characters = list(bits.decode("latin-1").translate(_CHARACTERS))
        if cross is not None and 0 <= cross < width and owners[cross] in _FREE:
            characters[cross], owners[cross] = "│", CROSS
        for column in marks:
            if 0 <= column < width and owners[column] in _FREE:
                characters[column], owners[column] = signs.pop(column, "┆"), MARK
        for (at, column), sign in peaks.items():
            if at == row and owners[column] in _FREE:
                characters[column], owners[column] = sign, PEAK
        text.append("".join(characters))
    return Picture(text, [bytes(owners) for owners in owner])


_FREE = (0, BAND)


def _add_band(
    trace: Trace, cells: Sequence[bytearray], owner: Sequence[bytearray], bottom: float, top: float
) -> None:
    """Fill the cells between the least and the greatest values that no line goes through."""
    for x, (upper, lower) in enumerate(_spans(trace, len(cells[0]) * ACROSS, len(cells) * DOWN, bottom, top)):
        column, strokes = x // ACROSS, _STROKES[x % ACROSS]
        first, last = upper // DOWN, lower // DOWN
        for row in range(first, last + 1):
            if owner[row][column] in _FREE:
                owner[row][column] = BAND
                a = upper % DOWN if row == first else 0
                cells[row][column] |= strokes[a][lower % DOWN if row == last else DOWN - 1]


def _peaks(trace: Trace, width: int, height: int, bottom: float, top: float) -> dict[tuple[int, int], str]:
    """The cells at the edges where values are beyond the axis, with their marks."""
    least = (top - bottom) / (height * DOWN)  # half of it is rounding
    columns = width * ACROSS
    above = {(0, x // ACROSS): UP for x, v in enumerate(trace.high[:columns]) if v > top + least}
    below = {
        (height - 1, x // ACROSS): DOWNWARD for x, v in enumerate(trace.low[:columns]) if v < bottom - least
    }
    return above | below


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
