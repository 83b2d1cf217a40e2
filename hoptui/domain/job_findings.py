"""What is wrong in a job, from its state and its last minutes: facts with node, rank and GPU. Pure.

The ranks of a job are alike: they do the same work on equal GPUs. So each is compared with the median of all.
One moment of a busy machine is no finding: readings are means of the last `OVER_S`, where there is a history.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hoptui.domain.devices import REASONS
from hoptui.domain.facts import Fact, fact
from hoptui.domain.job_history import (
    NAN,
    RANK_READINGS,
    JobMoment,
    last,
    network_bytes_s,
    recent,
    recent_network,
)
from hoptui.domain.jobs import JobNode, JobState, RankSummary
from hoptui.domain.slow_ranks import SURE, comparable, doubt, slow_rank
from hoptui.domain.stack_groups import WAITS

OVER_S = 10.0
SLOWER = 1.15
"""How many times the median is slow."""
DEVIATIONS = 5.0
"""Standard deviations from the median that are beyond chance, estimated from the median deviation."""
LOW_CLOCK = 0.93
"""The part of the median clock below which a clock is low."""
WORKING = 0.3
"""The utilization from which a GPU has clocks for work. An idle one lowers them."""
WAITING = 0.2
"""The share of waiting from which links are looked at."""
SLOW_LINK = 0.5
"""The part of the median traffic below which a link is slow."""
STALLED_S, STALLED = 10.0, 5.0
"""Seconds, and usual iterations, without progress."""
HALF = 0.5
"""The share of waiting from which a hung rank is one that waits."""
MORE_WAITING, LESS_TRAFFIC, SAME_OWN = 0.1, 0.8, 1.1
"""The network has become slower: by how much more ranks wait, the part of the traffic that is left, and the
most that their own time may have grown."""
MOST_NAMED = 64
"""Ranks of a silent node that its report lists."""
LEAST_RECENT, LEAST_EARLIER = 3, 10
"""Moments of which the two are compared at least."""
_FAULTS = frozenset(reason.name for reason in REASONS if reason.level == "alarm")
_SEVERITY = (
    "job.missing_node",
    "job.silent_node",
    "job.hung_rank",
    "job.no_progress",
    "job.stalled",
    "job.throttled",
    "job.low_clock",
    "job.slow_rank",
    "job.own_time",
    "job.slow_link",
    "job.slower_network",
)


class Usual(NamedTuple):
    """The median of some ranks, and from where on a value is beyond chance."""

    median: float
    high: float


def findings(state: JobState, moments: Sequence[JobMoment] = ()) -> list[Fact]:
    """Return what is wrong, the worst first.

    Facts of ranks have the fields `rank`, `host`, `gpu` (its index), `line`, `kind`, `value` and `usual`, and
    `after_s` where a time matters. None is unknown.
    """
    found = [
        *_nodes(state),
        *_stalled(state),
        *_clocks(state, moments),
        *_slow_ranks(state, moments),
        *_slow_nvlinks(state, moments),
        *_slow_networks(state, moments),
    ]
    return sorted(found, key=lambda one: _SEVERITY.index(one.code))


def silent_node(node: JobNode, state: JobState) -> Fact:
    """Return the report of a node that has not written for a while."""
    ranks = [rank.rank for rank in node.summary.ranks] if node.summary is not None else []
    return fact("job.silent_node", node=node.index, host=node.host, ranks=ranks[:MOST_NAMED],
                count=len(ranks), world=state.world, age_s=node.age_s)  # fmt: skip


def hung_rank(node: JobNode, rank: RankSummary, state: JobState) -> Fact:
    """Return the report of a rank that passes no boundary and does not wait for others."""
    heard = rank.condition != "unknown"
    return _of_rank("job.hung_rank", node, rank, world=state.world, age_s=rank.progress_age_s, heard=heard)


def usual(values: Sequence[float]) -> Usual | None:
    """Return the median, and the bound above which a value is high. None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = statistics.median_low(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return Usual(middle, max(SLOWER * middle, middle + DEVIATIONS * spread))


def _nodes(state: JobState) -> Iterator[Fact]:
    for node in state.nodes:
        if node.condition == "silent":
            yield silent_node(node, state)
        elif node.condition == "missing":
            yield fact("job.missing_node", node=node.index, after_s=node.age_s)


def _stalled(state: JobState) -> Iterator[Fact]:
    """Ranks that are hung, and nodes without progress while others go on.

    A rank that waits for others is not the cause. The only one that does not answer is. If every rank waits,
    that is one fact.
    """
    live = state.live_ranks()
    hung = [(node, rank) for node, rank in live if rank.condition == "hung"]
    unheard = [(node, rank) for node, rank in live if rank.condition == "unknown"]
    causes = [(node, rank) for node, rank in hung if _works(rank)]
    if hung and not causes and len(unheard) == 1:
        causes = unheard
    for node, rank in causes:
        yield hung_rank(node, rank, state)
    paces = [rank.iteration_s for _, rank in live if rank.iteration_s is not None]
    longest = max(STALLED_S, STALLED * statistics.median(paces)) if paces else STALLED_S
    stalled = {
        node.index: min(ages)
        for node in state.nodes
        if (ages := _ages(node)) is not None and min(ages) > longest
    }
    going = [node for node in state.nodes if _ages(node) is not None and node.index not in stalled]
    if not stalled or causes:
        return
    if going:
        for node in state.nodes:
            if node.index in stalled:
                step = max((rank.step for rank in _ranks(node) if rank.step is not None), default=None)
                yield fact("job.no_progress", node=node.index, host=node.host, step=step,
                           after_s=stalled[node.index])  # fmt: skip
    else:
        yield fact("job.stalled", nodes=len(stalled), after_s=min(stalled.values()))


def _works(rank: RankSummary) -> bool:
    """Whether a rank is known to do something else than to wait for others."""
    return bool(rank.line) and rank.kind not in WAITS and (rank.waiting is None or rank.waiting < HALF)


def _ages(node: JobNode) -> list[float] | None:
    """The times since the last boundary of the ranks of a live node, None if one of them is not known.

    Ranks that are paused or have ended make no progress on purpose.
    """
    ranks = _ranks(node)
    if not ranks or any(rank.condition in ("paused", "ended") for rank in ranks):
        return None
    ages = [rank.progress_age_s for rank in ranks]
    known = [age for age in ages if age is not None]
    return known if len(known) == len(ages) else None


def _ranks(node: JobNode) -> tuple[RankSummary, ...]:
    return node.summary.ranks if node.summary is not None and node.condition == "live" else ()


def _slow_ranks(state: JobState, moments: Sequence[JobMoment]) -> Iterator[Fact]:
    """The rank that the head reports as slow, and others whose own time of an iteration is beyond the usual.

    Of those, `doubt` says why they are not reported (see `slow_ranks.Doubt`), None if the same evidence names
    them. `deviation` are their standard deviations from chance, of `needed`. `slower` is the reported rank.
    """
    report = state.slow.fields if state.slow is not None else {}
    reported, together = report.get("rank"), report.get("ranks") or [report.get("rank")]
    if state.slow is not None:
        yield state.slow
    own = _values(state, moments, "own_s")
    bounds = usual(list(own.values()))
    if bounds is None:
        return
    places = {rank.rank: (node, rank) for node, rank in state.live_ranks() if rank.condition != "hung"}
    slow = [
        rank for rank, value in own.items() if value > bounds.high and rank in places and rank not in together
    ]
    if not slow:
        return
    ranks = comparable(state)
    found = slow_rank(ranks)
    named = found.rank if found is not None and found.named else None
    for each in sorted(slow, key=lambda rank: -own[rank]):
        node, rank = places[each]
        why, deviation = ("slower_rank", 0.0) if reported is not None else doubt(each, ranks, found)
        yield _of_rank("job.own_time", node, rank, value=own[each], usual=bounds.median, doubt=why,
                       deviation=round(deviation, 1), needed=SURE,
                       slower=reported if reported is not None else named)  # fmt: skip


def _clocks(state: JobState, moments: Sequence[JobMoment]) -> Iterator[Fact]:
    """GPUs with lower clocks than the others, or that something forces to lower them."""
    live = state.live_ranks()
    busy = _values(state, moments, "utilization")
    clocks = {
        rank: clock
        for rank, clock in _values(state, moments, "clock_mhz").items()
        if busy.get(rank, 0.0) >= WORKING
    }
    middle = statistics.median_low(clocks.values()) if len(clocks) >= 2 else None
    for node, rank in live:
        why = rank.gpu.throttled if rank.gpu is not None else None
        clock = clocks.get(rank.rank)
        if why in _FAULTS:
            yield _of_rank("job.throttled", node, rank, reason=why, value=clock, usual=middle)
        elif clock is not None and middle is not None and clock < LOW_CLOCK * middle:
            yield _of_rank("job.low_clock", node, rank, reason=why, value=clock, usual=middle)


def _slow_nvlinks(state: JobState, moments: Sequence[JobMoment]) -> Iterator[Fact]:
    """GPUs that move much less through NVLink than those of the other ranks, while ranks wait."""
    waiting = _waiting(state, moments)
    if waiting is None or waiting < WAITING:
        return
    traffic = _values(state, moments, "nvlink_bytes_s")
    middle = statistics.median_low(traffic.values()) if len(traffic) >= 3 else None
    for node, rank in state.live_ranks():
        value = traffic.get(rank.rank)
        if value is not None and middle is not None and value < SLOW_LINK * middle:
            yield _of_rank(
                "job.slow_link", node, rank, link="nvlink", value=value, usual=middle, waiting=waiting
            )


def _slow_networks(state: JobState, moments: Sequence[JobMoment]) -> Iterator[Fact]:
    """Nodes that move much less over the network than the others while ranks wait; or all, than before."""
    waiting = _waiting(state, moments)
    if waiting is None or waiting < WAITING:
        return
    traffic = {
        place: value
        for place, node in enumerate(state.nodes)
        if node.condition == "live" and (value := _traffic(node, place, moments)) is not None
    }
    middle = statistics.median_low(traffic.values()) if len(traffic) >= 3 else None
    slow = {place for place, value in traffic.items() if middle is not None and value < SLOW_LINK * middle}
    for place in sorted(slow):
        node = state.nodes[place]
        yield fact("job.slow_link", link="network", node=node.index, host=node.host, rank=None, gpu=None,
                   value=traffic[place], usual=middle, waiting=waiting)  # fmt: skip
    if not slow:
        yield from _slower_network(moments)


def _slower_network(moments: Sequence[JobMoment]) -> Iterator[Fact]:
    """The traffic of all nodes has fallen, and ranks wait longer, though their own time is as before."""
    recently = last(moments, OVER_S)
    earlier = [one for one in moments if one.t < moments[-1].t - 2 * OVER_S]
    if len(recently) < LEAST_RECENT or len(earlier) < LEAST_EARLIER:
        return
    now, before = _level(recently), _level(earlier[:: max(1, len(earlier) // LEAST_EARLIER)])
    if (
        now is not None
        and before is not None
        and now.waiting - before.waiting >= MORE_WAITING
        and now.own_s <= SAME_OWN * before.own_s
        and now.traffic <= LESS_TRAFFIC * before.traffic
    ):
        yield fact("job.slower_network", value=now.traffic, usual=before.traffic, waiting=now.waiting,
                   waited=before.waiting)  # fmt: skip


class _Level(NamedTuple):
    """Medians of all ranks and nodes over some moments."""

    waiting: float
    own_s: float
    traffic: float


def _level(moments: Sequence[JobMoment]) -> _Level | None:
    """Return the medians, None if one of them is not known."""
    each = (
        [value for one in moments for value in one.ranks["waiting"] if value == value],
        [value for one in moments for value in one.ranks["own_s"] if value == value],
        [value for one in moments for value in one.network if value == value],
    )
    return _Level(*map(statistics.median, each)) if all(each) else None


def _traffic(node: JobNode, place: int, moments: Sequence[JobMoment]) -> float | None:
    found = recent_network(last(moments, OVER_S), place)
    if found is None and node.summary is not None:
        found = network_bytes_s(node.summary)
    return found


def _values(state: JobState, moments: Sequence[JobMoment], reading: str) -> dict[int, float]:
    """A reading of the live ranks, by rank: the mean of the last seconds."""
    means, found = recent(last(moments, OVER_S), reading), {}
    for _, rank in state.live_ranks():
        value: float | None = means[rank.rank] if rank.rank < len(means) else NAN
        if value != value:
            value = RANK_READINGS[reading](rank)
        if value is not None:
            found[rank.rank] = value
    return found


def _waiting(state: JobState, moments: Sequence[JobMoment]) -> float | None:
    """The median share in which ranks wait for others."""
    found = _values(state, moments, "waiting")
    return statistics.median(found.values()) if found else None


def _of_rank(code: str, node: JobNode, rank: RankSummary, **more: Any) -> Fact:
    fields: Mapping[str, Any] = {
        "rank": rank.rank,
        "host": node.host,
        "gpu": rank.gpu.index if rank.gpu is not None else None,
        "line": rank.line,
        "kind": rank.kind,
        **more,
    }
    return fact(code, **fields)
