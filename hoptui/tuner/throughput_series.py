"""What the run achieved, iteration by iteration, in the unit of the objective.

The incumbent is the set of values in effect. Every trial is compared with it. It includes since when the
values are in effect, and how fast the run is with them.
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
"""Iterations over which the values in effect are measured before the first trial."""
LEAST, LONG_S = BLOCK * MIN_BLOCKS, 60.0
"""If this few iterations take this long, they suffice. Good settings are worth most to a slow run."""
BEFORE = 90
"""The newest iterations that are compared with. A run whose iterations scatter needs as many as a
baseline."""
SCATTER = 0.015
"""The largest standard error of a baseline's level that is precise enough."""
SEEN = 3.0
"""A gain of more than this many times the uncertainty of its baseline needs no longer baseline."""
COMPARED = 720
"""The newest iterations that a trial is compared with, as far as there are: noise may come in long bursts."""
KEPT = 2000
LOOKS_KEPT = 30
POWER_LAG_NS = 4_000_000_000
"""The power is the mean of 3 s (`hoptui.daemon.tuning.BACK_NS`) of averages over a second each. For so long
after a change has taken effect, it is partly that of the values before."""


class ObjectiveSeries:
    """Values of the newest iterations: throughput, or with the objective `energy` units for each joule.

    `backwards` counts how often the run has gone back to an earlier iteration, which changes the numbering.
    Rows contain no power. The power of all the run's GPUs at the look that first saw an iteration is used
    instead. While it is unknown, or partly that of other values, energy is unknown. `throughput` has the
    throughput of the same run with the objective `energy`. `work` are the units of the iterations that the
    last look brought, None if the durations of these are unknown.
    """

    def __init__(self, objective: Objective) -> None:
        self.metric = ""
        self.backwards = 0
        self.work: float | None = 0.0
        self.throughput = ObjectiveSeries("throughput") if objective == "energy" else None
        self._values: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._clock: deque[tuple[int, int]] = deque(maxlen=LOOKS_KEPT)
        self._newest: int | None = None
        self._start = 0  # the first iterations of a new process do not count
        self._settings: dict[str, KnobValue] = {}
        self._warm_from = -1  # the iteration after which a change has taken effect
        self._lags_until: int | None = 0  # None before that iteration

    @property
    def newest(self) -> int:
        """The newest iteration seen, −1 before the first."""
        return -1 if self._newest is None else self._newest

    def take(self, observation: Observation) -> None:
        """Add the new values of `observation`. Start over if the run has gone back to an earlier
        iteration."""
        points = observation.points
        energy = self.throughput is not None
        self.metric = WORK_PER_JOULE if energy else observation.metric
        self.work = _work_of(observation, self.newest)
        if self.throughput is not None:
            self.throughput.take(observation)
        if not points:
            return
        if self._newest is None or points[-1][0] < self._newest:
            self.backwards += self._newest is not None
            self._values.clear()
            self._clock.clear()
            self._newest = None
            self._start = points[0][0] + WARM_UP
        drawn_w = self._settled_power(observation) if energy else None
        for step, value in points:
            if step > self.newest or self._newest is None:
                self._newest = step
                self._values.append((step, _per_joule(value, drawn_w) if energy else value))
        if not self._clock or self._clock[-1][1] != self.newest:
            self._clock.append((observation.t, self.newest))

    def _settled_power(self, observation: Observation) -> float | None:
        """Return the watts of the values in effect. None while they are unknown or partly those before."""
        settings, newest = observation.settings(), observation.points[-1][0]
        if settings != self._settings:
            self._settings, self._warm_from, self._lags_until = settings, newest + WARM_UP, None
        if self._lags_until is None and newest >= self._warm_from:
            self._lags_until = observation.t + POWER_LAG_NS
        lags = self._lags_until is None or observation.t < self._lags_until
        return None if lags else observation.drawn_w

    def cut(self) -> None:
        """Drop all values: later ones are not comparable with them."""
        self._values.clear()
        self._clock.clear()
        self._start = self.newest + 1 + WARM_UP
        if self.throughput is not None:
            self.throughput.cut()

    def since(self, step: int) -> list[float]:
        """All values of iterations from `step` on, oldest first."""
        first = max(step, self._start)
        skip = next((i for i, (s, _) in enumerate(self._values) if s >= first), len(self._values))
        return [v for _, v in islice(self._values, skip, None)]

    def values(self, step: int) -> list[float]:
        """The newest usable values since `step`, to compare with."""
        return usable(self.since(step))[-BEFORE:]

    def count(self, step: int) -> int:
        """The number of usable values since `step`."""
        return len(usable(self.since(step)))

    def missing(self, step: int, gain: float | None = None) -> int:
        """About how many more values a baseline needs: more if they scatter, fewer if each takes long.

        `gain` is the expected gain of the next trial. A large gain needs few values. An unknown gain (None)
        needs few as well, because an unclear result is tried once more.
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
        """The speed since `step`. None if there are too few values."""
        found = self.values(step)
        return level(found) if len(found) >= WARM_UP else None

    @property
    def seconds(self) -> float:
        """The recent duration of an iteration, in seconds by the clock. 0 while it is unknown."""
        if len(self._clock) < 2:
            return 0.0
        (t0, first), (t1, last) = self._clock[0], self._clock[-1]
        return (t1 - t0) / 1e9 / max(1, last - first)


def _per_joule(value: float, drawn_w: float | None) -> float:
    return value / drawn_w if drawn_w is not None and drawn_w > 0 else math.nan


def _work_of(observation: Observation, newest: int) -> float | None:
    """Return the units of the iterations after `newest`. Those without a known duration are left out. None
    if all of them are."""
    if newest < 0 or not observation.points or observation.points[-1][0] <= newest:
        return 0.0
    seconds = dict(observation.durations)
    if not seconds:
        return None
    return sum(rate * seconds[step] for step, rate in observation.points if step > newest and step in seconds)


DIFFERENT = 0.10
"""If the speed differs by this share after a change by someone else, the search starts over."""


class Incumbent:
    """`values` by knob. `series` holds all measurements of the run; only those since `rest` belong to these
    values.

    After the run has gone back to an earlier iteration, all remaining measurements belong to them.
    """

    def __init__(self, series: ObjectiveSeries) -> None:
        self.series = series
        self.values: dict[str, KnobValue] = {}
        self._step = self._backwards = 0
        self._level: float | None = None  # the speed before a change by someone else

    def rest(self, observation: Observation, since: int) -> None:
        """Make the values in effect the incumbent, measured from the iteration `since` on."""
        self.values = observation.values()
        self._step, self._backwards = since, self.series.backwards

    def rest_anew(self, observation: Observation) -> None:
        """The same right after a change: measured after the warm-up."""
        self.rest(observation, self.series.newest + 1 + WARM_UP)

    def differs(self, observation: Observation) -> bool:
        """Whether a user or the run itself has changed a knob."""
        settings = observation.settings()
        return {name: self.values.get(name) for name in settings} != settings

    @property
    def seen(self) -> bool:
        """Whether at least one iteration ran with these values."""
        return bool(self.series.since(self._since))

    @property
    def level(self) -> float | None:
        """The recent speed with these values. None if too little is known."""
        return self.series.level(self._since)

    @property
    def baseline(self) -> list[float]:
        """The values that a trial is compared with."""
        return usable(self.series.since(self._since))[-COMPARED:]

    @property
    def throughput(self) -> list[float]:
        """The throughput that a trial is compared with, if the objective is another. Empty otherwise."""
        series = self.series.throughput
        return usable(series.since(self._since))[-COMPARED:] if series is not None else []

    @property
    def rate(self) -> float | None:
        """The recent throughput with these values, whatever the objective is. None if too little is known."""
        return (self.series.throughput or self.series).level(self._since)

    def missing(self, gain: float | None) -> int:
        """How many iterations the baseline still needs. `gain` is the expected gain of the next trial (None:
        unknown)."""
        return self.series.missing(self._since, gain)

    @property
    def _since(self) -> int:
        return self._step if self._backwards == self.series.backwards else 0

    def left(self) -> None:
        """Record the speed with these values, which are no longer in effect. The change was not a trial."""
        self._level = self._level or self.series.level(self._since)

    def explained(self) -> None:
        """Forget the earlier speed: the reason for the present speed is known."""
        self._level = None

    def another(self) -> bool:
        """Whether the speed has changed since `left`. The answer is given once, after enough measurements."""
        before, self._level = self._level, None
        now = self.series.level(self._since)
        return before is not None and now is not None and abs(now / before - 1) >= DIFFERENT
