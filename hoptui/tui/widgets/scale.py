"""Axes: round ticks for values (1-2-5) and for time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hoptui.viewer import format as text

SPANS = (15, 30, 60, 120, 300, 600, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400)
"""Stretches of time that a chart shows, in seconds."""

FLAT = 1e-9  # a range smaller than that, beside the values themselves, is rounding
LEAST = 1e-200  # smaller values are zero
MOST = 1e200  # greater ones are drawn at the edge


class Scale(NamedTuple):
    """The range of an axis and its ticks, lowest first, with their labels."""

    bottom: float
    top: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]


def value_scale(values: Iterable[float], most: int) -> Scale:
    """A range that holds all known values, between ticks 1, 2 or 5 × 10ⁿ apart, at most `most` of them (≥ 3).

    Zero is on the axis where it is near the data (the data's own range is at least half of its distance to zero);
    otherwise small changes of a large number stay visible.
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
    ticks = tuple(i * step for i in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks, _labels(ticks))


def span_of(age_s: float, longest_s: float) -> float:
    """The stretch to show: the least of `SPANS` that holds `age_s` of data, at most `longest_s`."""
    return next((float(s) for s in SPANS if s >= min(age_s, longest_s)), float(SPANS[-1]))


def time_ticks(span_s: float, most: int) -> list[tuple[float, str]]:
    """(seconds before the newest, label) of ticks on a time axis, newest first, without the newest itself."""
    steps = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600, 86400)
    step = next((s for s in steps if span_s / s <= most), 2 * 86400)
    count = int(span_s / step + 1e-9)
    return [(i * step, f"−{_ago(i * step)}") for i in range(1, count + 1)]


def _ago(seconds: int) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % (size // 2 if size > 60 else size) == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds} s"


def _round_step(raw: float) -> float:
    size = 10.0 ** math.floor(math.log10(raw))
    return next((m * size for m in (1.0, 2.0, 5.0) if m * size >= raw * (1 - 1e-9)), 10 * size)


def _labels(ticks: tuple[float, ...]) -> tuple[str, ...]:
    for digits in range(2, 8):
        labels = tuple(
            "0" if not t or abs(t) < 1e-12 * abs(ticks[-1]) else text.si(float(t), digits) for t in ticks
        )
        if len(set(labels)) == len(labels) and all(_close(t, ticks, digits) for t in ticks):
            break
    return labels


def _close(tick: float, ticks: tuple[float, ...], digits: int) -> bool:
    """Whether a tick rounded to so many digits stays within a tenth of a step."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    return abs(float(f"{tick:.{digits - 1}e}") - tick) <= step / 10
