"""How often a knob that nobody reads seems to have an effect, and how often a real effect is found.

`python -m benchmarks.effect_noise [--test]` simulates a run on cores that it shares with other work. A knob
is changed every eleven seconds, or every minute. Each change is measured as the daemon measures it.
Iterations are simulated in time: a load that lasts three seconds slows many short iterations, or a few long
ones.

`DEVELOPMENT` are the loads that the method and its thresholds were chosen with. `TEST` are others: they were
written before the last change of the method, and measured after it. For each load and duration of an
iteration there are the changes without an effect that are `reported` as an effect. For each load and effect
there are the changes that are `found`, those with the `wrong` sign, the share of all intervals that contain
the effect (`covered`), and the median of the seconds until it was found.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

from benchmarks.measure import report, tell
from hoptui.daemon.state.command_log import LATEST
from hoptui.daemon.state.node import MEASURED
from hoptui.domain.tuning import Measured
from hoptui.tuner.effect import LONGER, WARM_UP, measure

OFTEN_S, RARELY_S = 11.0, 60.0
"""Between two changes."""
ITERATIONS_S = (0.02, 0.1, 0.5)
FOUND_WITH_S = (0.02, 0.1)
JITTER = 0.05
"""Of the duration of each iteration, as a logarithm."""
GAINS = (0.05, 0.1, 0.3, -0.2)
"""Real effects of the knob on the speed. Every second change takes it back."""
FIRST = 6
"""Intervals before the first change that counts."""

Slowdown = Callable[[float], float]
"""By what factor an iteration at a time in seconds takes longer. The time rises from call to call."""


def quiet(chance: random.Random) -> Slowdown:
    """No other work."""
    return lambda _: 1.0


def bursts(on_s: float, off_s: float, factor: float, jobs: int = 1) -> Callable[[random.Random], Slowdown]:
    """Jobs that begin and end independently, at rates that do not change."""

    def start(chance: random.Random) -> Slowdown:
        states = [[False, chance.expovariate(1 / off_s)] for _ in range(jobs)]

        def at(t: float) -> float:
            for state in states:
                while state[1] <= t:
                    state[0] = not state[0]
                    state[1] += chance.expovariate(1 / (on_s if state[0] else off_s))
            return factor ** sum(bool(state[0]) for state in states)

        return at

    return start


def arrivals(every_s: float, least_s: float, factor: float) -> Callable[[random.Random], Slowdown]:
    """Jobs that arrive at random. Most are short, and a few take very long (Pareto, 1.5)."""

    def start(chance: random.Random) -> Slowdown:
        ends: list[float] = []
        following = chance.expovariate(1 / every_s)

        def at(t: float) -> float:
            nonlocal following
            while following <= t:
                ends.append(following + least_s * chance.paretovariate(1.5))
                following += chance.expovariate(1 / every_s)
            ends[:] = [end for end in ends if end > t]
            return factor ** len(ends)

        return at

    return start


def periodic(every_s: float, on_s: float, factor: float) -> Callable[[random.Random], Slowdown]:
    """A job at fixed times."""
    return lambda chance: lambda t: factor if t % every_s < on_s else 1.0


def wandering(within_s: float, spread: float) -> Callable[[random.Random], Slowdown]:
    """A load without steps (Ornstein-Uhlenbeck)."""

    def start(chance: random.Random) -> Slowdown:
        level, before = chance.gauss(0.0, spread), 0.0

        def at(t: float) -> float:
            nonlocal level, before
            keep = math.exp((before - t) / within_s)
            level, before = keep * level + chance.gauss(0.0, spread * math.sqrt(1 - keep**2)), t
            return math.exp(level)

        return at

    return start


def pauses(every_s: float, on_s: float) -> Callable[[random.Random], Slowdown]:
    """An evaluation or a checkpoint that no phase marks: one long iteration now and then."""

    def start(chance: random.Random) -> Slowdown:
        following = every_s * chance.random()

        def at(t: float) -> float:
            nonlocal following
            if t < following:
                return 1.0
            following += every_s
            return 1.0 + on_s / LONGEST_ITERATION_S

        return at

    return start


LONGEST_ITERATION_S = 0.5


def heavy(share: float, spread: float) -> Callable[[random.Random], Slowdown]:
    """Single iterations that take much longer (Pareto, 1.5), and a wide spread of all others."""

    def start(chance: random.Random) -> Slowdown:
        def at(_: float) -> float:
            tail = chance.paretovariate(1.5) if chance.random() < share else 1.0
            return tail * math.exp(chance.gauss(0.0, spread))

        return at

    return start


def stairs(each_s: float, spread: float) -> Callable[[random.Random], Slowdown]:
    """A load that changes at random to another level, near the last one."""

    def start(chance: random.Random) -> Slowdown:
        level, following = 0.0, chance.expovariate(1 / each_s)

        def at(t: float) -> float:
            nonlocal level, following
            while following <= t:
                level = 0.8 * level + chance.gauss(0.0, spread)
                following += chance.expovariate(1 / each_s)
            return math.exp(level)

        return at

    return start


def ramps(period_s: float, top: float) -> Callable[[random.Random], Slowdown]:
    """A load that grows steadily and then ends at once."""
    return lambda chance: lambda t: 1 + top * (t % period_s) / period_s


def both(
    one: Callable[[random.Random], Slowdown], other: Callable[[random.Random], Slowdown]
) -> Callable[[random.Random], Slowdown]:
    """Two loads at the same time."""

    def start(chance: random.Random) -> Slowdown:
        first, second = one(chance), other(chance)
        return lambda t: first(t) * second(t)

    return start


def drifting(period_s: float, spread: float) -> Callable[[random.Random], Slowdown]:
    """A speed that rises and falls slowly, as by heat."""
    return lambda chance: lambda t: math.exp(spread * math.sin(2 * math.pi * t / period_s))


Loads = dict[str, Callable[[random.Random], Slowdown]]
DEVELOPMENT: Loads = {
    "quiet": quiet,
    "bursts of 0.5 s": bursts(0.5, 1.0, 2.0),
    "bursts of 3 s": bursts(3.0, 6.0, 1.5),
    "bursts of 10 s": bursts(10.0, 20.0, 1.5),
    "bursts of 40 s": bursts(40.0, 40.0, 1.4),
    "three neighbours": bursts(8.0, 15.0, 1.3, jobs=3),
    "bursts of 5 s": bursts(5.0, 10.0, 1.3),
    "bursts of 10 s, strong": bursts(10.0, 10.0, 2.0),
    "bursts of 20 s": bursts(20.0, 40.0, 1.6),
    "bursts of 40 s, weak": bursts(40.0, 60.0, 1.2),
    "bursts of 60 s": bursts(60.0, 60.0, 1.5),
    "bursts of 120 s": bursts(120.0, 120.0, 1.8),
    "arrivals": arrivals(3.0, 0.5, 1.4),
    "every 7 s": periodic(7.0, 2.0, 1.7),
    "wandering": wandering(10.0, 0.15),
    "fast wandering": wandering(0.3, 0.3),
    "drift": drifting(300.0, 0.2),
    "heavy tails": heavy(0.05, 0.2),
    "pauses": pauses(20.0, 2.0),
}
TEST: Loads = {
    "bursts of 7 s, strong": bursts(7.0, 4.0, 2.5),
    "bursts of 15 s": bursts(15.0, 30.0, 1.8),
    "bursts of 30 s": bursts(30.0, 30.0, 1.3),
    "bursts of 90 s": bursts(90.0, 45.0, 1.6),
    "two neighbours": bursts(12.0, 25.0, 1.4, jobs=2),
    "arrivals, long": arrivals(8.0, 2.0, 1.3),
    "every 31 s": periodic(31.0, 6.0, 1.9),
    "stairs": stairs(15.0, 0.1),
    "ramps": ramps(90.0, 0.3),
    "slow drift": drifting(600.0, 0.25),
    "drift and bursts": both(drifting(200.0, 0.1), bursts(2.0, 5.0, 1.6)),
}


def iterations(
    slowdown: Slowdown, each_s: float, gain: float, every_s: float, chance: random.Random
) -> Iterator[tuple[float, float]]:
    """Yield (seconds at its end, rate) of each iteration. Every second interval has the gain."""
    t = 0.0
    while True:
        speed = 1.0 + gain * (int(t / every_s) % 2)
        took = each_s * slowdown(t) * math.exp(chance.gauss(0.0, JITTER)) / speed
        t += took
        yield t, 1 / took


class Case(NamedTuple):
    """Changes of one knob."""

    load: Callable[[random.Random], Slowdown]
    each_s: float
    gain: float = 0.0
    every_s: float = OFTEN_S


class Found(NamedTuple):
    """What was reported of a change, its true effect, and the seconds that were measured after it."""

    measured: Measured
    effect: float
    seconds: float

    @property
    def covered(self) -> bool:
        gain, interval = self.measured.gain, self.measured.interval
        return gain is not None and interval is not None and abs(gain - self.effect) <= interval


def changes(case: Case, count: int, seed: int) -> list[Found]:
    """What was reported of each change that has a figure."""
    chance = random.Random(seed)
    points = iterations(case.load(chance), case.each_s, case.gain, case.every_s, chance)
    found: list[Found] = []
    intervals: list[list[float]] = [[]]
    number = done = 0
    while done < count:
        t, rate = next(points)
        if int(t / case.every_s) > number:
            number += 1
            if number > FIRST:
                measured = _measured(intervals)
                effect = case.gain if number % 2 == 0 else 1 / (1 + case.gain) - 1
                done += 1
                if measured.gain is not None:
                    # the change was at the beginning of the interval that has just ended
                    seconds = case.every_s * (measured.iterations + WARM_UP) / len(intervals[-1])
                    found.append(Found(measured, effect, seconds))
            intervals.append([])
        intervals[-1].append(rate)
    return found


def _measured(intervals: list[list[float]]) -> Measured:
    """The figure of the change at the beginning of the last interval."""
    after = intervals[-1]
    room = MEASURED - min(len(after), LONGER[-1] + WARM_UP)
    stretches: list[list[float]] = []
    for interval in reversed(intervals[-LATEST:-1]):
        stretches.append(interval[WARM_UP:][-room:])
        room -= len(stretches[-1])
        if room <= 0:
            break
    return measure("rate", stretches[0], after, earlier=stretches[1:])


def nothing(load: Callable[[random.Random], Slowdown], count: int, seed: int) -> dict[str, Any]:
    """Of changes without an effect: those with a figure and those reported as an effect, by the ms of an
    iteration."""
    cells = {}
    for each_s in ITERATIONS_S:
        found = changes(Case(load, each_s), count, seed)
        reported = sum(one.measured.detectable for one in found)
        cells[f"{1000 * each_s:g} ms"] = {"figures": len(found), "reported": reported}
    return cells


def effects(
    load: Callable[[random.Random], Slowdown], every_s: float, count: int, seed: int
) -> dict[str, Any]:
    """Of changes with an effect: how many are found, and how well."""
    cells = {}
    for gain in GAINS:
        found = [
            one for each_s in FOUND_WITH_S for one in changes(Case(load, each_s, gain, every_s), count, seed)
        ]
        reported = [one for one in found if one.measured.detectable]
        cells[f"{100 * gain:+g} %"] = {
            "changes": count * len(FOUND_WITH_S),
            "found": len(reported),
            "wrong": sum((one.measured.gain or 0.0) * one.effect < 0 for one in reported),
            "covered": round(sum(one.covered for one in found) / max(1, len(found)), 3),
            "seconds": round(median([one.seconds for one in reported]), 1) if reported else None,
        }
    return cells


def simulate(loads: Loads, count: int, fewer: int, seed: int) -> dict[str, Any]:
    """The figures of all loads. `fewer` are the changes of each real effect."""
    figures = {}
    for name, load in loads.items():
        figures[name] = tell(
            name,
            {
                "nothing": nothing(load, count, seed),
                f"every {OFTEN_S:g} s": effects(load, OFTEN_S, fewer, seed),
                f"every {RARELY_S:g} s": effects(load, RARELY_S, fewer, seed),
            },
        )
    cells = [cell for one in figures.values() for cell in one["nothing"].values()]
    reported, all_of_them = sum(c["reported"] for c in cells), sum(c["figures"] for c in cells)
    return {
        "reported": f"{reported} of {all_of_them}",
        "worst": max(c["reported"] for c in cells),
        "loads": figures,
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.effect_noise", description="Effects in noise."
    )
    parser.add_argument("--changes", type=int, default=100, help="without an effect")
    parser.add_argument("--effects", type=int, default=20, help="changes of each real effect")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test", action="store_true", help="the loads that the method was not chosen with")
    chosen = parser.parse_args()
    kind, loads = ("test", TEST) if chosen.test else ("development", DEVELOPMENT)
    figures = simulate(loads, chosen.changes, chosen.effects, chosen.seed)
    report(f"effect_noise_{kind}", {"seed": chosen.seed, **figures})


if __name__ == "__main__":
    main()
