"""Changes of the throughput that nobody asked for: a neighbour, heat, other data.

Two-sided CUSUM (Page, Biometrika 41, 1954) on medians of five iterations, which spikes do not move. Its slack
is wider than the slow drift of any run: with the usual one, made for the noise alone, a drift of ±3 % raises
alarms all day. Of iterations so short that more than five come from one look to the next, all of these are
one block: what is over after a second is no change.

Medians do not see how long a run waits for data in one iteration of eight, nor that it has begun to:
`waits.py` does.
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
"""Iterations that are compared where waits count: several of all workers."""
NEWEST = 25
"""The newest of them, in which a change that medians tell of must be seen."""
APART = 0.2
"""By so much, in logarithms, a stretch with waits differs from the one before; drifts and what is left of
noise are less."""
STARVES = 0.25
"""And by so much, in logarithms, a median is wrong of iterations that wait."""
FOLLOW = 1 / 16
"""How fast the level follows a run in which nothing stands out: a drift is no change."""


class LevelChange(NamedTuple):
    """How fast the run was and is, since which iteration, and what was seen just before."""

    step: int
    before: float
    after: float
    then: Observation


class Waits:
    """Compares stretches where waits count before or after: two in a row that are off are a change."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, float]] = deque(maxlen=STRETCH)
        self._fresh = 0  # of these, since the stretch before
        self._usual: float | None = None
        self._before = False  # whether waits counted in the stretches that are compared with
        self.counted = False  # and in the newest one
        self._then: Observation | None = None
        self._off: int | None = None  # the first iteration of a stretch that was off

    def take(self, step: int, value: float) -> None:
        """An iteration."""
        self._newest.append((step, value))
        self._fresh += 1

    def confirm(self, before: float, after: float) -> bool:
        """Whether the time that the newest iterations took agrees with what medians tell, at least by
        half."""
        if self._usual is None:
            return True
        rates = [value for _, value in self._newest]
        if self.counted or (len(rates) == STRETCH and _starves(rates)):
            return False
        newest = rates[-NEWEST:]
        seen = math.log(len(newest) / sum(1 / v for v in newest) / self._usual)
        return seen / math.log(after / before) >= 0.5

    def look(self, observation: Observation) -> LevelChange | None:
        """What the newest stretch tells, once it is whole."""
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
    """Whether waits count so much that no few spikes can be meant."""
    return uneven(rates) and abs(math.log(median(rates) / level(rates))) > STARVES


LEARNED = 8
"""Blocks that the level is learned from."""
SLACK, SLACK_SIGMAS = 0.08, 2.0
"""What a block may differ by without counting, in logarithms, and in its standard deviation."""
ALARM, ALARM_SIGMAS = 0.4, 6.0
"""The sum of what is beyond it that is an alarm: a drop by 15 % after 5 blocks, by half after 3."""
MOST = 0.15
"""What a block adds at most: of hundreds of thousands some are all spikes."""
"""How fast the level follows a run in which nothing stands out: a drift is no alarm."""
CALM = 0.75
"""The part of the slack in which the level follows."""
LEAST_SIGMA = 0.01
OUTLIER = 3.0
"""A block farther from the one before than so many standard deviations counts for so many."""
BUSIER = 0.2
"""A share of the host's CPUs that makes a difference."""
FULL, SCARCE = 0.9, 0.05
"""CPUs that are at work for more than that have nothing to spare: what others take more of them, from so much
on, the run has less."""
BACK = 3
"""What was before is looked up so many looks ago: what has just come may be the cause already."""


class ChangePointDetector:
    """Looks at one run for as long as it lives, tuned or not; each change of a knob is a new beginning."""

    def __init__(self) -> None:
        self._begin: tuple[int, dict[str, KnobValue]] | None = None
        self._newest = -1
        self._forget(0)

    def look(self, observation: Observation) -> ChangePoint | None:
        """The shift that the newest iterations tell of, at the look that finds it."""
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
        )  # blocks that stand out, by their first iteration
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
        # From one block to the next: a shift moves that once, where the distance from the level would grow
        # with it.
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
            ):  # what is more may be the beginning of a change, which must not be followed
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
    """What else has changed that would make a run slower, or faster; None for nothing."""
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
    """That there is no cause to name, and what would hide one."""
    if now.host_busy is None or now.host_busy < FULL:
        return fact("shift.no_cause")
    return fact("shift.no_cause_busy", share=now.host_busy)


def _busier(then: float | None, now: float | None, least: float, *, slower: bool) -> dict[str, float]:
    """The two shares, where they differ by more than `least` in the way asked for; else nothing."""
    if then is None or now is None or (now - then if slower else then - now) <= least:
        return {}
    return {"before": then, "share": now}


def _others(worse: MemoryReading | None, better: MemoryReading | None) -> int:
    if worse is None or better is None:
        return 0
    more = worse.others - better.others
    return more if more > NOTICED * worse.total else 0
