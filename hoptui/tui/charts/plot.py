"""A chart as lines of text: scales, the raster of braille dots, axes, labels and marks around it. Pure.

Ticks are round: 1, 2 or 5 times a power of ten for values, and steps of a clock for time.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from hoptui.presentation import numbers
from hoptui.tui.styled_text import Line, Span

SPANS = (15, 30, 60, 120, 300, 600, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400)
"""Stretches of time that a chart shows, in seconds."""

FLAT = 1e-9  # a range smaller than that, beside the values themselves, is rounding
LEAST = 1e-200  # smaller values are zero
MOST = 1e200  # greater ones are drawn at the edge


OUTER = 0.02  # share of typical values at each end that may lie outside of an axis
INNER = 0.1  # share of extremes at each end that may lie outside of an axis
ROOM = 0.25  # around a level value, beside the value itself
NEAR = 0.25  # extremes so far from the typical values are on the axis, beside their spread


def typical_range(
    low: Sequence[float], high: Sequence[float], middle: Sequence[float]
) -> tuple[float, float] | tuple[()]:
    """The range that an axis needs for the typical values of a curve, and for its extremes as far as they are
    near; empty where nothing is known.

    It holds all typical values, but for outliers: at most `OUTER` of them at each end, further away than the
    others spread.
    """
    known = sorted(v for v in middle if math.isfinite(v))
    if not known:
        return ()
    first, last = _inner(known, OUTER)
    margin = max(last - first, ROOM * abs(known[len(known) // 2]))
    if not margin:
        return known[0], known[-1]
    least, _ = _inner(sorted(v for v in low if math.isfinite(v)) or known, INNER)
    _, most = _inner(sorted(v for v in high if math.isfinite(v)) or known, INNER)
    lowest = max(first - margin, known[0])
    highest = min(last + margin, known[-1])
    return min(lowest, max(least, lowest - NEAR * margin)), max(highest, min(most, highest + NEAR * margin))


def _inner(ordered: Sequence[float], outside: float) -> tuple[float, float]:
    """The ends of sorted values without a share at each end."""
    skipped = int(len(ordered) * outside)
    return ordered[skipped], ordered[len(ordered) - 1 - skipped]


class Scale(NamedTuple):
    """The range of an axis and its ticks with labels, lowest first. With `log`, all but the labels are powers
    of ten.
    """

    bottom: float
    top: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    log: bool = False


def value_scale(values: Iterable[float], most: int) -> Scale:
    """A range that holds all known values, with at most `most` (≥ 3) ticks that are 1, 2 or 5 × 10ⁿ apart.

    If the last tick would leave more than a third empty, the range ends within a quarter of a step above the
    values. The axis includes zero if the data is near it (its own range is at least half of its distance to
    zero). Otherwise small changes of a large number stay visible.
    """
    known = [min(max(v, -MOST), MOST) for v in values if math.isfinite(v)]
    if not known:
        return Scale(0.0, 1.0, (), ())
    low, high = min(known), max(known)
    if max(abs(low), abs(high)) < LEAST:
        low = high = 0.0
    if low > 0 and high - low >= low / 2:
        low = 0.0
    elif high < 0 and high - low >= -high / 2:
        high = 0.0
    if high - low <= FLAT * max(abs(low), abs(high)):
        spread = abs(high) * 0.05 or 1.0
        low, high = (low - spread, high + spread) if low else (0.0, 1.0)
    step = _round_step((high - low) / max(1, most - 1))
    while math.ceil(high / step - 1e-9) - math.floor(low / step + 1e-9) >= max(3, most):
        step = _round_step(step * 1.5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if last - first > 1 and last - high / step > (last - first) / 3:
        last, top = last - 1, math.ceil(high / step * 4 - 1e-9) * step / 4
    else:
        top = last * step
    ticks = tuple(i * step for i in range(first, last + 1))
    return Scale(ticks[0], top, ticks, _labels(ticks))


def log_scale(values: Iterable[float], most: int) -> Scale | None:
    """A logarithmic range that holds all values above zero, with at most `most` (≥ 3) ticks; None without
    such values.

    Ticks are whole powers of ten, at equal steps; within two powers they are at 1, 2 and 5.
    """
    known = [min(v, MOST) for v in values if LEAST < v < math.inf]
    if not known:
        return None
    low, high = math.log10(min(known)), math.log10(max(known))
    if high - low < 1.5:
        fine = [m * 10.0**e for e in range(math.floor(low) - 1, math.ceil(high) + 2) for m in (1, 2, 5)]
        first = max(i for i, v in enumerate(fine) if math.log10(v) <= low + 1e-9)
        last = max(first + 1, min(i for i, v in enumerate(fine) if math.log10(v) >= high - 1e-9))
        chosen = fine[first : last + 1]
        inner = chosen[1:-1] if len(chosen) <= most else [v for v in chosen[1:-1] if _is_decade(v)]
        shown = [chosen[0], *inner[: most - 2], chosen[-1]]
    else:
        first, last = math.floor(low + 1e-9), math.ceil(high - 1e-9)
        every = -(-(last - first) // (most - 1))
        shown = [10.0**e for e in range(first, last + 1, every)]
    ticks = tuple(math.log10(v) for v in shown)
    return Scale(ticks[0], max(ticks[-1], high), ticks, tuple(_power(v) for v in shown), log=True)


def _is_decade(value: float) -> bool:
    return abs(math.log10(value) - round(math.log10(value))) < 1e-9


def _power(value: float) -> str:
    """`1 k`, `0.02`, `1e-5`."""
    exponent = round(math.log10(value))
    if _is_decade(value) and not -4 < exponent < 18:
        return f"1e{exponent}"
    return numbers.scientific(value, 1) if value < 1e-3 or value >= 1e18 else numbers.si(value, 1)


GROWTH = 1.1  # a stretch grows by steps, so that what is drawn seldom moves


def span_of(age_s: float, longest_s: float) -> float:
    """The stretch to show: `age_s` of data fill more than nine tenths of it; at most `longest_s`."""
    span = float(SPANS[0])
    while span < min(age_s, longest_s):
        span *= GROWTH
    return min(span, max(longest_s, float(SPANS[0])))


def time_ticks(span_s: float, most: int) -> list[tuple[int, str]]:
    """(seconds before the newest, label) of ticks on a time axis, newest first, without the newest itself; in
    one unit.
    """
    steps = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600, 86400)
    step = next((s for s in steps if span_s / s <= most), 2 * 86400)
    count = int(span_s / step + 1e-9)
    units = (("d", 86400, 43200), ("h", 3600, 1800), ("min", 60, 60), ("s", 1, 1))
    unit, size = next((unit, size) for unit, size, least in units if step >= least and step % least == 0)
    return [(i * step, f"−{i * step / size:g} {unit}") for i in range(1, count + 1)]


def clock_ticks(t0: int, t1: int, wall_offset_ns: int, most: int) -> list[tuple[int, str]]:
    """(stamp, local time) of round times of day between two stamps, newest first; dates first, where a day
    begins.
    """
    span_s = max(1, t1 - t0) / 1e9
    step = next((s for s in _CLOCK_STEPS if span_s / s <= most), math.ceil(span_s / most / 86400) * 86400)
    first, last = (t0 + wall_offset_ns) / 1e9, (t1 + wall_offset_ns) / 1e9
    east = time.localtime(first).tm_gmtoff
    days: list[tuple[int, str]] = []
    found: list[tuple[int, str]] = []
    at = math.ceil((first + east) / step) * step - east
    while at < last:
        there = time.localtime(at)
        stamp = round(at * 1e9) - wall_offset_ns
        if there.tm_hour == there.tm_min == there.tm_sec == 0:
            days.append((stamp, time.strftime("%m-%d", there)))
        else:
            found.append((stamp, time.strftime("%H:%M" if step % 60 == 0 else "%H:%M:%S", there)))
        at += step
    return [*reversed(days), *reversed(found)]


def count_ticks(x0: int, x1: int, unit: int, most: int) -> list[tuple[int, str]]:
    """(place, label) of round numbers between two places of an axis with the given `unit`, greatest first."""
    step = max(1, int(_round_step(max(1e-9, (x1 - x0) / unit / most))))
    first, last = -(-x0 // (unit * step)), (x1 - 1) // (unit * step)
    return [(i * step * unit, numbers.grouped(i * step)) for i in range(last, max(first, 0) - 1, -1)]


def elapsed_ticks(x0: int, x1: int, start: int, most: int) -> list[tuple[int, str]]:
    """(stamp, time since `start`) of round times between two stamps. Latest first."""
    span_s = max(1, x1 - x0) / 1e9
    step = next((s for s in _CLOCK_STEPS if span_s / s <= most), math.ceil(span_s / most / 86400) * 86400)
    first, last = math.ceil((x0 - start) / 1e9 / step), math.ceil((x1 - start) / 1e9 / step)
    return [(start + i * step * 10**9, elapsed(i * step)) for i in range(last - 1, first - 1, -1)]


def elapsed(seconds: float) -> str:
    """A time since a start: `+1:05`, from an hour on `+1:01:05`, before the start `−0:05`."""
    minutes, s = divmod(round(abs(seconds)), 60)
    hours, m = divmod(minutes, 60)
    sign = "−" if seconds < 0 else "+"
    return f"{sign}{hours}:{m:02}:{s:02}" if hours else f"{sign}{m}:{s:02}"


_CLOCK_STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400,
)  # fmt: skip


def _round_step(raw: float) -> float:
    size = 10.0 ** math.floor(math.log10(raw))
    return next((m * size for m in (1.0, 2.0, 5.0) if m * size >= raw * (1 - 1e-9)), 10 * size)


def _labels(ticks: tuple[float, ...]) -> tuple[str, ...]:
    for digits in range(2, 8):
        labels = tuple(
            "0" if not t or abs(t) < 1e-12 * abs(ticks[-1]) else numbers.si(float(t), digits) for t in ticks
        )
        if len(set(labels)) == len(labels) and all(_close(t, ticks, digits) for t in ticks):
            break
    return labels


def _close(tick: float, ticks: tuple[float, ...], digits: int) -> bool:
    """Whether a tick rounded to so many digits stays within a tenth of a step."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    return abs(float(f"{tick:.{digits - 1}e}") - tick) <= step / 10


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


EVEN = 6  # with fewer rows a tick that is one off is seen
AXIS_WIDTH = 7  # six cells of label and the line
_RUN = re.compile(rb"%c|(.)\1*" % MARK, re.DOTALL)
"""The cells of one owner that stand side by side; a mark stands alone, because each has an ink of its own."""
_INKS = {0: "", CROSS: "strong", BAND: "band", PEAK: "dim"}
BELOW = -400.0  # a power of ten that no number has: where a logarithmic axis has what is not above zero


class Curve(NamedTuple):
    """A series to draw: places on the x axis, with the least and greatest value there in the unit of the
    axis.

    With the `middle` of the values there, it is a line with a faint band behind it, otherwise an area.
    """

    label: str
    ink: str
    x: Sequence[int]
    low: Sequence[float]
    high: Sequence[float]
    middle: Sequence[float] | None = None


class Mark(NamedTuple):
    """An event at a place of the x axis: a vertical line, with a sign of one cell at its top or none."""

    x: int
    ink: str = "mark"
    sign: str = ""


class Paper(NamedTuple):
    """The area for curves: a part of the x axis (stamps in ns, or other integers) and its labels.

    `ticks` are places with labels; if two overlap, the earlier in the list stays. `end` labels the right end.
    `cross` is the crosshair. `bounds` fixes the value axis. `log` makes it logarithmic if any value is above
    zero.
    """

    x0: int
    x1: int
    ticks: tuple[tuple[int, str], ...] = ()
    end: str = ""
    marks: tuple[Mark, ...] = ()
    cross: int | None = None
    bounds: tuple[float, float] | None = None
    log: bool = False


def plot(
    curves: Sequence[Curve], paper: Paper, width: int, height: int, *, axis: int = AXIS_WIDTH
) -> list[Line]:
    """`height` lines of `width` cells: raster and axes. The value axis takes `axis` cells, or what its labels
    need.
    """
    rows = height - 1
    if rows < 1 or width < axis + 8:
        return [()] * height
    scale = _scale(curves, paper, rows)
    axis = max(axis, 1 + max(map(len, scale.labels), default=0))
    across = width - axis
    x0, x1 = paper.x0, paper.x1
    dots = ACROSS * across
    if scale.log:
        curves = [
            c._replace(
                low=_logs(c.low), high=_logs(c.high), middle=None if c.middle is None else _logs(c.middle)
            )
            for c in curves
        ]
    inks = {
        column: mark.ink for mark in paper.marks if (column := _column(mark.x, paper, across)) is not None
    }
    signs = dict.fromkeys(inks, "")
    signed = ((_column(mark.x, paper, across), mark.sign) for mark in paper.marks if mark.sign)
    signs |= {column: sign for column, sign in signed if column is not None}
    picture = rasterize(
        [place(c.x, c.low, c.high, x0, x1, dots, c.middle) for c in curves],
        across,
        rows,
        scale.bottom,
        scale.top,
        marks=signs,
        cross=None if paper.cross is None else _column(paper.cross, paper, across),
    )
    picture = _with_notes(picture, _beyond(curves, scale))
    labels = _label_rows(scale, rows)
    drawn = []
    for row, (text, owner) in enumerate(zip(picture.text, picture.owner, strict=True)):
        label = Span(labels.get(row, ""), "dim", axis - 1, right=True)
        drawn.append(
            (
                label,
                Span("┤" if row in labels else "│", "faint"),
                *_runs(text, owner, [c.ink for c in curves], inks),
            )
        )
    return [*drawn, _x_axis(paper, axis, across)]


def _scale(curves: Sequence[Curve], paper: Paper, rows: int) -> Scale:
    most = max(3, min(5, (rows + 1) // 2))
    found = log_scale(_known(curves, log=True), most) if paper.log else None
    if found is not None:
        return found
    return value_scale(_known(curves) if paper.bounds is None else paper.bounds, most)


def _known(curves: Sequence[Curve], *, log: bool = False) -> Iterator[float]:
    """The ends of what the value axis is to show."""
    for curve in curves:
        if curve.middle is None:
            yield from curve.low
            yield from curve.high
        elif log:
            logs = (
                [v for v in _logs(column) if v > BELOW] for column in (curve.low, curve.high, curve.middle)
            )
            yield from (10.0**v for v in typical_range(*logs))
        else:
            yield from typical_range(curve.low, curve.high, curve.middle)


def _beyond(curves: Sequence[Curve], scale: Scale) -> tuple[str, str]:
    """What is said of values above and below the axis: `▴ up to 102 M`. Empty where there are none."""
    lines = [curve for curve in curves if curve.middle is not None]
    step = scale.ticks[1] - scale.ticks[0] if len(scale.ticks) > 1 else 0.0
    most = max((v for curve in lines for v in curve.high if v == v), default=scale.top)
    least = min((v for curve in lines for v in curve.low if v == v), default=scale.bottom)
    above = f"{UP} up to {_value(most, scale)}" if most > scale.top + step / 8 else ""
    below = f"{DOWNWARD} down to {_value(least, scale)}" if least < scale.bottom - step / 8 else ""
    return above, "" if least <= BELOW else below


def _value(value: float, scale: Scale) -> str:
    return numbers.si(10.0**value if scale.log else value)


def _room(owner: bytes, cells: int) -> re.Match[bytes] | None:
    """The first place for a text of so many cells that covers no line."""
    return re.search(rb"[\x00%c%c]{%d}" % (BAND, PEAK, cells), owner)


def _with_notes(picture: Picture, notes: tuple[str, str]) -> Picture:
    """Write the notes into the first and the last row, where no line is, and no mark if possible."""
    text, owner = list(picture.text), list(picture.owner)
    for row, note in zip((0, len(text) - 1), notes, strict=True):
        signless = bytes(0 if c == "┆" else o for c, o in zip(text[row], owner[row], strict=True))
        room = next((found for of in (owner[row], signless) if (found := _room(of, len(note) + 2))), None)
        if note and room is not None:
            a, b = room.start() + 1, room.start() + 1 + len(note)
            text[row] = text[row][:a] + note + text[row][b:]
            owner[row] = owner[row][:a] + bytes((PEAK,)) * len(note) + owner[row][b:]
    return Picture(text, owner)


def _logs(values: Sequence[float]) -> list[float]:
    """Powers of ten; what is not above zero lies below every axis, and NaN stays unknown."""
    return [math.log10(v) if v > 0 else v if v != v else BELOW for v in values]


def _column(x: int, paper: Paper, across: int) -> int | None:
    """The cell in which a place of the x axis is, None where it is outside."""
    return (x - paper.x0) * across // (paper.x1 - paper.x0) if paper.x0 <= x < paper.x1 else None


def _label_rows(scale: Scale, rows: int) -> dict[int, str]:
    """Which raster row each tick's label stands in; only the ends where few rows would set them unevenly."""
    found: dict[int, str] = {}
    ticks = list(zip(scale.ticks, scale.labels, strict=True))
    if not scale.log and rows < EVEN and len(ticks) > 2 and (rows - 1) % (len(ticks) - 1):
        ticks = [ticks[0], ticks[-1]]
    for tick, label in ticks:
        found[round((scale.top - tick) / (scale.top - scale.bottom) * (rows - 1))] = label
    return found


def _runs(text: str, owner: bytes, inks: Sequence[str], marks: dict[int, str]) -> Line:
    """One raster row as spans of one ink each."""
    spans: list[Span] = []
    for run in _RUN.finditer(owner):
        start, end = run.span()
        own = owner[start]
        ink = marks[start] if own == MARK else _INKS[own] if own in _INKS else inks[own - 1]
        spans.append(Span(text[start:end], ink))
    return tuple(spans)


def _x_axis(paper: Paper, axis: int, across: int) -> Line:
    """Labels of the x axis, that of its end flush right; those without room are left out."""
    cells = [" "] * across
    cells[across - len(paper.end) :] = paper.end
    taken = [(across - len(paper.end) - 2, across)] if paper.end else []
    for x, label in paper.ticks:
        start = round(across * (x - paper.x0) / (paper.x1 - paper.x0)) - len(label) // 2
        start = max(start, 0) if start >= -len(label) // 2 - 1 else start
        end = start + len(label)
        if start >= 0 and end <= across and all(end <= a or start >= b + 2 for a, b in taken):
            cells[start:end] = label
            taken.append((start - 2, end))
    return (Span(" " * axis), Span("".join(cells), "dim"))
