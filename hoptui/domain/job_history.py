"""The last minutes of a job: the readings of all ranks and nodes, in arrays. Bounded, whatever arrives."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hoptui.domain.jobs import JobState, NodeSummary, RankGpu, RankSummary

KEPT_S = 300.0
"""How long moments are kept."""
MOST_MOMENTS, LEAST_MOMENTS = 300, 30
MOST_VALUES = 300_000
"""Values of one reading. A job of more ranks has fewer moments, further apart."""
MOST_RANKS = 65_536
EARLY_S = 0.2
"""By how much a state may come before its time."""
NAN = math.nan


def _of_gpu(read: Callable[[RankGpu], float | None]) -> Callable[[RankSummary], float | None]:
    return lambda rank: read(rank.gpu) if rank.gpu is not None else None


def _memory(gpu: RankGpu) -> float | None:
    """The share of the memory that is used, from 0 to 1."""
    return gpu.memory_used / gpu.memory_total if gpu.memory_used is not None and gpu.memory_total else None


RANK_READINGS: Mapping[str, Callable[[RankSummary], float | None]] = {
    "iteration_s": lambda rank: rank.iteration_s,
    "own_s": lambda rank: rank.own_s,
    "waiting": lambda rank: rank.waiting,
    "utilization": _of_gpu(lambda gpu: gpu.utilization),
    "power_w": _of_gpu(lambda gpu: gpu.power_w),
    "memory": _of_gpu(_memory),
    "clock_mhz": _of_gpu(lambda gpu: gpu.clock_mhz),
    "progress_age_s": lambda rank: rank.progress_age_s,
    "nvlink_bytes_s": _of_gpu(lambda gpu: gpu.nvlink_bytes_s),
}
"""The readings of a rank: seconds, shares from 0 to 1, watts, MHz, bytes per second."""


def network_bytes_s(node: NodeSummary) -> float | None:
    """Return what the network interfaces of a node send and receive, None if one of them is unknown."""
    if node.sent_bytes_s is None or node.received_bytes_s is None:
        return None
    return node.sent_bytes_s + node.received_bytes_s


class JobMoment(NamedTuple):
    """The readings at a moment. `t` is in seconds, by the clock of whoever keeps the history.

    `ranks` has an array for each of `RANK_READINGS`, by rank. `network` is by the place of the node. What is
    unknown is NaN, also all of a node that is not live.
    """

    t: float
    ranks: Mapping[str, Sequence[float]]
    network: Sequence[float]

    def of_rank(self, reading: str, rank: int) -> float:
        """Return a reading of a rank, NaN if it is unknown."""
        found = self.ranks[reading]
        return found[rank] if 0 <= rank < len(found) else NAN


class JobHistory:
    """The newest state of a job, and its moments of the last `KEPT_S`, oldest first.

    A restart, and another number of ranks, begin anew.
    """

    def __init__(self) -> None:
        self.state: JobState | None = None
        self._every_s = 0.0
        self._moments: deque[JobMoment] = deque(maxlen=MOST_MOMENTS)

    def add(self, t: float, state: JobState) -> None:
        """Take a state of the moment `t`, in seconds. An earlier moment than the last one begins anew."""
        before = self.state
        if before is None or (before.run, before.epoch, before.world) != (
            state.run,
            state.epoch,
            state.world,
        ):
            most = max(LEAST_MOMENTS, min(MOST_MOMENTS, MOST_VALUES // max(1, state.world)))
            self._moments = deque(maxlen=most)
            self._every_s = KEPT_S / most
        elif self._moments and t < self._moments[-1].t:
            self._moments.clear()
        self.state = state
        # A state that comes a little early is not left out.
        if not self._moments or t - self._moments[-1].t >= self._every_s - EARLY_S:
            self._moments.append(moment(t, state))

    def fill(self, state: JobState, moments: Iterable[JobMoment]) -> None:
        """Take a state and all moments up to it, oldest first, as a recording has them."""
        self.state = state
        self._moments = deque(moments, maxlen=MOST_MOMENTS)

    @property
    def moments(self) -> list[JobMoment]:
        """The moments of the last `KEPT_S`, oldest first."""
        kept = list(self._moments)  # at once: another thread may add one
        return last(kept, KEPT_S)


def moment(t: float, state: JobState) -> JobMoment:
    """Return the readings of a state."""
    world = min(max(state.world, 0), MOST_RANKS)
    ranks = {name: array("f", [NAN]) * world for name in RANK_READINGS}
    network = array("f", [NAN]) * len(state.nodes)
    for place, (node, summary) in enumerate((node, node.summary) for node in state.nodes):
        if summary is None or node.condition != "live":
            continue
        network[place] = _number(network_bytes_s(summary))
        for rank in summary.ranks:
            if 0 <= rank.rank < world:
                for name, read in RANK_READINGS.items():
                    ranks[name][rank.rank] = _number(read(rank))
    return JobMoment(t, ranks, network)


def _number(value: float | None) -> float:
    return NAN if value is None else value


def recent(moments: Sequence[JobMoment], reading: str) -> list[float]:
    """Return the mean of a reading over some moments, by rank, NaN where it is not known."""
    rows = [one.ranks[reading] for one in moments]
    return [NAN if (found := mean(values)) is None else found for values in zip(*rows, strict=True)]


def recent_network(moments: Sequence[JobMoment], place: int) -> float | None:
    """Return the mean of the bytes per second of a node over some moments, None if unknown."""
    return mean(one.network[place] if place < len(one.network) else NAN for one in moments)


def last(moments: Sequence[JobMoment], seconds: float) -> list[JobMoment]:
    """Return the moments of the last seconds before the newest one, and that one."""
    return [one for one in moments if one.t >= moments[-1].t - seconds]


def mean(values: Iterable[float]) -> float | None:
    """Return the mean of the known values, None if there are none."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else None
