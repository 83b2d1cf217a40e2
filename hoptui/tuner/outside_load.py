"""Whether other processes began or ceased to use the CPUs or the run's GPUs in a trial: it is void then."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from statistics import fmean

from hoptui.domain.facts import Fact, fact
from hoptui.tuner.observation import GpuNeighbours, MemoryReading, Observation
from hoptui.tuner.search.memory_model import NOTICED

BEFORE = 10
"""The newest looks before a trial that are compared with those in it."""
ENOUGH = 5
"""Looks in a trial that suffice."""
OLD = 3
"""The first looks in a trial. Their readings are means of some seconds before."""
CHANGED = 0.2
"""The share of all CPUs, or of a GPU's time, from which a change counts."""
FULL = 0.95
"""A host that is as busy as this is full."""
GONE = 0.02
"""A share of a GPU's time below this is none."""


class OutsideLoad:
    """What other processes use of the CPUs and of the run's GPUs, before a trial and in it.

    Only iterations count. While a run compiles, its compiler may count as another process.
    """

    def __init__(self) -> None:
        self._before: deque[Observation] = deque(maxlen=BEFORE)
        self._now: deque[Observation] = deque(maxlen=ENOUGH)
        self._looks = 0

    def before(self, observation: Observation) -> None:
        """Add what is read while nothing is tried."""
        self._now.clear()
        self._looks = 0
        self._before.append(observation)

    def within(self, observation: Observation) -> None:
        """Add what is read in a trial that is in effect."""
        self._looks += 1
        if self._looks > OLD:
            self._now.append(observation)

    def changed(self) -> Fact | None:
        """Return how it has changed in the trial. None if it has not, or is unknown."""
        if min(len(self._now), len(self._before)) < ENOUGH:
            return None
        return _cpu_change(self._before, self._now) or next(self._gpu_changes(), None)

    def _gpu_changes(self) -> Iterator[Fact]:
        for reading in self._now[-1].memories:
            if reading.gpu and (found := _memory_change(reading.gpu, self._before, self._now)) is not None:
                yield found
        for there in self._now[-1].neighbours:
            if (found := _neighbour_change(there.gpu, self._before, self._now)) is not None:
                yield found


def differs(before: float, after: float, host: float) -> bool:
    """Return whether the share of other processes has changed. `host` is that of all now.

    On a full host, a run that takes more leaves less for others, so less is no change there.
    """
    return abs(after - before) >= CHANGED and (after > before or host < FULL)


Looks = Sequence[Observation] | deque[Observation]


def _cpu_change(before: Looks, now: Looks) -> Fact | None:
    then, after = (
        [one.others_busy for one in looks if one.others_busy is not None] for looks in (before, now)
    )
    if min(len(then), len(after)) < ENOUGH:
        return None
    old, new = fmean(then), fmean(after)
    if not differs(old, new, now[-1].host_busy or 0.0):
        return None
    return fact("trial.load_changed", before=old, after=new)


def _memory_change(gpu: str, before: Looks, now: Looks) -> Fact | None:
    """Return what other processes have taken or given back of a GPU's memory."""
    then, after = (
        [one for look in looks for one in look.memories if one.gpu == gpu] for looks in (before, now)
    )
    if min(len(then), len(after)) < ENOUGH:
        return None
    more = _mean_of_others(after) - _mean_of_others(then)
    if abs(more) <= NOTICED * after[-1].total:
        return None
    return fact("trial.gpu_memory_taken" if more > 0 else "trial.gpu_memory_freed", size_bytes=abs(more))


def _mean_of_others(readings: Iterable[MemoryReading]) -> float:
    return fmean(reading.others for reading in readings)


def _neighbour_change(gpu: str, before: Looks, now: Looks) -> Fact | None:
    """Return how the work of other processes on a GPU has changed.

    Where their share of its time is unknown, a process that has come or gone counts. A share that falls
    counts only if it ends: a run that does more leaves less for others.
    """
    then, after = (
        [one for look in looks for one in look.neighbours if one.gpu == gpu] for looks in (before, now)
    )
    if min(len(then), len(after)) < ENOUGH:
        return None
    old, new = _share(then), _share(after)
    if old is None or new is None:
        return _process_change(then, after)
    if abs(new - old) < CHANGED or GONE < new < old:
        return None
    return fact("trial.gpu_load_changed", before=old, after=new)


def _share(looks: Iterable[GpuNeighbours]) -> float | None:
    """Return the mean share of the GPU's time, None if one is unknown."""
    shares = [look.busy for look in looks]
    known = [share for share in shares if share is not None]
    return fmean(known) if len(known) == len(shares) else None


def _process_change(then: Sequence[GpuNeighbours], after: Sequence[GpuNeighbours]) -> Fact | None:
    """Return a process that is in all looks of the one part and in none of the other."""
    came = frozenset.intersection(*(one.pids for one in after)).difference(chain(*(one.pids for one in then)))
    went = frozenset.intersection(*(one.pids for one in then)).difference(chain(*(one.pids for one in after)))
    if came:
        return fact("trial.gpu_process_came", pid=min(came))
    return fact("trial.gpu_process_went", pid=min(went)) if went else None
