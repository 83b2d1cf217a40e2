"""Values to braille, 2 × 4 dots a cell. Pure.

A trace has one (low, high) pair a dot column, so a spike narrower than a column is still drawn; NaN is a gap. Where a terminal
has no braille, `lines.lay` writes blocks or ASCII in its place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

MARK = 255  # owner of a cell that holds a mark
CROSS = 254  # owner of a cell that holds the crosshair
ACROSS, DOWN = 2, 4  # dots of a cell
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_STROKES = [[[sum(column[a : b + 1]) for b in range(DOWN)] for a in range(DOWN)] for column in _DOTS]
"""By the dot column of a cell, the first and the last dot of a vertical stroke in it: its bits."""


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
    marks: Collection[int] = (),
    cross: int | None = None,
) -> Picture:
    """The traces in `width` × `height` cells. Those that share a cell own it by turns, column by column: each is seen.

    `marks` and `cross`, the crosshair, are cell columns, drawn where nothing else is. Values outside `bottom` … `top` are drawn at
    the edge.
    """
    cells = [bytearray(width) for _ in range(height)]
    sharing: list[list[bytes]] = [[b""] * width for _ in range(height)]
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
                if number not in sharing[row][column]:
                    sharing[row][column] = bytes((number,)) + sharing[row][column]
    owner = [bytearray(own[x % len(own)] if own else 0 for x, own in enumerate(row)) for row in sharing]
    text = []
    for bits, owners in zip(cells, owner, strict=True):
        characters = [chr(0x2800 + b) if b else " " for b in bits]
        if cross is not None and 0 <= cross < width and not owners[cross]:
            characters[cross], owners[cross] = "│", CROSS
        for column in marks:
            if 0 <= column < width and not owners[column]:
                characters[column], owners[column] = "┆", MARK
        text.append("".join(characters))
    return Picture(text, [bytes(owners) for owners in owner])


def _spans(trace: Trace, columns: int, rows: int, bottom: float, top: float) -> list[tuple[int, int]]:
    """(upper, lower) dot row a column, joined to the column before; an empty range (0, -1) in a gap."""
    scale = (rows - 1) / (top - bottom) if top > bottom else 0.0
    spans: list[tuple[int, int]] = []
    before: tuple[int, int] | None = None
    for low, high in zip(trace.low[:columns], trace.high[:columns], strict=True):
        if math.isnan(low) or math.isnan(high):
            spans.append((0, -1))
            before = None
            continue
        upper, lower = own = _row(high, top, scale, rows), _row(low, top, scale, rows)
        if before is not None:
            upper = min(upper, before[1] + 1)
            lower = max(lower, before[0] - 1)
        spans.append((upper, lower))
        before = own
    return spans


def _row(value: float, top: float, scale: float, rows: int) -> int:
    raw = (top - value) * scale if scale else 0.0
    return round(min(max(raw, 0.0), rows - 1.0))


def _bridge(values: list[float], start: int, end: int) -> None:
    step = (values[end] - values[start]) / (end - start)
    for column in range(start + 1, end):
        values[column] = values[start] + step * (column - start)
