"""The recordings of several nodes of one run as one store: the ranks of all files, by the clock of the first.

The file with rank 0 is the base: its host, GPUs, events and commands are shown as in a replay of it alone.
The rows of the other ranks are the sources `rank/<run id>/<rank>`, as on one node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from hoptui.domain.facts import Fact
from hoptui.domain.job_history import KEPT_S, NAN, RANK_READINGS, JobHistory, JobMoment
from hoptui.domain.jobs import JobNode, JobState, NodeSummary, RankCondition, RankGpu, RankSummary
from hoptui.domain.progress import ITERATION
from hoptui.model.detail_requests import STEPS
from hoptui.model.recorded.clock_offsets import ClockOffset, clock_note, clock_offset
from hoptui.model.recorded.node_recordings import NodeRecording
from hoptui.model.recorded.store import RecordedSeries, RecordedSteps, RecordedStore
from hoptui.model.series import SeriesColumns, SeriesWindow
from hoptui.presentation import stacks
from hoptui.protocol.messages import RankState, RunState
from hoptui.recording import Recording

SECOND = 1_000_000_000
MOST_ROWS = 200_000
"""Rows of a run that are read to compare clocks: the newest ones."""
MOMENTS = 100
"""Moments of the history at a position."""
CURRENT_S = 30.0
"""A rank without a row for so long, beside the usual time of an iteration, is not live at a position."""


class JoinError(Exception):
    """The recordings cannot be joined. The message is one sentence."""


class MovedSeries(RecordedSeries):
    """A metric of another node by the clock of the base."""

    def __init__(self, part: NodeRecording, source: str, name: str) -> None:
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
        self._own = NodeRecording(base[0], self, ClockOffset(0, 0, len(ends)))
        self._others = [
            NodeRecording(recording, store, _offset(base[0], ends, recording, self.run_id))
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

    def _sources(self) -> dict[str, tuple[NodeRecording, str]]:
        """Where the sources of other nodes are: the part and the name in its recording."""
        run = self.run_id
        return {
            f"rank/{run}/{rank}": (part, source)
            for part in self._others
            for rank, source in part.ranks.items()
        }

    def clock_notes(self) -> list[str]:
        """Return a sentence on the clock of each other node: how far ahead, and how exactly."""
        base = self._own
        return [
            clock_note(
                part.name,
                base.name,
                part.offset,
                part.offset.offset_ns + part.recording.wall_offset_ns - base.recording.wall_offset_ns,
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
    def parts(self) -> list[NodeRecording]:
        """The recordings of the nodes, that with the lowest rank first."""
        return [self._own, *self._others]

    def _state(self) -> JobState:
        t = self.now()
        nodes = tuple(self._job_node(index, part, t) for index, part in enumerate(self.parts))
        world = max(self._own.state.world, 1 + max(max(part.ranks) for part in self.parts))
        epoch = self._own.state.epoch
        return JobState(run=self.run_id, epoch=epoch, world=world, nodes=nodes, slow=self._slow())

    def _slow(self) -> Fact | None:
        """The report of a slow rank or node that holds, as the node of rank 0 has recorded it."""
        held: dict[tuple[int, ...], Fact] = {}
        for event in self.events:
            if event.code in ("job.slow_rank", "job.even"):
                ranks = tuple(event.fields.get("ranks") or (event.fields.get("rank"),))
                for single in [known for known in held if set(known) <= set(ranks)]:
                    del held[single]
                if event.code == "job.slow_rank":
                    held[ranks] = Fact(event.code, event.fields)
        return next(iter(held.values()), None)

    def _job_node(self, index: int, part: NodeRecording, t: int) -> JobNode:
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

    def _rank(self, part: NodeRecording, rank: int, source: str, t: int) -> RankSummary:
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
            samples=done.samples if done is not None else None,
            progress_age_s=age_s,
            line=stacks.place(line.place) if line is not None else "",
            kind=line.kind if line is not None else "",
            line_share=line.share if line is not None else None,
            throughput=latest.get(part.state.headline) if lead and part.state.headline else None,
            gpu=_gpu(part, part.gpus[rank]) if rank in part.gpus else None,
        )

    def _condition(self, part: NodeRecording, age_s: float | None, pace: float | None) -> RankCondition:
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
        for part in self.parts:
            for rank in part.ranks if times else ():
                _fill(ranks, part, rank, times, step)
        return [
            JobMoment(t / SECOND, {name: rows[at] for name, rows in ranks.items()}, [NAN] * len(self.parts))
            for at, t in enumerate(times)
        ]


def _fill(
    ranks: dict[str, list[list[float]]], part: NodeRecording, rank: int, times: Sequence[int], step: int
) -> None:
    """Fill in what is known of a rank at each of these times."""
    read = part.readings(rank, times, step)
    read["waiting"] = [
        done.waiting if (done := part.minute(part.at(t)).get(rank)) is not None else NAN for t in times
    ]
    pairs = zip(read["iteration_s"], read["waiting"], strict=True)
    read["own_s"] = [pace * (1 - waiting) for pace, waiting in pairs]
    for name, values in read.items():
        for at, value in enumerate(values):
            ranks[name][at][rank] = value


def _gpu(part: NodeRecording, uuid: str) -> RankGpu:
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
    paths = [recording.path for recording, _ in opened]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise JoinError(f"{twice} is named twice")
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
