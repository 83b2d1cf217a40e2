"""The recordings of several nodes of one run as one store: the ranks of all files, by the clock of the first.

The file with rank 0 is the base: its host, GPUs, events and commands are shown as in a replay of it alone.
The rows of the other ranks are the sources `rank/<run id>/<rank>`, as on one node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from hoptui.domain.hot_lines import HotLine, hot_lines
from hoptui.domain.job_history import KEPT_S, NAN, RANK_READINGS, JobHistory, JobMoment
from hoptui.domain.jobs import JobNode, JobState, NodeSummary, RankCondition, RankGpu, RankSummary
from hoptui.domain.progress import ITERATION
from hoptui.domain.stack_groups import WAITS
from hoptui.model.detail_requests import STEPS
from hoptui.model.recorded.clock_offsets import ClockOffset, clock_note, clock_offset
from hoptui.model.recorded.store import RecordedSeries, RecordedSteps, RecordedStore
from hoptui.model.series import SeriesColumns, SeriesWindow
from hoptui.presentation import stacks
from hoptui.protocol.job_records import RecordError, decode_state
from hoptui.protocol.messages import RankState, RunState
from hoptui.recording import Recording, RecordingError

SECOND = 1_000_000_000
MOST_ROWS = 200_000
"""Rows of a run that are read to compare clocks: the newest ones."""
MOMENTS = 100
"""Moments of the history at a position."""
CURRENT_S = 30.0
"""A rank without a row for so long, beside the usual time of an iteration, is not live at a position."""
MOST_MINUTES = 256
"""Minutes of stack samples that are kept."""


class JoinError(Exception):
    """The recordings cannot be joined. The message is one sentence."""


class _Minute(NamedTuple):
    """What a rank did in a minute: its share of waiting, and its line with most samples that do not wait."""

    waiting: float
    line: HotLine | None


class _Part:
    """The recording of one node. `offset` leads from the clock of the base to its own."""

    def __init__(self, recording: Recording, store: RecordedStore, offset: ClockOffset) -> None:
        self.recording = recording
        self.store = store
        self.offset = offset
        self.gpus = _gpus(self)
        self._stamps, _ = recording.minutes()
        self._minutes: dict[int, dict[int, _Minute]] = {}

    @property
    def state(self) -> RunState:
        """The last known state of the run on this node."""
        return self.store.chronicle.state

    @property
    def ranks(self) -> dict[int, str]:
        """The source of each rank of this node, in its own recording."""
        run = self.state.run
        found = {self.state.rank: f"run/{run}"}
        found |= {each.rank: f"rank/{run}/{each.rank}" for each in self.state.ranks}
        return dict(sorted(found.items()))

    def at(self, t: int) -> int:
        """A stamp of the base, by the clock of this node."""
        return t + self.offset.offset_ns

    def minute(self, t: int) -> Mapping[int, _Minute]:
        """What the ranks did in the minute around a stamp of this node, empty without samples."""
        at = bisect_left(self._stamps, t)
        if at == len(self._stamps):
            return {}
        stamp = self._stamps[at]
        if stamp not in self._minutes:
            if len(self._minutes) >= MOST_MINUTES:
                self._minutes.clear()
            self._minutes[stamp] = _read_minute(self.recording, stamp)
        return self._minutes[stamp]


class MovedSeries(RecordedSeries):
    """A metric of another node by the clock of the base."""

    def __init__(self, part: _Part, source: str, name: str) -> None:
        super().__init__(part.store, source, name)
        self._offset = part.offset.offset_ns

    @property
    def last_t(self) -> int:
        found = super().last_t
        return found - self._offset if found else 0

    @property
    def first_t(self) -> int:
        return super().first_t - self._offset

    def window(self, t0: int, t1: int, points: int) -> SeriesWindow:
        found = super().window(t0 + self._offset, t1 + self._offset, points)
        return found._replace(t=[t - self._offset for t in found.t])

    def columns(self, t0: int, t1: int, points: int) -> SeriesColumns:
        found = super().columns(t0 + self._offset, t1 + self._offset, points)
        return found._replace(t=[t - self._offset for t in found.t])


class MovedSteps(MovedSeries, RecordedSteps):
    """The iterations of another node by the clock of the base."""


class JoinedStore(RecordedStore):
    """The ranks of several recordings of one run. `offsets` has the clock of each other file, by its path.

    Raises:
        JoinError: they are not of one run, or two of them are of one node.
        RecordingError: one of them cannot be read, or is empty.
    """

    def __init__(self, recordings: Sequence[Recording]) -> None:
        opened = [(recording, RecordedStore(recording)) for recording in recordings]
        _check(opened)
        base, *others = sorted(opened, key=lambda pair: pair[1].chronicle.state.rank)
        super().__init__(base[0])
        ends = _boundaries(base[0], self.run_id)
        self._own = _Part(base[0], self, ClockOffset(0, 0, len(ends)))
        self._others = [
            _Part(recording, store, _offset(base[0], ends, recording, self.run_id))
            for recording, store in others
        ]
        self.offsets = {part.recording.path: part.offset for part in self._others}
        spans = [self.span]
        for part in self._others:
            first, last = part.store.span
            spans.append((first - part.offset.offset_ns, last - part.offset.offset_ns))
        self.span = min(first for first, _ in spans), max(last for _, last in spans)
        self._places = self._sources()
        self._moved: dict[tuple[str, str], MovedSeries] = {}
        self._joined: tuple[int, JobHistory] | None = None
        self.seek(self.span[0])

    def _sources(self) -> dict[str, tuple[_Part, str]]:
        """Where the sources of other nodes are: the part and the name in its recording."""
        run = self.run_id
        return {
            f"rank/{run}/{rank}": (part, source)
            for part in self._others
            for rank, source in part.ranks.items()
        }

    def clock_notes(self) -> list[str]:
        """Return a sentence on the clock of each other file: how far ahead, and how exactly."""
        base = self._own.recording
        return [
            clock_note(
                part.recording.path.name,
                base.path.name,
                part.offset,
                part.offset.offset_ns + part.recording.wall_offset_ns - base.wall_offset_ns,
            )
            for part in self._others
        ]

    def seek(self, t: int) -> None:
        super().seek(t)
        for part in getattr(self, "_others", ()):
            part.store.seek(part.at(self.now()))

    @property
    def problem(self) -> str:
        problems = [super().problem, *(part.store.problem for part in self._others)]
        return next(filter(None, problems), "")

    # rows ---------------------------------------------------------------------------------------------------

    def series(self, source: str, name: str) -> RecordedSeries | None:
        if source not in self._places:
            return super().series(source, name)
        part, there = self._places[source]
        if part.store.series(there, name) is None:
            return None
        return self._moved.setdefault((source, name), MovedSeries(part, there, name))

    def steps(self, source: str) -> RecordedSteps | None:
        if source not in self._places:
            return super().steps(source)
        part, there = self._places[source]
        return MovedSteps(part, there, STEPS) if part.store.steps(there) is not None else None

    def names(self, source: str) -> list[str]:
        if source not in self._places:
            return super().names(source)
        part, there = self._places[source]
        return part.store.names(there)

    def latest(self, source: str) -> dict[str, float]:
        if source not in self._places:
            return super().latest(source)
        part, there = self._places[source]
        return part.store.latest(there)

    # the run ------------------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunState | None:
        """Return the run with the ranks of all files."""
        found = super().run(run_id)
        if found is None:
            return None
        ranks = {each.rank: each for each in found.ranks}
        for part in self._others:
            ranks[part.state.rank] = RankState(rank=part.state.rank, pid=part.state.pid)
            ranks |= {each.rank: each for each in part.state.ranks}
        ranks.pop(found.rank, None)
        return structs.replace(found, ranks=tuple(ranks[rank] for rank in sorted(ranks)))

    def job(self, run_id: str) -> JobHistory | None:
        """Return the job at the position, with its last minutes."""
        if run_id != self.run_id:
            return None
        second = self.now() // SECOND
        if self._joined is None or self._joined[0] != second:
            history = JobHistory()
            history.fill(self._state(), self._moments())
            self._joined = second, history
        return self._joined[1]

    @property
    def _parts(self) -> list[_Part]:
        return [self._own, *self._others]

    def _state(self) -> JobState:
        t = self.now()
        nodes = tuple(self._job_node(index, part, t) for index, part in enumerate(self._parts))
        world = max(self._own.state.world, 1 + max(max(part.ranks) for part in self._parts))
        return JobState(run=self.run_id, epoch=self._own.state.epoch, world=world, nodes=nodes)

    def _job_node(self, index: int, part: _Part, t: int) -> JobNode:
        host = part.store.latest("host")
        used, whole = host.get("memory_used_bytes"), host.get("memory_total_bytes")
        cpu = host.get("cpu_percent")
        node = part.store.node
        ranks = tuple(self._rank(part, rank, source, t) for rank, source in part.ranks.items())
        first, last = part.store.span
        here = first <= part.at(t) <= last
        return JobNode(
            index=index,
            condition="live" if here else "left",
            age_s=0.0 if here else max(0.0, (part.at(t) - last) / SECOND),
            summary=NodeSummary(
                host=(node.host if node is not None else "") or part.recording.path.name,
                run=self.run_id,
                epoch=part.state.epoch,
                number=0,
                wall=(part.at(t) + part.recording.wall_offset_ns) / SECOND,
                ranks=ranks,
                cpu=cpu / 100 if cpu is not None else None,
                memory=used / whole if used is not None and whole else None,
                sent_bytes_s=host.get("net_sent_bytes_per_s"),
                received_bytes_s=host.get("net_received_bytes_per_s"),
            ),
        )

    def _rank(self, part: _Part, rank: int, source: str, t: int) -> RankSummary:
        steps = part.store.steps(source)
        latest = part.store.latest(source)
        age_s = (part.at(t) - steps.last_t) / SECOND if steps is not None and steps.last_t else None
        done = part.minute(part.at(t)).get(rank)
        line = done.line if done is not None else None
        lead = rank == part.state.rank
        return RankSummary(
            rank=rank,
            condition=self._condition(part, age_s, latest.get(ITERATION)),
            step=steps.last_step + 1 if steps is not None and steps.last_step >= 0 else None,
            iteration_s=latest.get(ITERATION),
            waiting=done.waiting if done is not None else None,
            progress_age_s=age_s,
            line=stacks.place(line.place) if line is not None else "",
            kind=line.kind if line is not None else "",
            line_share=line.share if line is not None else None,
            throughput=latest.get(part.state.headline) if lead and part.state.headline else None,
            gpu=_gpu(part, part.gpus[rank]) if rank in part.gpus else None,
        )

    def _condition(self, part: _Part, age_s: float | None, pace: float | None) -> RankCondition:
        if (
            part.store.run(self.run_id) is not None
            and part.store.chronicle.run_at(part.store.now()).exit_reason
        ):
            return "ended"
        if age_s is None or age_s > max(CURRENT_S, 5 * (pace or 0.0)):
            return "unknown"
        return "live"

    def _moments(self) -> list[JobMoment]:
        """The readings of the last minutes up to the position."""
        end = self.now()
        step = round(KEPT_S * SECOND) // MOMENTS
        start = max(self.span[0], end - step * MOMENTS) // step * step
        times = list(range(start + step, end + 1, step))
        world = self._state().world
        ranks = {name: [[NAN] * world for _ in times] for name in RANK_READINGS}
        for part in self._parts:
            for rank, source in part.ranks.items():
                self._fill(ranks, part, rank, source, times, step)
        return [
            JobMoment(t / SECOND, {name: rows[at] for name, rows in ranks.items()}, [NAN] * len(self._parts))
            for at, t in enumerate(times)
        ]

    def _fill(
        self,
        ranks: dict[str, list[list[float]]],
        part: _Part,
        rank: int,
        source: str,
        times: Sequence[int],
        step: int,
    ) -> None:
        """Fill in what is known of a rank at each of these times."""
        if not times:
            return
        gpu = part.gpus.get(rank, "")
        paces = _at(part, source, ITERATION, times, step)
        read = (
            {name: _at(part, f"gpu/{gpu}", of, times, step) for name, of in GPU_READINGS.items()}
            if gpu
            else {}
        )
        for at, t in enumerate(times):
            done = part.minute(part.at(t)).get(rank)
            ranks["iteration_s"][at][rank] = paces[at]
            if done is not None:
                ranks["waiting"][at][rank] = done.waiting
                ranks["own_s"][at][rank] = paces[at] * (1 - done.waiting)
            for name, values in read.items():
                ranks[name][at][rank] = values[at] * (0.01 if name == "utilization" else 1.0)


GPU_READINGS = {"utilization": "busy", "power_w": "power_w", "clock_mhz": "sm_clock_mhz"}
"""Readings of the job by those of a GPU. Those in per cent become shares."""


def _at(part: _Part, source: str, name: str, times: Sequence[int], step: int) -> list[float]:
    """The greatest value of a metric in the time before each stamp, NaN where there is none."""
    found = [NAN] * len(times)
    series = part.store.series(source, name)
    if series is None:
        return found
    start = part.at(times[0]) - step + 1
    window = series.window(start, part.at(times[-1]), len(times))
    for t, high in zip(window.t, window.high, strict=True):
        found[min(max(0, (t - start) // step), len(times) - 1)] = high
    return found


def _gpus(part: _Part) -> dict[int, str]:
    """The GPU of each rank of a node as far as it is known.

    Recorded states of the run have it. Without one it is known of a node of one rank and one GPU.
    """
    with suppress(RecordingError, RecordError):
        stored = part.recording.job_at(part.store.span[1])
        if stored is not None:
            ranks = (rank for _, rank in decode_state(stored[1]).ranks() if rank.rank in part.ranks)
            return {rank.rank: rank.gpu.uuid for rank in ranks if rank.gpu is not None}
    gpus, ranks_here = part.state.gpus, part.state.ranks
    return {part.state.rank: gpus[0]} if len(gpus) == 1 and not ranks_here else {}


def _gpu(part: _Part, uuid: str) -> RankGpu:
    """The readings of a GPU at the position."""
    node, latest = part.store.node, part.store.latest(f"gpu/{uuid}")
    info = next((gpu for gpu in node.gpus if gpu.uuid == uuid), None) if node is not None else None
    busy = latest.get("busy")
    return RankGpu(
        uuid=uuid,
        index=info.index if info is not None else None,
        utilization=busy / 100 if busy is not None else None,
        power_w=latest.get("power_w"),
        memory_used=latest.get("memory_used_bytes"),
        memory_total=info.memory_total_bytes if info is not None else None,
        clock_mhz=latest.get("sm_clock_mhz"),
    )


def _check(opened: Sequence[tuple[Recording, RecordedStore]]) -> None:
    states = {recording.path: store.chronicle.state for recording, store in opened}
    lone = next((path for path, state in states.items() if not state.run), None)
    if lone is not None:
        raise JoinError(f"{lone} is the recording of a node without a run: it is not part of one")
    runs = {state.run: path for path, state in states.items()}
    if len(runs) > 1:
        (one, first), (other, second), *_ = ((path, run) for run, path in runs.items())
        raise JoinError(
            f"{one} is of run {first} and {other} of run {second}: only recordings of one run are joined; "
            "hoptui report compares different ones"
        )
    leads: dict[int, Path] = {}
    for path, state in states.items():
        before = leads.setdefault(state.rank, path)
        if before != path:
            raise JoinError(f"{before} and {path} both have rank {state.rank}: they are of the same node")


def _boundaries(recording: Recording, run: str) -> dict[int, int]:
    """The stamp of each iteration of the rank that represents the run, of the newest rows."""
    source = f"run/{run}"
    if source not in recording.sources():
        return {}
    first, last, rows = recording.sources()[source]
    t0 = last - (last - first) * MOST_ROWS // rows if rows > MOST_ROWS else 0
    found: dict[int, int] = {}
    for part in recording.rows(source, t0, 0, (ITERATION,)):
        found.update(zip(part.steps(), part.times(), strict=True))
    return found


def _offset(base: Recording, ends: Mapping[int, int], other: Recording, run: str) -> ClockOffset:
    return clock_offset(ends, _boundaries(other, run), base.wall_offset_ns - other.wall_offset_ns)


def _read_minute(recording: Recording, stamp: int) -> dict[int, _Minute]:
    """What each rank did in the minute up to a stamp, empty if that is damaged."""
    try:
        found = recording.minute(stamp)
    except RecordingError:
        return {}
    minutes = {}
    for rank, samples in found.ranks.items() if found is not None else ():
        lines = hot_lines(samples)
        waiting = sum(line.share for line in lines if line.kind in WAITS)
        minutes[rank] = _Minute(waiting, next((line for line in lines if line.kind not in WAITS), None))
    return minutes
