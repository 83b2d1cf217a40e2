"""The tuner for energy on simulated runs of a GPU whose fastest value is not its most efficient.

The GPU draws the more for each sample the better it is filled, as one near its power limit does. Its power is
read as the daemon reads it: the mean over three seconds of averages over a second, also for what came before
a change. Each run is tuned for energy and for throughput.

`python -m benchmarks.tuner_energy_simulation [--seeds 20]`.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.measure import report
from benchmarks.tuner_simulated import SECOND, Steered, knob
from hoptui.domain.knobs import KnobState
from hoptui.domain.tuning import Limits, Objective, TunerState
from hoptui.presentation import tuner_report
from hoptui.tuner.observation import MemoryReading, Observation
from hoptui.tuner.tuner import Tuner

RUN_S, HELD_S = 900.0, 60.0
SIZES = tuple(1 << i for i in range(9))
SHOWN = 200
PAUSE_S, SLOW_ITERATIONS = 0.5, 5
READ_EVERY_S, READ_OVER_S, AVERAGED_S = 0.5, 3.0, 1.0


@dataclass(frozen=True)
class PowerCurve:
    """A GPU that a micro-batch of m fills to u = m / (m + `half`): `best` × u samples/s, and `idle` +
    `dynamic` × u^`exponent` watts."""

    best: float = 400.0
    half: float = 32.0
    idle: float = 150.0
    dynamic: float = 550.0
    exponent: float = 2.5
    noise: float = 0.03

    def rate(self, micro: int) -> float:
        """Samples/s, without noise."""
        return self.best * micro / (micro + self.half)

    def watts(self, micro: int) -> float:
        return self.idle + self.dynamic * math.pow(micro / (micro + self.half), self.exponent)

    def per_joule(self, micro: int) -> float:
        """Samples for a joule."""
        return self.rate(micro) / self.watts(micro)

    def most_efficient(self) -> int:
        return max(SIZES, key=self.per_joule)


class PowerLimitedRun(Steered):
    """A run on a GPU with this curve, from a micro-batch of `start` on."""

    def __init__(self, curve: PowerCurve, seed: int, start: int = 4) -> None:
        super().__init__({"micro_batch": knob("micro_batch", start, SIZES[-1], "shape")})
        self.curve = curve
        self._chance = random.Random(seed)
        self._state = self._chance.gauss(0, 1)
        self._slow = 0
        self._seconds: list[tuple[int, float]] = []
        self._drawn: deque[tuple[float, float, float]] = deque()  # from, to (s), watts

    def iterate(self) -> None:
        """The boundary, and one iteration."""
        self._obey()
        curve, micro = self.curve, self.value("micro_batch")
        self._state = 0.5 * self._state + math.sqrt(0.75) * self._chance.gauss(0, 1)
        slower = math.exp(curve.noise * self._state) * (2 if self._slow else 1)
        self._slow = max(0, self._slow - 1)
        seconds = micro / curve.rate(micro) * slower
        # An iteration that takes longer does the same work, with less power.
        self._draw(seconds, curve.idle + (curve.watts(micro) - curve.idle) / slower)
        self.step += 1
        self.points.append((self.step, micro / seconds))
        self._seconds.append((self.step, seconds))
        del self.points[:-SHOWN], self._seconds[:-SHOWN]

    def carry_out(self, knob: KnobState) -> float:
        self._slow = SLOW_ITERATIONS
        self._draw(PAUSE_S, self.curve.idle)
        self.t -= PAUSE_S  # whoever calls counts the pause
        return PAUSE_S

    def observation(self) -> Observation:
        """What the daemon would show of it."""
        memory = MemoryReading(used=10 << 30, others=0, total=80 << 30)
        return Observation(
            t=round(self.t * SECOND), epoch=1, state="live", knobs=tuple(self.knobs.values()),
            points=tuple(self.points), durations=tuple(self._seconds), records=tuple(self.records[-32:]),
            memories=(memory,), metric="samples_per_s", drawn_w=self._read(), step=self.step,
        )  # fmt: skip

    def _draw(self, seconds: float, watts: float) -> None:
        self._drawn.append((self.t, self.t + seconds, watts))
        self.t += seconds
        while self._drawn[0][1] < self.t - READ_OVER_S - AVERAGED_S:
            self._drawn.popleft()

    def _read(self) -> float:
        """Watts: the mean of the readings of the last seconds, each of which is an average."""
        count = round(READ_OVER_S / READ_EVERY_S)
        return fmean(self._average(self.t - i * READ_EVERY_S) for i in range(count))

    def _average(self, until: float) -> float:
        since = until - AVERAGED_S
        parts = [(max(0.0, min(end, until) - max(start, since)), watts) for start, end, watts in self._drawn]
        covered = sum(seconds for seconds, _ in parts)
        return sum(seconds * watts for seconds, watts in parts) / covered if covered else self.curve.idle


def drive(curve: PowerCurve, seed: int, objective: Objective) -> tuple[PowerLimitedRun, TunerState]:
    """Return a run and what the tuner with this objective has come to."""
    run = PowerLimitedRun(curve, seed)
    tuner = Tuner(Limits(objective=objective), 0, "bench")
    run.tuned_by(tuner, until=RUN_S, held_s=HELD_S)
    return run, tuner.state


def figures(curve: PowerCurve, seeds: Sequence[int], objective: Objective) -> dict[str, Any]:
    """Return the values found, the efficiency and the speed as shares of the best, and what was reported.

    `saving_in_interval` is the share of runs in which the true saving lies within the reported interval.
    """
    runs = [drive(curve, seed, objective) for seed in seeds]
    found = [run.value("micro_batch") for run, _ in runs]
    best, fastest = curve.per_joule(curve.most_efficient()), curve.rate(SIZES[-1])
    start = curve.per_joule(PowerLimitedRun(curve, 0).value("micro_batch"))
    savings = [(tuner_report.saving(state), micro) for (_, state), micro in zip(runs, found, strict=True)]
    within = [
        abs(saving.share - (1 - start / curve.per_joule(micro))) <= saving.interval
        for saving, micro in savings
        if saving is not None
    ]
    return {
        "found": {str(size): found.count(size) for size in sorted(set(found))},
        "efficiency_of_best": round(fmean(curve.per_joule(micro) for micro in found) / best, 4),
        "speed_of_fastest": round(fmean(curve.rate(micro) for micro in found) / fastest, 4),
        "saving_in_interval": round(fmean(within), 3) if within else None,
    }


def main() -> dict[str, Any]:
    """Simulate and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="simulated runs for each objective")
    arguments, _ = parser.parse_known_args()
    curve, seeds = PowerCurve(), range(1000, 1000 + arguments.seeds)
    objectives: tuple[Objective, ...] = ("energy", "throughput")
    found = {objective: figures(curve, seeds, objective) for objective in objectives}
    given = {"seeds": arguments.seeds, "most_efficient": curve.most_efficient(), "fastest": SIZES[-1]}
    return report("tuner_energy_simulation", given | {"objectives": found})


if __name__ == "__main__":
    main()
