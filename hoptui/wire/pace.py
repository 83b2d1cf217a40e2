"""How fast a run is, of the rates of its iterations: one answer for daemon, tuner and viewers. Pure.

A run that waits for data does so once in as many iterations as it has workers: most of its rates are those of iterations that wait for
nothing, and their median is that of no run. Of a run that has a spike now and then, a mean would be that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

APART = 1.5
"""Iterations in a row that take so many times as long as the median are a stop."""
WAITS = 0.15
"""Where all work over all time differs by so much from the median, in logarithms, waits count: not where a single stop makes it so."""


def level(values: Sequence[float]) -> float:
    """How fast a run is whose iterations are as fast as these: their median, or all work over all time where waits count."""
    return len(values) / sum(1 / v for v in values) if uneven(values) else median(values)


def uneven(values: Sequence[float]) -> bool:
    """Whether waits are what the run is like: its median is not how fast it is, and that is no matter of a single stop."""
    return abs(_bias(values, but_one=True)) > WAITS


def unclear(values: Sequence[float]) -> bool:
    """Whether more must be seen before it is known that a stop was the only one."""
    return abs(_bias(values, but_one=False)) > WAITS and not uneven(values)


def _bias(values: Sequence[float], *, but_one: bool) -> float:
    """By how much the median is faster than all work over all time, in logarithms; with `but_one` the longest stop is left out."""
    usual = 1 / median(values)
    total = stop = longest = 0.0
    for value in values:
        cost = 1 / value
        total += cost
        stop = stop + cost - usual if cost > APART * usual else 0.0
        longest = max(longest, stop)
    return math.log((total - longest * but_one) / (len(values) * usual))


def usable(values: Iterable[float]) -> list[float]:
    """Those that can be measured."""
    return [v for v in values if math.isfinite(v) and v > 0]
