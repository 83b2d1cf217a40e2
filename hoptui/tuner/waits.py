"""Changes of a run that waits for data, of which medians of a few iterations tell nothing: most of these wait for nothing.

Stretches of many iterations are compared, as `pace.level` has them. That is slow, and only done where waits count.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from hoptui.tuner.scene import Scene
from hoptui.wire.pace import level, uneven

STRETCH = 90
"""Iterations that are compared where waits count: several of all workers."""
NEWEST = 25
"""The newest of them, in which a change that medians tell of must be seen."""
APART = 0.2
"""By so much, in logarithms, a stretch with waits differs from the one before; drifts and what is left of noise are less."""
STARVES = 0.25
"""And by so much, in logarithms, a median is wrong of iterations that wait."""
FOLLOW = 1 / 16
"""How fast the level follows a run in which nothing stands out: a drift is no change."""


class LevelChange(NamedTuple):
    """How fast the run was and is, since which iteration, and what was seen just before."""

    step: int
    before: float
    after: float
    then: Scene


class Waits:
    """Compares stretches where waits count before or after: two in a row that are off are a change."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, float]] = deque(maxlen=STRETCH)
        self._fresh = 0  # of these, since the stretch before
        self._usual: float | None = None
        self._before = False  # whether waits counted in the stretches that are compared with
        self.counted = False  # and in the newest one
        self._then: Scene | None = None
        self._off: int | None = None  # the first iteration of a stretch that was off

    def take(self, step: int, value: float) -> None:
        """An iteration."""
        self._newest.append((step, value))
        self._fresh += 1

    def confirm(self, before: float, after: float) -> bool:
        """Whether the time that the newest iterations took agrees with what medians tell, at least by half."""
        if self._usual is None:
            return True
        rates = [value for _, value in self._newest]
        if self.counted or (len(rates) == STRETCH and _starves(rates)):
            return False
        newest = rates[-NEWEST:]
        seen = math.log(len(newest) / sum(1 / v for v in newest) / self._usual)
        return seen / math.log(after / before) >= 0.5

    def look(self, scene: Scene) -> LevelChange | None:
        """What the newest stretch tells, once it is whole."""
        if self._fresh < STRETCH:
            return None
        first, rates = self._newest[0][0], [value for _, value in self._newest]
        self._fresh = 0
        now, self.counted = level(rates), _starves(rates)
        if self._usual is None or self._then is None:
            self._usual, self._before, self._then = now, self.counted, scene
            return None
        off = abs(math.log(now / self._usual))
        if off <= APART or not (self.counted or self._before):
            self._usual *= (now / self._usual) ** FOLLOW
            self._before, self._then, self._off = self.counted, scene, None
            return None
        if self._off is None:
            self._off = first
            return None
        return LevelChange(self._off, self._usual, now, self._then)


def _starves(rates: Sequence[float]) -> bool:
    """Whether waits count so much that no few spikes can be meant."""
    return uneven(rates) and abs(math.log(median(rates) / level(rates))) > STARVES
