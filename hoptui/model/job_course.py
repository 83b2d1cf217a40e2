"""A recorded run on several nodes over its whole time: the readings of all ranks, in columns of equal length.

They come from the rows of the nodes whose recordings are there, and for the other nodes from the states of
the run that are recorded once a minute. What neither has is NaN.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from msgspec import structs

from hoptui.domain.facts import Fact
from hoptui.domain.job_findings import findings, usual
from hoptui.domain.job_history import MOST_RANKS, NAN, RANK_READINGS, mean
from hoptui.domain.jobs import JobNode, JobState, NodeCondition, NodeSummary, RankGpu, RankSummary
from hoptui.model.recorded.node_recordings import NodeRecording
from hoptui.presentation import stacks
from hoptui.protocol.messages import Event
from hoptui.protocol.record_bytes import RecordError
from hoptui.protocol.recorded_jobs import decode_recorded
from hoptui.recording import RecordingError
from hoptui.recording.timed_states import JOB

SECOND = 1_000_000_000
MINUTE_NS = 60 * SECOND
COLUMNS, FEWEST = 240, 24
MOST_VALUES = 1_000_000
"""Values of one reading. A job of more ranks has fewer columns."""
OLD_S = 60.0
"""An older state says nothing about the moment at which it was recorded."""
MOST_SAMPLED = 1_000
"""Minutes of stack samples that are read, of all nodes together."""
READINGS = ("iteration_s", "own_s", "waiting", "utilization", "power_w", "clock_mhz", "nvlink_bytes_s")
ODD_SHARE, ODD_COLUMNS = 0.05, 2
"""A rank differs if it does so in this share of the columns, and in so many."""
SILENT, BACK = "job.silent_node", "job.node_back"


class RankDifference(NamedTuple):
    """A rank whose own time was beyond that of the others, in `share` of the time in which it is known.

    `value` is its mean in these columns and `usual` the mean of the medians of all ranks there. `first` and
    `last` are stamps.
    """

    rank: int
    share: float
    first: int
    last: int
    value: float
    usual: float


class NodeAbsence(NamedTuple):
    """A time in which nothing was heard of a node. `host` is "" if only its number is known."""

    host: str
    node: int | None
    condition: NodeCondition
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class JobCourse:
    """A run on several nodes. Stamps are of the clock of the first recording.

    `state` has each node as it was heard of last, with the mean readings of its ranks over the whole time.
    `times` are the ends of the columns of `step` ns. `ranks` has for each reading a row for each column, by
    rank. `absences` are the times in which a node is not heard of. `power_w` is the sum over the GPUs whose
    power is known, and `powered` is how many these are. `mfu` is a mean, in per cent; it is estimated from
    the activity of tensor cores if `mfu_estimated`. `differences` are the ranks with more own time than the
    others. `by` is the reading in which they are compared. `recorded` are the indices of the nodes whose
    recordings are there. Without recorded states it is not `watched`: absences are not known.
    """

    state: JobState
    times: Sequence[int]
    step: int
    ranks: Mapping[str, Sequence[Sequence[float]]]
    absences: tuple[NodeAbsence, ...]
    power_w: Sequence[float]
    powered: Sequence[int]
    mfu: Sequence[float]
    mfu_estimated: bool
    by: str
    differences: tuple[RankDifference, ...]
    recorded: tuple[int, ...]
    watched: bool

    @property
    def findings(self) -> list[Fact]:
        """What differs over the whole time, besides own time and nodes that are not heard of."""
        return [one for one in findings(self.state) if one.code not in ("job.own_time", "job.missing_node")]


class _Stored(NamedTuple):
    """A recorded state and its stamp."""

    t: int
    state: JobState


def job_course(
    parts: Sequence[NodeRecording], span: tuple[int, int], events: Sequence[Event]
) -> JobCourse | None:
    """Return the course of a run on several nodes, None if nothing is known of other nodes.

    Args:
        parts: The recordings, that of the base first. Their positions are at the end.
        span: The first and last stamp.
        events: Those of the run in the base, oldest first.
    """
    stored = next((found for part in parts if (found := _states(part))), [])
    if not stored and len(parts) < 2:
        return None
    world = max(
        [one.state.world for one in stored] + [1 + max(part.ranks) for part in parts] + [parts[0].state.world]
    )
    world = min(world, MOST_RANKS)
    columns = min(COLUMNS, max(FEWEST, MOST_VALUES // world), max(1, (span[1] - span[0]) // SECOND))
    step = max(1, -(-(span[1] - span[0]) // columns))
    times = [span[0] + step * (at + 1) for at in range(columns)]
    table = _Table(times, step, world)
    for one in stored:
        table.take(one, parts)
    table.spread()
    for part in parts:
        table.overwrite(part)
    table.sample(parts)
    state = _last(stored, parts)
    by = "own_s" if any(value == value for row in table.ranks["own_s"] for value in row) else "iteration_s"
    absences = [*_absences(stored, span), *_silences(stored, events, span)]
    mfu, estimated = table.utilization(parts)
    return JobCourse(
        state=_averaged(state, table.ranks, _lines(stored, parts, times)),
        times=times,
        step=step,
        ranks=table.ranks,
        absences=tuple(sorted(absences, key=lambda one: (one.start, one.node or 0))),
        power_w=table.watts,
        powered=table.powered,
        mfu=mfu,
        mfu_estimated=estimated,
        by=by,
        differences=tuple(_differences(table.ranks[by], times)),
        recorded=tuple(node.index for node in state.nodes for part in parts if _is_of(part, node)),
        watched=bool(stored),
    )


def _states(part: NodeRecording) -> list[_Stored]:
    """The recorded states, oldest first, without those of times in which other nodes were not read.

    Stamps are of the clock of the base.
    """
    found = []
    try:
        for t, body in part.recording.states(JOB):
            with suppress(RecordError):  # only this one cannot be read
                state = decode_recorded(body)
                if not state.store_problem and state.age_s < OLD_S:
                    found.append(_Stored(t - part.offset.offset_ns, state))
    except RecordingError:
        return []
    return found


def _is_of(part: NodeRecording, node: JobNode) -> bool:
    """Whether a recording is that of a node: a rank is on one node."""
    return node.summary is not None and any(rank.rank in part.ranks for rank in node.summary.ranks)


class _Table:
    """The columns while they are filled in."""

    def __init__(self, times: Sequence[int], step: int, world: int) -> None:
        self.times, self.step, self.world = times, step, world
        self.ranks = {name: [[NAN] * world for _ in times] for name in READINGS}
        self.watts = [NAN] * len(times)
        self.powered = [0] * len(times)
        self._mfus: list[list[float]] = [[] for _ in times]
        self._at: list[int] = []  # columns with a state

    def column(self, t: int) -> int:
        """The column of a stamp."""
        return min(max(0, (t - self.times[0] + self.step - 1) // self.step), len(self.times) - 1)

    def take(self, stored: _Stored, parts: Sequence[NodeRecording]) -> None:
        """Fill in a state. The later one of a column counts."""
        at = self.column(stored.t)
        self._at.append(at)
        gpus: dict[tuple[int, str], RankGpu] = {}
        self._mfus[at] = []
        for node, rank in stored.state.live_ranks():
            if not 0 <= rank.rank < self.world:
                continue
            for name in READINGS:
                value = RANK_READINGS[name](rank)
                self.ranks[name][at][rank.rank] = NAN if value is None else value
            if not any(_is_of(part, node) for part in parts):
                if rank.gpu is not None:
                    gpus[node.index, rank.gpu.uuid] = rank.gpu
                if rank.mfu is not None:
                    self._mfus[at].append(100 * rank.mfu)
        watts = [gpu.power_w for gpu in gpus.values() if gpu.power_w is not None]
        self.watts[at], self.powered[at] = (math.fsum(watts) if watts else NAN), len(watts)

    def spread(self) -> None:
        """A state holds until the next one, for a minute and a half at most."""
        most = round(1.5 * MINUTE_NS / self.step)
        for before, after in pairwise([*sorted(set(self._at)), len(self.times)]):
            for at in range(before + 1, min(after, before + 1 + most)):
                for rows in self.ranks.values():
                    rows[at] = list(rows[before])
                self.watts[at], self.powered[at] = self.watts[before], self.powered[before]
                self._mfus[at] = list(self._mfus[before])

    def overwrite(self, part: NodeRecording) -> None:
        """Fill in the rows of a recording, which are finer than the states."""
        for rank in part.ranks:
            for name, values in part.readings(rank, self.times, self.step).items():
                rows = self.ranks[name]
                if name == "iteration_s":
                    _reach_back(values, self.step)
                for at, value in enumerate(values):
                    if value == value:
                        rows[at][rank] = value
        for uuid in part.state.gpus:
            for at, watts in enumerate(part.typical(f"gpu/{uuid}", "power_w", self.times, self.step)):
                if watts == watts:
                    self.powered[at] += 1
                    self.watts[at] = watts + (self.watts[at] if self.watts[at] == self.watts[at] else 0.0)

    def sample(self, parts: Sequence[NodeRecording]) -> None:
        """Fill in how long ranks wait, from the stack samples of the recordings, and own time from that."""
        every = max(1, len(self.times) * len(parts) // MOST_SAMPLED)
        waits, paces, own = (self.ranks[name] for name in ("waiting", "iteration_s", "own_s"))
        for part in parts:
            for at, row in enumerate(waits):
                if all(row[rank] == row[rank] for rank in part.ranks):
                    continue
                found = part.minute(part.at(self.times[at // every * every]))
                for rank in part.ranks:
                    if row[rank] != row[rank] and rank in found:
                        row[rank] = found[rank].waiting
            for at, row in enumerate(waits):
                for rank in part.ranks:
                    own[at][rank] = paces[at][rank] * (1.0 - row[rank])

    def utilization(self, parts: Sequence[NodeRecording]) -> tuple[list[float], bool]:
        """The mean MFU in each column, and whether it is estimated. What is declared comes first."""
        for name in ("mfu", "mfu_estimated"):
            found = [list(values) for values in self._mfus] if name == "mfu" else [[] for _ in self.times]
            for part in parts:
                values = part.typical(f"derived/{part.state.run}", name, self.times, self.step)
                for at, value in enumerate(values):
                    if value == value:
                        found[at].append(value)
            means = [NAN if (one := mean(values)) is None else one for values in found]
            if any(value == value for value in means):
                return means, name != "mfu"
        return [NAN] * len(self.times), False


def _reach_back(values: list[float], step: int) -> None:
    """An iteration lasts from before the column in which it ends."""
    for at in range(len(values) - 1, -1, -1):
        if values[at] == values[at]:
            reach = math.ceil(values[at] * SECOND / step)
            for before in range(at - 1, max(-1, at - 1 - reach), -1):
                if values[before] == values[before]:
                    break
                values[before] = values[at]


def _last(stored: Sequence[_Stored], parts: Sequence[NodeRecording]) -> JobState:
    """Each node as it was heard of last: of the newest state, or of an earlier one with its ranks."""
    if not stored:
        return _of_recordings(parts)
    newest = stored[-1].state
    nodes = list(newest.nodes)
    known = {rank.rank for _, rank in newest.ranks()}
    for one in reversed(stored[:-1]):
        if one.state.world != newest.world or len(known) >= newest.world:
            break
        for node in one.state.nodes:
            ranks = {rank.rank for rank in node.summary.ranks} if node.summary is not None else set()
            if ranks and not ranks & known:
                nodes.append(structs.replace(node, condition="silent"))
                known |= ranks
    for part in parts:
        if not known & set(part.ranks):
            nodes.append(_of_recording(part))
            known |= set(part.ranks)
    nodes.sort(key=_first_rank)
    numbered = tuple(structs.replace(node, index=index) for index, node in enumerate(nodes))
    head = next((node.index for node in numbered if _first_rank(node) == 0), 0)
    return structs.replace(newest, nodes=numbered, head=head, here=None)


def _of_recordings(parts: Sequence[NodeRecording]) -> JobState:
    first = parts[0].state
    nodes = sorted(map(_of_recording, parts), key=_first_rank)
    numbered = tuple(structs.replace(node, index=index) for index, node in enumerate(nodes))
    return JobState(run=first.run, epoch=first.epoch, world=first.world, nodes=numbered)


def _of_recording(part: NodeRecording) -> JobNode:
    """A node that only its recording is known of."""
    node, gpus = part.store.node, {}
    if node is not None:
        gpus = {gpu.uuid: gpu.index for gpu in node.gpus}
    ranks = tuple(
        RankSummary(
            rank=rank,
            gpu=RankGpu(uuid=uuid, index=gpus.get(uuid)) if (uuid := part.gpus.get(rank)) else None,
        )
        for rank in part.ranks
    )
    host = (node.host if node is not None else "") or part.recording.path.name
    summary = NodeSummary(
        host=host, run=part.state.run, epoch=part.state.epoch, number=0, wall=0.0, ranks=ranks
    )
    return JobNode(index=0, condition="live", age_s=0.0, summary=summary)


def _first_rank(node: JobNode) -> int:
    ranks = node.summary.ranks if node.summary is not None else ()
    return min((rank.rank for rank in ranks), default=MOST_RANKS)


def _averaged(
    state: JobState, ranks: Mapping[str, Sequence[Sequence[float]]], lines: Mapping[int, tuple[str, str]]
) -> JobState:
    """The state with the means of the readings. All ranks of which something is known count as live."""
    means = {name: [mean(column) for column in zip(*rows, strict=True)] for name, rows in ranks.items()}

    def averaged(rank: RankSummary) -> RankSummary:
        of = {name: values[rank.rank] if rank.rank < len(values) else None for name, values in means.items()}
        pace, own = of["iteration_s"], of["own_s"]
        line, kind = lines.get(rank.rank, ("", ""))
        gpu = rank.gpu
        if gpu is not None:
            gpu = structs.replace(
                gpu,
                utilization=of["utilization"],
                power_w=of["power_w"],
                clock_mhz=of["clock_mhz"],
                nvlink_bytes_s=of["nvlink_bytes_s"],
            )
        waiting = 1.0 - own / pace if own is not None and pace else of["waiting"]
        return structs.replace(
            rank,
            condition="live",
            iteration_s=pace,
            waiting=waiting,
            progress_age_s=None,
            line=line,
            kind=kind,
            gpu=gpu,
        )

    nodes = tuple(
        structs.replace(
            node,
            condition="live",
            summary=structs.replace(node.summary, ranks=tuple(map(averaged, node.summary.ranks))),
        )
        if node.summary is not None
        else node
        for node in state.nodes
    )
    return structs.replace(state, nodes=nodes, store_problem="")


def _lines(
    stored: Sequence[_Stored], parts: Sequence[NodeRecording], times: Sequence[int]
) -> dict[int, tuple[str, str]]:
    """The line and its kind in which each rank was most often, of the moments that are known."""
    counts: dict[int, Counter[tuple[str, str]]] = {}
    for one in stored:
        for _, rank in one.state.live_ranks():
            if rank.line:
                counts.setdefault(rank.rank, Counter())[rank.line, rank.kind] += 1
    for part in parts:
        if any(each in counts for each in part.ranks):
            continue
        for lone, done in part.minute(part.at(times[len(times) // 2])).items():
            if done.line is not None:
                counts[lone] = Counter({(stacks.place(done.line.place), done.line.kind): 1})
    return {rank: found.most_common(1)[0][0] for rank, found in counts.items()}


def _differences(rows: Sequence[Sequence[float]], times: Sequence[int]) -> Iterator[RankDifference]:
    """The ranks with more than the others, the most of the time first."""
    odd: dict[int, list[int]] = {}
    middles: dict[int, float] = {}
    for at, row in enumerate(rows):
        bounds = usual([value for value in row if value == value])
        if bounds is None:
            continue
        middles[at] = bounds.median
        for rank, value in enumerate(row):
            if value > bounds.high:
                odd.setdefault(rank, []).append(at)
    found = []
    for rank, columns in odd.items():
        share = len(columns) / sum(rows[at][rank] == rows[at][rank] for at in middles)
        if share >= ODD_SHARE and len(columns) >= ODD_COLUMNS:
            value = statistics.fmean(rows[at][rank] for at in columns)
            middle = statistics.fmean(middles[at] for at in columns)
            found.append(RankDifference(rank, share, times[columns[0]], times[columns[-1]], value, middle))
    yield from sorted(found, key=lambda one: (-one.share, one.rank))


def _absences(stored: Sequence[_Stored], span: tuple[int, int]) -> Iterator[NodeAbsence]:
    """The times in which nodes were missing or had left, to a minute. Silent ones: see `_silences`."""
    open_: dict[tuple[str, str], NodeAbsence] = {}
    for one in stored:
        found: dict[tuple[str, str], NodeAbsence] = {}
        for node in one.state.nodes:
            if node.condition in ("missing", "left"):
                key = (node.host or f"{node.index}", node.condition)
                start = one.t - round(node.age_s * SECOND) if node.condition == "missing" else one.t
                before = open_.get(key)
                found[key] = (
                    before._replace(end=one.t)
                    if before is not None
                    else NodeAbsence(node.host, node.index, node.condition, max(span[0], start), one.t)
                )
        yield from (absence._replace(end=one.t) for key, absence in open_.items() if key not in found)
        open_ = found
    yield from (absence._replace(end=span[1]) for absence in open_.values())


def _silences(
    stored: Sequence[_Stored], events: Sequence[Event], span: tuple[int, int]
) -> Iterator[NodeAbsence]:
    """The times in which nodes were silent: by the events of the head, else by the states, to a minute."""
    if any(event.code == SILENT for event in events):
        open_: dict[str, NodeAbsence] = {}
        for event in events:
            host = str(event.fields.get("host", ""))
            if event.code == SILENT and host not in open_:
                start = event.t - round(_seconds(event.fields.get("age_s")) * SECOND)
                index = event.fields.get("node")
                open_[host] = NodeAbsence(
                    host, index if isinstance(index, int) else None, "silent", max(span[0], start), span[1]
                )
            elif event.code == BACK and host in open_:
                yield open_.pop(host)._replace(end=event.t)
        yield from open_.values()
        return
    since: dict[str, NodeAbsence] = {}
    for one in stored:
        silent = {node.host: node for node in one.state.nodes if node.condition == "silent"}
        for host in [host for host in since if host not in silent]:
            yield since.pop(host)._replace(end=one.t)
        for host, node in silent.items():
            start = max(span[0], one.t - round(node.age_s * SECOND))
            since.setdefault(host, NodeAbsence(host, node.index, "silent", start, span[1]))
    yield from since.values()


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0
