"""How often chance makes a straggler of even ranks: simulated samples, judged as the daemon does.

`python -m benchmarks.even_ranks [--hours 6] [--seed 1] [--iterations 0 0.1 0.5]`. Ten samples a second of
each rank, a window of 30 s, a look every 2 s; a straggler is told when it is found twice in a row. Samples
are taken at the times of the sampler, in iterations that take equally long: so many seconds, or 0 for
independent samples. Prints JSON.
"""

from __future__ import annotations

import argparse
import random
import sys
from bisect import bisect
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from benchmarks.measure import report
from hoptui.daemon.stragglers import EVERY_S, TWICE, WINDOW_S
from hoptui.domain.activities import Activity
from hoptui.domain.code_lines import CodeLine
from hoptui.domain.stragglers import find_straggler
from hoptui.sdk.stack_sampler import EVERY_S as SAMPLE_S
from hoptui.sdk.stack_sampler import SampleTimes

LOOKS = round(WINDOW_S / EVERY_S)
RANKS = (2, 4, 8)
ITERATIONS_S = (0.0, 0.02, 0.1, 0.15, 0.5, 2.0)
REDUCE = Activity("collective", CodeLine("train.py", 41, "main"), "all_reduce")
BACKWARD = Activity("compute", CodeLine("train.py", 38, "main"), "Variable._execution_engine.run_backward")
READ = Activity("input", CodeLine("data.py", 15, "read"), "read")
WORK = Activity("script", CodeLine("train.py", 29, "main"), "sleep")
OWN = Activity("log", CodeLine("roles.py", 1, "main"), "write")
"""Stands for a line that each rank has for itself."""
LOADS: Mapping[str, Mapping[Activity, float]] = {
    "waits for half of the time": {REDUCE: 0.5, WORK: 0.5},
    "reads, and waits a little": {REDUCE: 0.15, READ: 0.3, WORK: 0.55},
    "waits in the backward pass": {BACKWARD: 0.4, READ: 0.2, WORK: 0.4},
    "sleeps in the backward pass": {
        BACKWARD._replace(backward="waits"): 0.25,
        BACKWARD._replace(backward="computes"): 0.15,
        WORK: 0.6,
    },
    "each has a line of its own": {REDUCE: 0.3, OWN: 0.08, WORK: 0.62},
}


class SampledRank:
    """A rank that does the same in each iteration of `iteration_s` seconds, 0 for independent samples."""

    def __init__(
        self, shares: Mapping[Activity, float], rank: int, iteration_s: float, source: random.Random
    ) -> None:
        self._lines = [_of_rank(each, rank) for each in shares]
        self._ends = [*accumulate(shares.values())]
        self._iteration_s, self._source = iteration_s, source
        self._times = SampleTimes(source)
        self._next = self._times.pause_s(SAMPLE_S)

    def samples(self, until: float) -> Counter[Activity]:
        """Return what it did in the next samples, up to a time in seconds."""
        found: Counter[Activity] = Counter()
        while self._next < until:
            within = self._next / self._iteration_s % 1 if self._iteration_s else self._source.random()
            found[self._lines[min(bisect(self._ends, within), len(self._lines) - 1)]] += 1
            self._next += self._times.pause_s(SAMPLE_S)
        return found


def alarms(ranks: int, shares: Mapping[Activity, float], hours: float, seed: int, iteration_s: float) -> int:
    """Return how many stragglers are told in so many hours."""
    source = random.Random(seed)
    sampled = [SampledRank(shares, rank, iteration_s, source) for rank in range(ranks)]
    window: deque[list[Counter[Activity]]] = deque(maxlen=LOOKS)
    told, last, found = 0, -1, 0
    for number in range(int(hours * 3600 / EVERY_S)):
        window.append([rank.samples((number + 1) * EVERY_S) for rank in sampled])
        counts = {rank: sum((look[rank] for look in window), Counter[Activity]()) for rank in range(ranks)}
        straggler = find_straggler(counts)
        rank = straggler.rank if straggler is not None else -1
        found = found + 1 if straggler is not None and rank == last else int(straggler is not None)
        told += found == TWICE
        last = rank
    return told


def _of_rank(each: Activity, rank: int) -> Activity:
    return each._replace(place=each.place._replace(line=1 + rank)) if each == OWN else each


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Count and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--hours", type=float, default=6.0, help="simulated, of each load and number of ranks"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--iterations", type=float, nargs="+", default=ITERATIONS_S, help="seconds")
    given = parser.parse_args(list(arguments))
    found = {
        f"{ranks} ranks, {iteration_s:g} s, {name}": alarms(
            ranks, shares, given.hours, given.seed, iteration_s
        )
        for iteration_s in given.iterations
        for ranks in RANKS
        for name, shares in LOADS.items()
    }
    hours = given.hours * len(found)
    met = {"none": not any(found.values())}
    return report("even_ranks", {"hours": hours, "seed": given.seed, "alarms": found, "met": met})


if __name__ == "__main__":
    main(sys.argv[1:])
