"""Axes: round ticks for values (1-2-5) and for time. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import NamedTuple

from hoptui.presentation import numbers

SPANS = (15, 30, 60, 120, 300, 600, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400)
"""Stretches of time that a chart shows, in seconds."""

FLAT = 1e-9  # a range smaller than that, beside the values themselves, is rounding
LEAST = 1e-200  # smaller values are zero
MOST = 1e200  # greater ones are drawn at the edge


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


def span_of(age_s: float, longest_s: float) -> float:
    """The stretch to show: the least of `SPANS` that holds `age_s` of data, at most `longest_s`."""
    return next((float(s) for s in SPANS if s >= min(age_s, longest_s)), float(SPANS[-1]))


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
