"""How fast a run is, of the rates of its iterations: one answer for daemon, tuner and viewers. Pure.

A run that waits for data does so once in as many iterations as it has workers: most of its rates are those of iterations that wait for
nothing, and their median is that of no run. Of a run that has a spike now and then, a mean would be that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import NamedTuple

APART, WAITS = 1.5, 0.15
"""Iterations that take so many times as long as is usual are spikes, unless they take this share of all the time …"""
ONE = 2 / 3
"""… and those in a row never more than this part of that: one time is no rule."""
USUAL = 0.4
"""Where what is usual stands among all, the fastest first: of two iterations in turn, one of which waits, it is the other."""
LEAST_EVENTS = 3
"""And never fewer of them."""
SHORTEST = 5
"""Iterations of a cycle: of shorter ones several are one."""


def level(values: Sequence[float]) -> float:
    """How fast a run is whose iterations are as fast as these: their median, or all work over all time where waits count."""
    if not uneven(values):
        return median(values)
    found = cycles(values) or [Cycle(len(values), sum(1 / v for v in values))]
    return sum(c.iterations for c in found) / sum(c.cost for c in found)


def uneven(values: Sequence[float]) -> bool:
    """Whether iterations that take far longer than usual come again and again, and take enough of the time to be what the run is like."""
    events = _events(values)
    apart = sum(events)
    often = sum(event > 0 for event in events) >= LEAST_EVENTS
    return often and apart > WAITS * sum(1 / v for v in values) and max(events) <= ONE * apart


def unclear(values: Sequence[float]) -> bool:
    """Whether more must be seen before it is known that a spike is none of many."""
    apart = sum(_events(values)) > WAITS * sum(1 / v for v in values)
    return apart and not uneven(values)


def _events(values: Sequence[float]) -> list[float]:
    """What iterations that take far longer than usual cost: those in a row together."""
    costs = [1 / v for v in values]
    most = APART * sorted(costs)[int(USUAL * len(costs))]
    events = [0.0]
    for cost in costs:
        if cost > most:
            events[-1] += cost
        elif events[-1]:
            events.append(0.0)
    return events


class Cycle(NamedTuple):
    """Iterations from after one wait up to another, and what they cost: the sum of what a unit took in each."""

    iterations: int
    cost: float


def cycles(values: Sequence[float]) -> list[Cycle]:
    """Of at least five iterations each; what comes before the first wait and after the last belongs to others."""
    costs = [1 / v for v in values]
    mean = fmean(costs)
    waits = [i + 1 for i, cost in enumerate(costs) if cost > mean]
    found: list[Cycle] = []
    start = waits[0] if waits else 0
    for end in waits:
        if end - start >= SHORTEST:
            found.append(Cycle(end - start, sum(costs[start:end])))
            start = end
    return found


def usable(values: Iterable[float]) -> list[float]:
    """Those that can be measured."""
    return [v for v in values if math.isfinite(v) and v > 0]
