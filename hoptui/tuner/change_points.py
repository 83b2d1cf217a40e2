"""Changes of the throughput without a command: a neighbour, heat, other data.

The method is a two-sided CUSUM (Page, Biometrika 41, 1954) on medians of five iterations, which spikes do not
move. Its slack is wider than the slow drift of any run. The usual slack covers only the noise: a drift of ±3
% would raise alarms all day. If more than five short iterations arrive between two looks, they form one
block: an effect that ends within a second is not a change.

Medians do not show waits for data that occur in one iteration of eight. `Waits` detects these.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobValue
from hoptui.domain.throughput import level, uneven, usable
from hoptui.tuner.effect import BLOCK, WARM_UP
from hoptui.tuner.observation import ChangePoint, MemoryReading, Observation
from hoptui.tuner.search.memory_model import NOTICED

STRETCH = 90
"""Iterations of a stretch, for runs in which waits count. Each worker delivers several times in it."""
NEWEST = 25
"""The newest iterations of a stretch. A change of the medians must show in their time as well."""
APART = 0.2
"""Two stretches with waits differ if their rates differ by more than this, in logarithms. Drift and residual
noise are smaller."""
STARVES = 0.25
"""Waits count if they put the median off by more than this, in logarithms."""
FOLLOW = 1 / 16
"""How fast the level follows a run without outliers: a drift is not a change."""


class LevelChange(NamedTuple):
    """The speed before and after, the first iteration of the change, and the observation just before it."""

    step: int
    before: float
    after: float
    then: Observation


class Waits:
    """Compares stretches where waits count before or after. Two deviating stretches in a row are a change."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, float]] = deque(maxlen=STRETCH)
        self._fresh = 0  # of these, since the stretch before
        self._usual: float | None = None
        self._before = False  # whether waits counted in the stretches that are compared with
        self.counted = False  # and in the newest one
        self._then: Observation | None = None
        self._off: int | None = None  # the first iteration of a stretch that was off

    def take(self, step: int, value: float) -> None:
        """Add an iteration."""
        self._newest.append((step, value))
        self._fresh += 1

    def confirm(self, before: float, after: float) -> bool:
        """Whether the time of the newest iterations confirms at least half of the change of the medians.

        False where waits count.
        """
        if self._usual is None:
            return True
        rates = [value for _, value in self._newest]
        if self.counted or (len(rates) == STRETCH and _starves(rates)):
            return False
        newest = rates[-NEWEST:]
        seen = math.log(len(newest) / sum(1 / v for v in newest) / self._usual)
        return seen / math.log(after / before) >= 0.5

    def look(self, observation: Observation) -> LevelChange | None:
        """Compare the newest stretch once it is complete. Return the change, if there is one."""
        if self._fresh < STRETCH:
            return None
        first, rates = self._newest[0][0], [value for _, value in self._newest]
        self._fresh = 0
        now, self.counted = level(rates), _starves(rates)
        if self._usual is None or self._then is None:
            self._usual, self._before, self._then = now, self.counted, observation
            return None
        off = abs(math.log(now / self._usual))
        if off <= APART or not (self.counted or self._before):
            self._usual *= (now / self._usual) ** FOLLOW
            self._before, self._then, self._off = self.counted, observation, None
            return None
        if self._off is None:
            self._off = first
            return None
        return LevelChange(self._off, self._usual, now, self._then)


def _starves(rates: Sequence[float]) -> bool:
    """Whether waits count too much to be a few spikes."""
    return uneven(rates) and abs(math.log(median(rates) / level(rates))) > STARVES


LEARNED = 8
"""Blocks from which the level is learned."""
SLACK, SLACK_SIGMAS = 0.08, 2.0
"""The deviation of a block that does not count: in logarithms, and in standard deviations."""
ALARM, ALARM_SIGMAS = 0.4, 6.0
"""The sum of deviations beyond the slack that raises an alarm: a drop by 15 % after 5 blocks, by half after
3."""
MOST = 0.15
"""The most that one block adds to the sum. Of hundreds of thousands of blocks, some consist of spikes
only."""
CALM = 0.75
"""The part of the slack in which the level follows."""
LEAST_SIGMA = 0.01
OUTLIER = 3.0
"""The largest jump between two blocks that counts for the variance, in standard deviations."""
BUSIER = 0.2
"""A share of the host's CPUs that makes a difference."""
FULL, SCARCE = 0.9, 0.05
"""CPUs with a load above `FULL` have no reserve. From `SCARCE` on, a larger share for other processes then
slows the run."""
BACK = 3
"""The state before a change is read this many calm blocks back. The newest block may already show the
cause."""


class ChangePointDetector:
    """Watches one run for its whole lifetime, with or without a tuner. It starts over at each knob change."""

    def __init__(self) -> None:
        self._begin: tuple[int, dict[str, KnobValue]] | None = None
        self._newest = -1
        self._forget(0)

    def look(self, observation: Observation) -> ChangePoint | None:
        """Return the change that the newest iterations show, at the look that finds it."""
        begin = observation.epoch, observation.settings()
        backwards = bool(observation.points) and observation.points[-1][0] < self._newest
        if begin != self._begin or backwards:
            if self._begin is None or backwards:
                self._newest = observation.points[0][0] - 1 if observation.points else -1
            elif observation.points:
                self._newest = max(self._newest, observation.points[-1][0])
            self._begin = begin
            self._forget(self._newest + 1 + WARM_UP)
        for step, value in observation.points:
            if step <= self._newest:
                continue
            self._newest = step
            if step >= self._start and usable((value,)):
                self._block.append((step, math.log(value)))
                self._waits.take(step, value)
        if self._waits.counted:
            self._block.clear()
            self._learning.clear()
            self._up = self._down = 0.0
        found = self._take(observation) if len(self._block) >= BLOCK else None
        change = self._waits.look(observation) if found is None else None
        return found if change is None else self._alarm(observation, change)

    def _forget(self, start: int) -> None:
        self._start = start
        self._block: list[tuple[int, float]] = []
        self._learning: list[float] = []
        self._level = self._last = math.nan
        self._variance = 0.0
        self._up = self._down = 0.0
        self._recent: deque[tuple[int, float]] = deque(
            maxlen=LEARNED
        )  # blocks that deviate, by their first iteration
        self._calm: deque[Observation] = deque(maxlen=BACK)
        self._waits: Waits = Waits()

    def _take(self, observation: Observation) -> ChangePoint | None:
        first, y = self._block[0][0], median(value for _, value in self._block)
        self._block.clear()
        if len(self._learning) < LEARNED:
            self._learning.append(y)
            self._calm.append(observation)
            if len(self._learning) == LEARNED:
                self._level = fmean(self._learning)
                self._variance = fmean((b - a) ** 2 / 2 for a, b in pairwise(self._learning))
                self._last = y
            return None
        # The variance comes from jumps between neighbouring blocks. A shift is in one jump only, but in every
        # later distance from the level.
        jump, self._last = (y - self._last) ** 2 / 2, y
        self._variance += FOLLOW * (min(jump, OUTLIER**2 * self._variance) - self._variance)
        off = y - self._level
        sigma = max(math.sqrt(self._variance), LEAST_SIGMA)
        slack = max(SLACK, SLACK_SIGMAS * sigma)
        self._up = max(0.0, self._up + min(off - slack, MOST))
        self._down = max(0.0, self._down + min(-off - slack, MOST))
        if not self._up and not self._down:
            self._recent.clear()
            if (
                abs(off) < CALM * slack
            ):  # a larger deviation may be the start of a change, which the level must not follow
                self._level += FOLLOW * off
                self._calm.append(observation)
            return None
        self._recent.append((first, y))
        if max(self._up, self._down) <= max(ALARM, ALARM_SIGMAS * sigma):
            return None
        before, after = math.exp(self._level), math.exp(median(value for _, value in self._recent))
        if abs(math.log(after / before)) < SLACK or not self._waits.confirm(before, after):
            return None
        return self._alarm(observation, LevelChange(self._recent[0][0], before, after, self._calm[0]))

    def _alarm(self, observation: Observation, change: LevelChange) -> ChangePoint:
        began, before, after, then = change
        cause = likely(then, observation, slower=after < before) or _none_seen(observation)
        self._forget(self._newest + 1)
        return ChangePoint(observation.t, began, before, after, cause)


def likely(then: Observation, now: Observation, *, slower: bool) -> Fact | None:
    """Another change that explains a slower or faster run. None if there is none."""
    worse, better = (now, then) if slower else (then, now)
    if worse.throttled and not better.throttled:
        return fact("shift.throttled", reason=now.throttled) if slower else fact("shift.not_throttled")
    moved = _others(worse.memory, better.memory)
    if moved:
        return fact("shift.memory_taken" if slower else "shift.memory_freed", size_bytes=moved)
    least = SCARCE if (worse.host_busy or 0.0) >= FULL else BUSIER
    if share := _busier(then.others_busy, now.others_busy, least, slower=slower):
        return fact("shift.others_busier" if slower else "shift.others_calmer", **share)
    if share := _busier(then.host_busy, now.host_busy, BUSIER, slower=slower):
        return fact("shift.host_busier" if slower else "shift.host_calmer", **share)
    return None


def _none_seen(now: Observation) -> Fact:
    """The fact that no cause was found, and what may hide one."""
    if now.host_busy is None or now.host_busy < FULL:
        return fact("shift.no_cause")
    return fact("shift.no_cause_busy", share=now.host_busy)


def _busier(then: float | None, now: float | None, least: float, *, slower: bool) -> dict[str, float]:
    """The two shares, if they differ by more than `least` in the expected direction. Empty otherwise."""
    if then is None or now is None or (now - then if slower else then - now) <= least:
        return {}
    return {"before": then, "share": now}


def _others(worse: MemoryReading | None, better: MemoryReading | None) -> int:
    if worse is None or better is None:
        return 0
    more = worse.others - better.others
    return more if more > NOTICED * worse.total else 0
