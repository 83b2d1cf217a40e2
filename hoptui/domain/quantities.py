"""Formatting of percentages and counts for the daemon, the tuner and the viewers. Unknown is `UNKNOWN`, never
0."""

from __future__ import annotations

import math

UNKNOWN = "–"


def percent(
    ratio: float | None, *, signed: bool = False, decimals: int | None = None, digits: int | None = None
) -> str:
    """Format a ratio as per cent: 0.061 is `6.1 %`, `+6.1 %` if `signed`. From 10 % on without decimals.

    `decimals` sets the number of decimals at any size. `digits` sets the significant digits below 10 %: `0.04
    %`.
    """
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    number = ratio * 100
    if digits is not None and abs(number) < 9.95:
        return f"{number:.{digits}g} %"
    if decimals is None:
        decimals = 1 if 0 < abs(number) < 9.95 else 0
    text = f"{number:{'+' if signed else ''}.{decimals}f}"
    if not text.strip("+-0."):
        text = text.lstrip("+-")
    return f"{text} %"


def percentage(number: float | None) -> str:
    """Format a number that is already in per cent: `92 %`, `0.8 %`, `0.004 %`.

    Very small values are `<0.001 %`, never 0.
    """
    if number is None or not math.isfinite(number):
        return UNKNOWN
    size = abs(number)
    if not size or size >= 9.95:
        return f"{number:.0f} %"
    if size >= 0.05:
        return f"{number:.1f} %"
    return f"{number:.1g} %" if size >= 0.001 else "<0.001 %"


def grouped(number: float | None) -> str:
    """Format a count with its digits in groups of three: 1204 is `1 204`."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    return f"{round(number):,}".replace(",", " ")


def counted(number: int, noun: str) -> str:
    """`1 iteration`, `1 204 iterations`."""
    return f"{grouped(number)} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """Return the noun for a count: `run`, `runs`."""
    return noun if number == 1 else f"{noun}s"
