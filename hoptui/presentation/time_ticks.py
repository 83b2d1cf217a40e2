"""Axes of time and of iterations: the stretch that is shown, and its ticks. Pure.

Ticks are steps of a clock, or round numbers.
"""

from __future__ import annotations

import math
import time

from hoptui.presentation import numbers
from hoptui.presentation.scales import round_step

SPANS = (15, 30, 60, 120, 300, 600, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400)
"""Stretches of time that a chart shows, in seconds."""

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
    step = max(1, int(round_step(max(1e-9, (x1 - x0) / unit / most))))
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
