"""Values to characters: braille (2 × 4 dots a cell) or ASCII (1 × 2). Pure.

A trace has one (low, high) pair a dot column, so a spike narrower than a column is still drawn; NaN is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

MARK = 255  # owner of a cell that holds a mark
_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ASCII = " '.:"  # by bits: upper, lower


class Trace(NamedTuple):
    """One series: the least and greatest value in each dot column, oldest first, NaN where there is none."""

    low: Sequence[float]
    high: Sequence[float]


class Picture(NamedTuple):
    """Lines of characters, top first, and who owns each cell: 0 nobody, 1 … the trace, `MARK` a mark."""

    text: list[str]
    owner: list[bytes]


def dots_across(width: int, *, plain: bool = False) -> int:
    """Dot columns in `width` cells."""
    return width if plain else 2 * width


def place(
    t: Sequence[int], low: Sequence[float], high: Sequence[float], t0: int, t1: int, dots: int
) -> Trace:
    """Stamped (low, high) buckets in `dots` columns between `t0` and `t1`.

    Columns between two neighbours are interpolated; a NaN bucket between them is a gap.
    """
    lows, highs = [math.nan] * dots, [math.nan] * dots
    before = -1
    for stamp, least, most in zip(t, low, high, strict=True):
        if math.isnan(least) or math.isnan(most):
            before = -1
            continue
        column = (stamp - t0) * dots // max(1, t1 - t0)
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
    plain: bool = False,
) -> Picture:
    """The traces in `width` × `height` cells, the first on top; `marks` are cell columns, drawn where nothing else is.

    Values outside `bottom` … `top` are drawn at the edge.
    """
    across, down = (1, 2) if plain else (2, 4)
    cells = [bytearray(width) for _ in range(height)]
    owner = [bytearray(width) for _ in range(height)]
    for number in range(len(traces), 0, -1):
        trace = traces[number - 1]
        for x, (upper, lower) in enumerate(_spans(trace, width * across, height * down, bottom, top)):
            column, right = divmod(x, across)
            for y in range(upper, lower + 1):
                row, sub = divmod(y, down)
                cells[row][column] |= (1 << sub) if plain else _BRAILLE[right][sub]
                owner[row][column] = number
    text = []
    for bits, owners in zip(cells, owner, strict=True):
        characters = [_ASCII[b] if plain else chr(0x2800 + b) if b else " " for b in bits]
        for column in marks:
            if 0 <= column < width and not owners[column]:
                characters[column] = ":" if plain else "┆"
                owners[column] = MARK
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
