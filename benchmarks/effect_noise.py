"""How often a knob that nobody reads seems to have an effect, and how often a real effect is found.

`python -m benchmarks.effect_noise` simulates a run on cores that it shares with other work. A knob is changed
every eleven seconds. Each change is measured as the daemon measures it. Iterations are simulated in time: a
load that lasts three seconds slows many short iterations, or a few long ones.

`DEVELOPMENT` are the loads that the method was chosen with. `TEST` are others, looked at later (`--test`).
Prints a row for each load and duration of an iteration. Of the changes without an effect it counts those that
are reported as an effect. Of the others it counts those that are found, and in brackets those with the wrong
sign.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator

from hoptui.daemon.state.node import MEASURED
from hoptui.tuner.effect import LONGER, WARM_UP, measure

EVERY_S = 11.0
"""Between two changes."""
ITERATIONS_S = (0.005, 0.02, 0.1, 0.5)
JITTER = 0.05
"""Of the duration of each iteration, as a logarithm."""
GAINS = (0.0, 0.2, 0.5)
"""Real effects of the knob on the speed."""

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


Loads = dict[str, Callable[[random.Random], Slowdown]]
DEVELOPMENT: Loads = {
    "quiet": quiet,
    "bursts of 3 s": bursts(3.0, 6.0, 1.5),
    "bursts of 0.5 s": bursts(0.5, 1.0, 2.0),
    "three neighbours": bursts(8.0, 15.0, 1.3, jobs=3),
}
TEST: Loads = {
    "arrivals": arrivals(3.0, 0.5, 1.4),
    "every 7 s": periodic(7.0, 2.0, 1.7),
    "wandering": wandering(10.0, 0.15),
    "bursts of 20 s": bursts(20.0, 40.0, 1.6),
    "fast wandering": wandering(0.3, 0.3),
}


def iterations(
    slowdown: Slowdown, each_s: float, gain: float, chance: random.Random
) -> Iterator[tuple[float, float]]:
    """Yield (seconds at its end, rate) of each iteration. Every second interval of `EVERY_S` has the gain."""
    t = 0.0
    while True:
        speed = 1.0 + gain * (int(t / EVERY_S) % 2)
        took = each_s * slowdown(t) * math.exp(chance.gauss(0.0, JITTER)) / speed
        t += took
        yield t, 1 / took


def changes(
    load: Callable[[random.Random], Slowdown], each_s: float, gain: float, count: int, seed: int
) -> list[float | None]:
    """The reported gain of each change, None where no effect is reported. The sign is that of the change."""
    chance = random.Random(seed)
    points = iterations(load(chance), each_s, gain, chance)
    found: list[float | None] = []
    intervals: list[list[float]] = [[]]
    number = 0
    while len(found) < count:
        t, rate = next(points)
        if int(t / EVERY_S) > number:
            number += 1
            intervals.append([])
            if len(intervals) > 2:
                after = intervals[-2]
                room = MEASURED - min(len(after), LONGER[-1] + WARM_UP)
                stretches: list[list[float]] = []
                for interval in reversed(intervals[:-2]):
                    stretches.append(interval[WARM_UP:][-room:])
                    room -= len(stretches[-1])
                    if room <= 0:
                        break
                figure = measure("rate", stretches[0], after, earlier=stretches[1:])
                sign = 1 if number % 2 == 0 else -1
                found.append(sign * figure.gain if figure.detectable and figure.gain is not None else None)
        intervals[-1].append(rate)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test", action="store_true", help="the loads that the method was not chosen with")
    chosen = parser.parse_args()
    print(
        f"{'load':18} {'iteration':>9}  " + "  ".join(f"{f'gain {100 * gain:.0f} %':>14}" for gain in GAINS)
    )
    for name, load in (TEST if chosen.test else DEVELOPMENT).items():
        for each_s in ITERATIONS_S:
            cells = []
            for gain in GAINS:
                found = [g for g in changes(load, each_s, gain, chosen.changes, chosen.seed) if g is not None]
                wrong = sum(g < 0 for g in found) if gain else 0
                cells.append(f"{len(found):3} of {chosen.changes}" + (f" ({wrong})" if gain else ""))
            print(
                f"{name:18} {1000 * each_s:6.0f} ms  " + "  ".join(f"{cell:>14}" for cell in cells),
                flush=True,
            )


if __name__ == "__main__":
    main()
