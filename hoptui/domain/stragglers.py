"""The rank that the others wait for, from the stack samples of all ranks.

The rank that waits least for others while they wait much is the straggler. Where waiting has no frame of its
own, as in the backward pass of DistributedDataParallel, lines are compared: the straggler is often on a line
where the others rarely are, and rarely on one where all others are often.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from hoptui.domain.activities import Activity
from hoptui.domain.stack_groups import WAITS

LEAST_SAMPLES = 50
"""Samples of each rank."""
LEAST = 0.10
"""The share of the time that the others wait at least, and by which the straggler waits less."""
BACKWARD = ("run_backward", "_engine_run_backward")
"""Where DistributedDataParallel waits: its collectives run in C++, inside the backward pass."""
SIGMAS = 3.0
"""How many standard errors a difference has at least."""


class Straggler(NamedTuple):
    """The rank, its share of waiting, the median share of the others, and its line that they lack.

    `where` is None if no line differs: all its lines take longer. `share` and `others_share` are the shares
    of that line.
    """

    rank: int
    waits: float
    others_wait: float
    where: Activity | None
    share: float
    others_share: float


class _Rank(NamedTuple):
    total: int
    shares: dict[Activity, float]
    waits: float


def find_straggler(counts: Mapping[int, Counter[Activity]]) -> Straggler | None:
    """Return the straggler among ranks, None if they are even or there are too few samples.

    Args:
        counts: What each rank was found to do in the same time, by rank.
    """
    ranks = {rank: _rank(part) for rank, part in counts.items()}
    if len(ranks) < 2 or any(one.total < LEAST_SAMPLES for one in ranks.values()):
        return None
    return _by_waits(ranks) or _by_lines(ranks)


def _rank(counts: Counter[Activity]) -> _Rank:
    total = counts.total()
    shares = {where: count / total for where, count in counts.items()}
    waits = math.fsum(share for where, share in shares.items() if where.kind in WAITS)
    return _Rank(total, shares, waits)


def _by_waits(ranks: Mapping[int, _Rank]) -> Straggler | None:
    least = min(ranks, key=lambda rank: ranks[rank].waits)
    others = {rank: one for rank, one in ranks.items() if rank != least}
    next_least = min(others.values(), key=lambda one: one.waits)
    if not _differs(next_least.waits, next_least.total, ranks[least].waits, ranks[least].total):
        return None
    return _straggler(least, ranks, statistics.median(one.waits for one in others.values()))


def _by_lines(ranks: Mapping[int, _Rank]) -> Straggler | None:
    """Compare lines. A line on which all ranks but one are more often stands for their waiting."""
    lines = {where for one in ranks.values() for where in one.shares if where.kind == "compute"}
    if len(ranks) == 2:  # which of two ranks is the odd one is known by the line alone
        lines = {where for where in lines if where.inside in BACKWARD}
    found: list[tuple[float, Straggler]] = []
    for where in lines:
        by_rank = {rank: one.shares.get(where, 0.0) for rank, one in ranks.items()}
        least = min(by_rank, key=by_rank.__getitem__)
        others = [rank for rank in ranks if rank != least]
        floor = min(others, key=by_rank.__getitem__)
        if not _differs(by_rank[floor], ranks[floor].total, by_rank[least], ranks[least].total):
            continue
        hottest, share, usual = _own_line(least, ranks)
        most = max(others, key=lambda rank: ranks[rank].shares.get(hottest, 0.0))
        if _differs(share, ranks[least].total, ranks[most].shares.get(hottest, 0.0), ranks[most].total):
            waits = statistics.median(by_rank[rank] for rank in others)
            straggler = Straggler(least, by_rank[least], waits, hottest, share, usual)
            found.append((waits - by_rank[least], straggler))
    return max(found, key=lambda each: each[0], default=(0.0, None))[1]


def _straggler(rank: int, ranks: Mapping[int, _Rank], others_wait: float) -> Straggler:
    where, share, usual = _own_line(rank, ranks)
    differs = where.kind not in WAITS and share - usual >= LEAST / 2
    return Straggler(rank, ranks[rank].waits, others_wait, where if differs else None, share, usual)


def _own_line(rank: int, ranks: Mapping[int, _Rank]) -> tuple[Activity, float, float]:
    """Return the line on which a rank is more often than the others: its share, and their median."""

    def usual(where: Activity) -> float:
        return statistics.median(one.shares.get(where, 0.0) for other, one in ranks.items() if other != rank)

    own = ranks[rank].shares
    where = max(own, key=lambda each: own[each] - usual(each))
    return where, own[where], usual(where)


def _differs(more: float, of: int, less: float, of_less: int) -> bool:
    """Whether a share is larger than another one by enough, and by more than chance."""
    error = math.sqrt(more * (1 - more) / of + less * (1 - less) / of_less)
    return more - less >= max(LEAST, SIGMAS * error)
