"""The recording of a node of a run on several nodes: its ranks, what they did, and the GPUs they use."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from hoptui.domain.hot_lines import HotLine, hot_lines, sampled
from hoptui.domain.job_history import NAN
from hoptui.domain.progress import ITERATION
from hoptui.domain.stack_groups import WAITS
from hoptui.model.recorded.clock_offsets import ClockOffset
from hoptui.model.recorded.store import RecordedStore
from hoptui.protocol.messages import RunState
from hoptui.protocol.record_bytes import RecordError
from hoptui.protocol.recorded_jobs import decode_recorded
from hoptui.recording import Recording, RecordingError
from hoptui.recording.timed_states import JOB

SECOND = 1_000_000_000
LONGEST_MINUTE_NS = 90 * SECOND
"""The samples of a minute say nothing about a moment that is longer before their stamp."""
MOST_MINUTES = 256
"""Minutes of stack samples that are kept."""
GPU_READINGS = {"utilization": "busy", "power_w": "power_w", "clock_mhz": "sm_clock_mhz"}
"""Readings of a rank by those of its GPU. Those in per cent become shares."""
PER_CENT = 0.01


class RankMinute(NamedTuple):
    """What a rank did in a minute: its share of waiting, its samples, and its line with most samples that do
    not wait."""

    waiting: float
    samples: int
    line: HotLine | None


class NodeRecording:
    """An open recording of a node. `offset` leads from the clock of the base to its own.

    `gpus` has the GPU of each rank as far as it is known.
    """

    def __init__(self, recording: Recording, store: RecordedStore, offset: ClockOffset) -> None:
        self.recording = recording
        self.store = store
        self.offset = offset
        self.gpus = self._gpus()
        self._stamps, _ = recording.minutes()
        self._minutes: dict[int, dict[int, RankMinute]] = {}

    @property
    def state(self) -> RunState:
        """The last known state of the run on this node."""
        return self.store.chronicle.state

    @property
    def name(self) -> str:
        """The name of the node. Without one, that of the file: recordings of a run have the same name."""
        node = self.store.node
        return (node.host if node is not None else "") or self.recording.path.name

    @property
    def ranks(self) -> dict[int, str]:
        """The source of each rank of this node, in its own recording."""
        run = self.state.run
        found = {self.state.rank: f"run/{run}"}
        found |= {each.rank: f"rank/{run}/{each.rank}" for each in self.state.ranks}
        return dict(sorted(found.items()))

    def at(self, t: int) -> int:
        """Return a stamp of the base by the clock of this node."""
        return t + self.offset.offset_ns

    def minute(self, t: int) -> Mapping[int, RankMinute]:
        """Return what the ranks did in the minute around a stamp of this node, empty without samples."""
        at = bisect_left(self._stamps, t)
        if at == len(self._stamps) or self._stamps[at] - t > LONGEST_MINUTE_NS:
            return {}
        stamp = self._stamps[at]
        if stamp not in self._minutes:
            if len(self._minutes) >= MOST_MINUTES:
                self._minutes.clear()
            self._minutes[stamp] = _read_minute(self.recording, stamp)
        return self._minutes[stamp]

    def readings(self, rank: int, times: Sequence[int], step: int) -> dict[str, list[float]]:
        """Return the time of an iteration and the readings of the GPU of a rank, by name.

        Each has the typical value in the `step` ns before each of the times, which are evenly spaced stamps
        of the base. NaN is unknown.
        """
        found = {"iteration_s": self.typical(self.ranks[rank], ITERATION, times, step)}
        if gpu := self.gpus.get(rank):
            for name, of_gpu in GPU_READINGS.items():
                values = self.typical(f"gpu/{gpu}", of_gpu, times, step)
                found[name] = [PER_CENT * value for value in values] if of_gpu == "busy" else values
        return found

    def typical(self, source: str, name: str, times: Sequence[int], step: int) -> list[float]:
        """Return the typical value of a metric of this node in the `step` ns before each of the times."""
        found = [NAN] * len(times)
        series = self.store.series(source, name)
        if series is None:
            return found
        start = self.at(times[0]) - step + 1
        columns = series.columns(start, self.at(times[-1]), len(times))
        for t, middle in zip(columns.t, columns.middle, strict=True):
            found[min(max(0, (t - start) // step), len(times) - 1)] = middle
        return found

    def _gpus(self) -> dict[int, str]:
        """The GPU of each rank. Recorded states of the run have it.

        Without one it is known of a node of one rank and one GPU.
        """
        with suppress(RecordingError, RecordError):
            stored = self.recording.state_at(JOB, self.store.span[1])
            if stored is not None:
                ranks = (rank for _, rank in decode_recorded(stored[1]).ranks() if rank.rank in self.ranks)
                return {rank.rank: rank.gpu.uuid for rank in ranks if rank.gpu is not None}
        gpus, ranks_here = self.state.gpus, self.state.ranks
        return {self.state.rank: gpus[0]} if len(gpus) == 1 and not ranks_here else {}


def _read_minute(recording: Recording, stamp: int) -> dict[int, RankMinute]:
    """What each rank did in the minute up to a stamp, empty if that is damaged."""
    try:
        found = recording.minute(stamp)
    except RecordingError:
        return {}
    minutes = {}
    for rank, samples in found.ranks.items() if found is not None else ():
        lines = hot_lines(samples)
        waiting = sum(line.share for line in lines if line.kind in WAITS)
        line = next((line for line in lines if line.kind not in WAITS), None)
        minutes[rank] = RankMinute(waiting, sampled(samples), line)
    return minutes
