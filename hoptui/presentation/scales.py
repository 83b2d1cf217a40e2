"""Value axes: the range that a series needs, and its ticks. Pure.

Ticks are round: 1, 2 or 5 times a power of ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hoptui.presentation import numbers

FLAT = 1e-9  # a range smaller than that, beside the values themselves, is rounding
LEAST = 1e-200  # smaller values are zero
MOST = 1e200  # greater ones are drawn at the edge


OUTER = 0.02  # share of typical values at each end that may lie outside of an axis
INNER = 0.1  # share of extremes at each end that may lie outside of an axis
ROOM = 0.25  # around a level value, beside the value itself
NEAR = 0.25  # extremes so far from the typical values are on the axis, beside their spread
DECADES = 3.0  # typical values over so many powers of ten need a logarithmic axis
BELOW = -400.0  # a power of ten that no number has: where a logarithmic axis has what is not above zero


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


def needs_log(middle: Sequence[float]) -> bool:
    """Whether the typical values of a curve are above zero and span so much that a linear axis hides most."""
    known = sorted(v for v in middle if math.isfinite(v))
    if not known:
        return False
    first, last = _inner(known, OUTER)
    return first > LEAST and last < MOST and last / first >= 10.0**DECADES


def powers_of_ten(values: Iterable[float]) -> list[float]:
    """Logarithms; what is not above zero lies below every axis, and NaN stays unknown."""
    return [math.log10(v) if v > 0 else v if v != v else BELOW for v in values]


def typical_log_range(
    low: Sequence[float], high: Sequence[float], middle: Sequence[float]
) -> tuple[float, float] | tuple[()]:
    """The same range by the powers of ten of what is above zero, as values."""
    powers = ([v for v in powers_of_ten(column) if v > BELOW] for column in (low, high, middle))
    found = typical_range(*powers)
    return (10.0 ** found[0], 10.0 ** found[1]) if found else ()


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
    step = round_step((high - low) / max(1, most - 1))
    while math.ceil(high / step - 1e-9) - math.floor(low / step + 1e-9) >= max(3, most):
        step = round_step(step * 1.5)
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
        shown = [10.0**e for e in range(first, last + every, every)]
    ticks = tuple(math.log10(v) for v in shown)
    return Scale(ticks[0], ticks[-1], ticks, tuple(_power(v) for v in shown), log=True)


def _is_decade(value: float) -> bool:
    return abs(math.log10(value) - round(math.log10(value))) < 1e-9


def _power(value: float) -> str:
    """`1 k`, `0.02`, `1e-5`."""
    exponent = round(math.log10(value))
    if _is_decade(value) and not -4 < exponent < 18:
        return f"1e{exponent}"
    return numbers.scientific(value, 1) if value < 1e-3 or value >= 1e18 else numbers.si(value, 1)


def round_step(raw: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below `raw`."""
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
