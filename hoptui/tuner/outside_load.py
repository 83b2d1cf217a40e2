"""Whether other processes began or ceased to use the CPUs in a trial, which makes it void."""

from __future__ import annotations

from collections import deque
from statistics import fmean

from hoptui.domain.facts import Fact, fact
from hoptui.tuner.observation import Observation

BEFORE = 10
"""The newest looks before a trial that are compared with those in it."""
ENOUGH = 5
"""Looks in a trial that suffice."""
OLD = 3
"""The first looks in a trial. Their readings are means of some seconds before."""
CHANGED = 0.2
"""The share of all CPUs from which a change counts."""
FULL = 0.95
"""A host that is as busy as this is full."""


class OutsideLoad:
    """The share of the CPUs that other processes use, before a trial and in it.

    Only iterations count. While a run compiles, its compiler may count as another process.
    """

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=BEFORE)
        self._now: deque[float] = deque(maxlen=ENOUGH)
        self._looks = 0
        self._host = 0.0

    def before(self, observation: Observation) -> None:
        """Add what is read while nothing is tried."""
        self._now.clear()
        self._looks = 0
        if observation.others_busy is not None:
            self._before.append(observation.others_busy)

    def within(self, observation: Observation) -> None:
        """Add what is read in a trial that is in effect."""
        self._looks += 1
        if observation.others_busy is not None and self._looks > OLD:
            self._now.append(observation.others_busy)
            self._host = observation.host_busy or 0.0

    def changed(self) -> Fact | None:
        """Return how it has changed in the trial. None if it has not, or is unknown."""
        if len(self._now) < ENOUGH or len(self._before) < ENOUGH:
            return None
        before, now = fmean(self._before), fmean(self._now)
        return (
            fact("trial.load_changed", before=before, after=now) if differs(before, now, self._host) else None
        )


def differs(before: float, after: float, host: float) -> bool:
    """Return whether the share of other processes has changed. `host` is that of all now.

    On a full host, a run that takes more leaves less for others, so less is no change there.
    """
    return abs(after - before) >= CHANGED and (after > before or host < FULL)
