"""One run on several nodes: the summary that each node writes, and the job that follows from all of them.

Each node writes its summary to the store of the job, once per second. The head is the node of rank 0. It
reads all summaries. What a node does not know is None.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.facts import Fact
from hoptui.domain.targets import TargetState

SILENT_S = 5.0
"""A node whose summary is older than this is silent."""
SAMPLES_S = 20.0
"""The time over which the stack samples of a summary count."""
RankCondition = Literal["live", "paused", "hung", "ended", "unknown"]
NodeCondition = Literal["live", "silent", "left", "missing"]
"""`left`: its ranks have left the run in order. `missing`: it has never written."""


class RankGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of a rank: means over the last second. Watts, bytes, MHz, shares from 0 to 1.

    `throttled` is the reason why the clocks gave way (a name of `hoptui.domain.devices.REASONS`), "" if they
    did not, None if it is unknown.
    """

    uuid: str
    index: int | None = None
    utilization: float | None = None
    power_w: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None
    clock_mhz: float | None = None
    throttled: str | None = None
    nvlink_bytes_s: float | None = None


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in the summary of its node.

    `step` is the iteration in progress. `iteration_s` is the median time of its last iterations, and
    `waiting` the share of its stack samples in which it waited for other ranks. `samples` is how many these
    are. `progress_age_s` is the time since its last boundary. `line` is the line with most samples that do
    not wait, as `file.py:12 function`, and `kind` what that line does. `mfu` is from 0 to 1.

    `dispersion` is how many times the variance of independent samples its counts of waiting have over time.
    `backward` is the share of the samples in which it waits or is in the backward pass, where
    DistributedDataParallel waits without a frame of its own. `work_s` is the median time of an iteration in
    `phases`, those in which no rank of its node was seen to wait: names, joined by commas.
    """

    rank: int
    condition: RankCondition = "unknown"
    step: int | None = None
    iteration_s: float | None = None
    waiting: float | None = None
    samples: int | None = None
    dispersion: float | None = None
    backward: float | None = None
    work_s: float | None = None
    phases: str = ""
    progress_age_s: float | None = None
    line: str = ""
    kind: str = ""
    line_share: float | None = None
    throughput: float | None = None
    mfu: float | None = None
    gpu: RankGpu | None = None

    @property
    def own_s(self) -> float | None:
        """Seconds of an iteration in which it does not wait for other ranks. None if that is unknown."""
        if self.iteration_s is None or self.waiting is None:
            return None
        return self.iteration_s * (1.0 - self.waiting)


class NodeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of its part of a run.

    `number` counts its summaries. `wall` is its own clock, in seconds since 1970. `epoch` is the restart of
    the run. `cpu` and `memory` are shares of the host from 0 to 1. `sent_bytes_s` and `received_bytes_s` are
    those of its network interfaces. `alarms` are its reports that still hold, such as a lost GPU.
    """

    host: str
    run: str
    epoch: int
    number: int
    wall: float
    ranks: tuple[RankSummary, ...] = ()
    cpu: float | None = None
    memory: float | None = None
    sent_bytes_s: float | None = None
    received_bytes_s: float | None = None
    alarms: tuple[Fact, ...] = ()
    left: bool = False


class HeadReports(msgspec.Struct, frozen=True, kw_only=True):
    """What the head says of a run, on another node. Stamps are of this node.

    `host` is the name of the head. `diagnosis` is its verdict, of its own GPUs, and `targets` are those of
    its GPUs. `since` is the stamp from which on the metrics of the head are known on this node, 0 before
    there are any. `left_out` is how much the head alone knows: a number of `metrics`, `events`, `commands`,
    `notes` and `trials`, each only if there are some.
    """

    host: str = ""
    diagnosis: Diagnosis | None = None
    targets: tuple[TargetState, ...] = ()
    since: int = 0
    left_out: dict[str, int] = {}


class JobNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as the head sees it. `age_s` is the time since its summary last changed, by the head's clock.

    `summary` is the last one, None if the node has never written.
    """

    index: int
    condition: NodeCondition
    age_s: float
    summary: NodeSummary | None = None

    @property
    def host(self) -> str:
        return self.summary.host if self.summary is not None else ""


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """A run on all its nodes, in the order of their first ranks.

    `head` is the index of the node with rank 0, and `here` that of the node of the daemon that says this,
    None if it is not known. `store_problem` is why nothing is read from the store, "" if it works: then
    `nodes` are as they were last. `read_s` is how long the last reading took. `age_s` is the time since it.
    `slow` is the report of a slow rank that holds, by the head. `head_problem` is why another node cannot
    read the newest record of the head, "" if it can.
    """

    run: str
    epoch: int
    world: int
    nodes: tuple[JobNode, ...] = ()
    head: int = 0
    here: int | None = None
    store_problem: str = ""
    read_s: float | None = None
    age_s: float = 0.0
    slow: Fact | None = None
    head_problem: str = ""

    @property
    def head_host(self) -> str:
        """The name of the node with rank 0, "" if it is not known."""
        return next((node.host for node in self.nodes if node.index == self.head), "")

    def ranks(self) -> list[tuple[JobNode, RankSummary]]:
        """Return all ranks whose nodes have written, in order of rank, each with its node."""
        found = [(node, rank) for node in self.nodes if node.summary for rank in node.summary.ranks]
        return sorted(found, key=lambda pair: pair[1].rank)

    def live_ranks(self) -> list[tuple[JobNode, RankSummary]]:
        """Return the ranks of the nodes that report. What is known of the others is old."""
        return [(node, rank) for node, rank in self.ranks() if node.condition == "live"]


class LineGroup(NamedTuple):
    """Ranks of other nodes at the same line, or that mostly wait for others: then `line` is empty.

    `line` is also empty if nothing is known of it. `hosts` are the names of their nodes.
    """

    ranks: list[int]
    hosts: list[str]
    line: str
    waits: bool


def line_groups(state: JobState) -> list[LineGroup]:
    """Return the ranks of other nodes by line, the rarest first."""
    groups: dict[tuple[bool, str, str], LineGroup] = {}
    for node, rank in state.ranks():
        if node.index == state.here:
            continue
        waits = (rank.waiting or 0.0) > (rank.line_share or 0.0)
        key = (True, "", "") if waits else (False, rank.kind, rank.line)
        group = groups.setdefault(key, LineGroup([], [], key[2], waits))
        group.ranks.append(rank.rank)
        if node.host not in group.hosts:
            group.hosts.append(node.host)
    return sorted(groups.values(), key=lambda group: len(group.ranks))


class Spread(NamedTuple):
    """The lowest, the middle and the highest value of the ranks, each with the rank that has it."""

    lowest: tuple[int, float]
    median: tuple[int, float]
    highest: tuple[int, float]


def spread(values: Iterable[tuple[int, float | None]]) -> Spread | None:
    """Return the spread of values by rank. None if no rank has one."""
    known = sorted((value, rank) for rank, value in values if value is not None)
    if not known:
        return None
    middle = statistics.median_low(value for value, _ in known)
    ranks = dict(reversed(known))
    return Spread((known[0][1], known[0][0]), (ranks[middle], middle), (known[-1][1], known[-1][0]))
