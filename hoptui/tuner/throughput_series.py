"""What the run achieved, iteration by iteration, in the unit of the objective.

The incumbent is the values in effect, which every trial is compared with: since when they are in effect, and
how fast the run is with them.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from statistics import stdev

from hoptui.domain.knobs import KnobValue
from hoptui.domain.throughput import level, usable
from hoptui.domain.tuning import WORK_PER_JOULE, Objective
from hoptui.tuner.effect import BLOCK, CLEAR, MIN_BLOCKS, WARM_UP, log_blocks, uncertainty
from hoptui.tuner.observation import Observation

BASELINE = 30
"""Iterations that the values in effect are measured over before anything is tried."""
LEAST, LONG_S = BLOCK * MIN_BLOCKS, 60.0
"""Where so few of them take so long, they must do: the best settings are worth most to a run that is slow."""
BEFORE = 90
"""So many are compared with, the newest; also what a run needs whose iterations scatter."""
SCATTER = 0.015
"""The standard error of a baseline's level up to which it is taken for known."""
SEEN = 3.0
"""So many times the uncertainty of its baseline, a gain can be told from little."""
KEPT = 400
LOOKS_KEPT = 30


class ObjectiveSeries:
    """Values of the newest iterations: throughput, or with the objective `energy` units for each joule.

    `backwards` counts how often the run has gone back to an earlier iteration: iterations from before that
    have other numbers. A row says nothing about power; what the run's GPUs drew together at the look that
    first saw an iteration stands for it. Energy tells nothing while that is unknown.
    """

    def __init__(self, objective: Objective) -> None:
        self.metric = ""
        self.backwards = 0
        self._energy = objective == "energy"
        self._values: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._clock: deque[tuple[int, int]] = deque(maxlen=LOOKS_KEPT)
        self._newest: int | None = None
        self._start = 0  # those of a process that has just begun do not count

    @property
    def newest(self) -> int:
        """The newest iteration seen, −1 before there is one."""
        return -1 if self._newest is None else self._newest

    def take(self, observation: Observation) -> None:
        """What is new in `observation`. A run that has gone back to an earlier iteration begins anew."""
        points = observation.points
        self.metric = WORK_PER_JOULE if self._energy else observation.metric
        if not points:
            return
        if self._newest is None or points[-1][0] < self._newest:
            self.backwards += self._newest is not None
            self._values.clear()
            self._clock.clear()
            self._newest = None
            self._start = points[0][0] + WARM_UP
        for step, value in points:
            if step > self.newest or self._newest is None:
                self._newest = step
                self._values.append((step, self._valued(value, observation.drawn_w)))
        if not self._clock or self._clock[-1][1] != self.newest:
            self._clock.append((observation.t, self.newest))

    def cut(self) -> None:
        """What comes next cannot be compared with what was."""
        self._values.clear()
        self._clock.clear()
        self._start = self.newest + 1 + WARM_UP

    def since(self, step: int) -> list[float]:
        """All values of iterations from `step` on, oldest first."""
        first = max(step, self._start)
        skip = next((i for i, (s, _) in enumerate(self._values) if s >= first), len(self._values))
        return [v for _, v in islice(self._values, skip, None)]

    def values(self, step: int) -> list[float]:
        """The newest of those that tell something, to compare with."""
        return usable(self.since(step))[-BEFORE:]

    def count(self, step: int) -> int:
        """How many of them tell something."""
        return len(usable(self.since(step)))

    def missing(self, step: int, gain: float | None = None) -> int:
        """How many more of them a baseline needs, about: more where they scatter, fewer where each takes
        long.

        What is compared with it next is expected to bring `gain`: little is needed to see much. Where that is
        unknown (None), not much is needed either, because what cannot be told is tried once more.
        """
        have = self.count(step)
        if have < LEAST:
            return (LEAST if have * self.seconds >= LONG_S else BASELINE) - have
        blocks = log_blocks(self.values(step))
        if have * self.seconds >= LONG_S or (gain and gain > max(CLEAR, SEEN * uncertainty(blocks))):
            return 0
        steady = gain is None or stdev(blocks) / math.sqrt(len(blocks)) < SCATTER
        return max(0, (BASELINE if steady else BEFORE) - have)

    def level(self, step: int) -> float | None:
        """How fast it was, None where there are too few."""
        found = self.values(step)
        return level(found) if len(found) >= WARM_UP else None

    @property
    def seconds(self) -> float:
        """How long an iteration takes lately, by the clock; 0 before that is known."""
        if len(self._clock) < 2:
            return 0.0
        (t0, first), (t1, last) = self._clock[0], self._clock[-1]
        return (t1 - t0) / 1e9 / max(1, last - first)

    def _valued(self, value: float, drawn_w: float | None) -> float:
        if not self._energy:
            return value
        return value / drawn_w if drawn_w is not None and drawn_w > 0 else math.nan


DIFFERENT = 0.10
"""A speed that differs by so much after somebody else's change means that the search starts anew."""


class Incumbent:
    """`values` by knob; `series` is all that was measured of the run, of which only what came `since` is of
    these values.

    Where the run has gone back to an earlier iteration since, all that is left is of them.
    """

    def __init__(self, series: ObjectiveSeries) -> None:
        self.series = series
        self.values: dict[str, KnobValue] = {}
        self._step = self._backwards = 0
        self._level: float | None = None  # the speed before somebody else's change

    def rest(self, observation: Observation, since: int) -> None:
        """What is in effect now is to be compared with, measured from the iteration `since` on."""
        self.values = observation.values()
        self._step, self._backwards = since, self.series.backwards

    def rest_anew(self, observation: Observation) -> None:
        """The same, where it has just changed: from the next iterations on that tell something."""
        self.rest(observation, self.series.newest + 1 + WARM_UP)

    def differs(self, observation: Observation) -> bool:
        """Whether somebody else, or the run itself, has changed a knob."""
        settings = observation.settings()
        return {name: self.values.get(name) for name in settings} != settings

    @property
    def seen(self) -> bool:
        """Whether an iteration with these values has been."""
        return bool(self.series.since(self._since))

    @property
    def level(self) -> float | None:
        """How fast the run is with these values lately, None where too little is known."""
        return self.series.level(self._since)

    @property
    def baseline(self) -> list[float]:
        """What a trial is compared with."""
        return self.series.values(self._since)

    def missing(self, gain: float | None) -> int:
        """How many iterations it still needs, where what is tried next is expected to bring `gain` (None:
        unknown)."""
        return self.series.missing(self._since, gain)

    @property
    def _since(self) -> int:
        return self._step if self._backwards == self.series.backwards else 0

    def left(self) -> None:
        """These values are not in effect any more, and nobody tried others: how fast the run was with
        them."""
        self._level = self._level or self.series.level(self._since)

    def explained(self) -> None:
        """Why the run is as fast as it is now is known."""
        self._level = None

    def another(self) -> bool:
        """Whether the run is another one since `left`, by its speed; asked once, when enough has been
        measured."""
        before, self._level = self._level, None
        now = self.series.level(self._since)
        return before is not None and now is not None and abs(now / before - 1) >= DIFFERENT
