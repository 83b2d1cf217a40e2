"""How fast a run is, of the rates of its iterations: one answer for daemon, tuner and viewers. Pure.

A run that waits for data does so once in as many iterations as it has workers: most of its rates are those of
iterations that wait for nothing, and their median is that of no run. Of a run that has a spike now and then,
a mean would be that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

APART = 1.5
"""Iterations in a row that take so many times as long as the median are a stop."""
BEYOND = 1e100
"""No rate is as large, nor as small."""
PHASE = "phase/"
"""The prefix of the columns with the seconds of a phase."""
ASIDE = ("evaluation", "checkpoint", "paused")
"""Outermost phases that are no training. Iterations with much of them are not counted as throughput, and what
GPUs do in them means nothing for the rest."""
ASIDE_COLUMNS = tuple(f"{PHASE}{phase}" for phase in ASIDE)
LONGEST_S = 1e8
"""No iteration takes three years."""
WAITS = 0.15
"""Where all work over all time differs by so much from the median, in logarithms, waits count: not where a
single stop makes it so."""


def level(values: Sequence[float]) -> float:
    """How fast a run is whose iterations are as fast as these: their median, or all work over all time where
    waits count."""
    return len(values) / sum(1 / v for v in values) if uneven(values) else median(values)


def uneven(values: Sequence[float]) -> bool:
    """Whether waits are what the run is like: its median is not how fast it is, and that is no matter of a
    single stop."""
    return abs(_bias(values, but_one=True)) > WAITS


def unclear(values: Sequence[float]) -> bool:
    """Whether more must be seen before it is known that a stop was the only one."""
    return abs(_bias(values, but_one=False)) > WAITS and not uneven(values)


def _bias(values: Sequence[float], *, but_one: bool) -> float:
    """By how much the median is faster than all work over all time, in logarithms; with `but_one` without the
    longest stop."""
    usual, costs = 1 / median(values), [1 / value for value in values]
    if but_one:
        first, end = _longest_stop(costs, APART * usual)
        costs[first:end] = [usual] * (end - first)
    return math.log(sum(costs) / len(costs) / usual)


def _longest_stop(costs: Sequence[float], most: float) -> tuple[int, int]:
    """From where up to where iterations in a row that take more than `most` take longest together."""
    longest, found, first, total = 0.0, (0, 0), 0, 0.0
    for i, cost in enumerate(costs):
        if cost <= most:
            first, total = i + 1, 0.0
            continue
        total += cost
        if total > longest:
            longest, found = total, (first, i + 1)
    return found


def usable(values: Iterable[float]) -> list[float]:
    """Those that can be measured: rates of what is done at all, and not beyond what squares of floats
    hold."""
    return [v for v in values if 1 / BEYOND < v < BEYOND]


def took(seconds: float) -> bool:
    """Whether an iteration can have taken so long: a run may log anything."""
    return 0 < seconds < LONGEST_S
