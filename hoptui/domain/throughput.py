"""The throughput of a run from the rates of its iterations. Daemon, tuner and viewers share it. Pure.

A run with slow data loading waits once in as many iterations as it has workers. Most iterations do not wait,
so the median rate is too high. For a run with a rare spike, the mean would be too low.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

APART = 1.5
"""Consecutive iterations that take this many times the median are a stop."""
BEYOND = 1e100
"""No rate is above this, or below its inverse."""
PHASE = "phase/"
"""The prefix of the columns with the seconds of a phase."""
ASIDE = ("evaluation", "checkpoint", "paused")
"""Outermost phases outside training. Iterations that consist mostly of them do not count for throughput, and
GPU readings in them are not representative."""
ASIDE_COLUMNS = tuple(f"{PHASE}{phase}" for phase in ASIDE)
PER_SECOND = "_per_s"
"""The end of the name of a rate. Before it stands the name of what is counted."""
LONGEST_S = 1e8
"""No iteration takes three years."""
WAITS = 0.15
"""Waits count if the total rate differs from the median by more than this, as a logarithm.

A single stop is not enough.
"""


def level(values: Sequence[float]) -> float:
    """Return the throughput for the rates of iterations.

    It is their median, or total work over total time if waits count (see `uneven`).
    """
    return len(values) / sum(1 / v for v in values) if uneven(values) else median(values)


def uneven(values: Sequence[float]) -> bool:
    """Return whether waits are typical of the run, so that the median is not its throughput.

    The longest stop is ignored.
    """
    return abs(_bias(values, but_one=True)) > WAITS


def unclear(values: Sequence[float]) -> bool:
    """Return whether the only stop so far may be the first of several: more iterations are needed."""
    return abs(_bias(values, but_one=False)) > WAITS and not uneven(values)


def _bias(values: Sequence[float], *, but_one: bool) -> float:
    """Return the logarithm of median rate over total rate. `but_one` excludes the longest stop."""
    usual, costs = 1 / median(values), [1 / value for value in values]
    if but_one:
        first, end = _longest_stop(costs, APART * usual)
        costs[first:end] = [usual] * (end - first)
    return math.log(sum(costs) / len(costs) / usual)


def _longest_stop(costs: Sequence[float], most: float) -> tuple[int, int]:
    """Return first and end index of the stop that takes longest.

    A stop is a sequence of iterations that each take more than `most`.
    """
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
    """Return the rates that can be measured: positive, and small enough that floats hold their squares."""
    return [v for v in values if 1 / BEYOND < v < BEYOND]


def took(seconds: float) -> bool:
    """Return whether an iteration can have taken this long. A run may log anything."""
    return 0 < seconds < LONGEST_S
