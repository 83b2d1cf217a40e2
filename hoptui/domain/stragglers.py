"""The rank that the others wait for, from the stack samples of all ranks.

The rank that waits least for others while they wait much is the straggler. The backward pass of
DistributedDataParallel waits in C++, without a frame of its own. Where each rank computes alone on a CPU, it
waits there while its thread sleeps. Elsewhere this is unknown. But all ranks leave the backward pass
together, so the straggler is in it for the least of the time, together with what it waits elsewhere. Where
waiting is not known at all, lines are compared: the straggler is often on a line where the others rarely are,
and rarely on one where all others are often.

Chance makes ranks differ too, and each look at each rank is one more chance. So the difference in waiting, or
the time on a line of its own, must be far beyond chance. A line that only one rank has is found soon.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from hoptui.domain.activities import Activity
from hoptui.domain.stack_groups import WAITS, inside
from hoptui.domain.stack_kinds import kind_of
from hoptui.domain.stacks import Stack

LEAST_SAMPLES = 30
"""Samples of each rank."""
LEAST = 0.10
"""The share of the time that the others wait at least, and by which the straggler waits less."""
APART = 1 / 3
"""The part of that difference by which it also waits less than the next rank. Two late ranks do not."""
BACKWARD = ("run_backward", "_engine_run_backward")
"""Functions where DistributedDataParallel waits: its collectives run in C++, inside the backward pass."""
FEW_UNKNOWN = 0.05
"""The share of the samples in a backward pass of which it may be unknown whether the rank waits: those of its
start. They count as work."""
LIKELY, SURE = 3.0, 4.75
"""How many standard deviations from chance: less waiting that a line explains, and what counts alone. Eight
even ranks that are looked at every two seconds come to the second once in hundreds of hours."""


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


class RankDevice(NamedTuple):
    """Where a rank runs, and the clock of its GPU beside that of the other ranks' GPUs on the node.

    `gpu` is its index, `clock_mhz` and `others_mhz` are means over the same time, the second one the median
    of several GPUs. `throttled` are the shares of the readings in which the clocks gave way, by the names of
    `hoptui.domain.devices.REASONS`. None is unknown.
    """

    host: str
    gpu: int | None = None
    clock_mhz: float | None = None
    others_mhz: float | None = None
    throttled: dict[str, float] | None = None


class _Rank(NamedTuple):
    """Samples, and those in which the rank waits, by its lines alone, by its sleep in the backward pass too,
    and if it did nothing else there. `sleeps` is None if the sleep is unknown in more than a few."""

    total: int
    counts: Counter[Activity]
    waits: int
    sleeps: int | None
    in_backward: int

    def share(self, where: Activity) -> float:
        return self.counts[where] / self.total


class _Line(NamedTuple):
    """A line on which a rank is more often than the others: its share, their median, and how sure that is."""

    where: Activity
    share: float
    usual: float
    sure: float


def find_straggler(counts: Mapping[int, Counter[Activity]]) -> Straggler | None:
    """Return the straggler among ranks, None if they are even or there are too few samples.

    Args:
        counts: What each rank was found to do in the same time, by rank.
    """
    ranks = {rank: _rank(part) for rank, part in counts.items()}
    if len(ranks) < 2 or any(one.total < LEAST_SAMPLES for one in ranks.values()):
        return None
    sleeps = {rank: one.sleeps for rank, one in ranks.items() if one.sleeps is not None}
    if len(sleeps) == len(ranks):
        return _by_waits(ranks, sleeps) or _by_lines(ranks)
    ranks = {rank: _rank(_without_sleep(part)) for rank, part in counts.items()}
    known = _by_waits(ranks, {rank: one.waits for rank, one in ranks.items()})
    return (
        known or _by_waits(ranks, {rank: one.in_backward for rank, one in ranks.items()}) or _by_lines(ranks)
    )


def _rank(counts: Counter[Activity]) -> _Rank:
    waits = sum(count for where, count in counts.items() if where.kind in WAITS)
    backward = {where: count for where, count in counts.items() if is_backward(where)}
    asleep = sum(count for where, count in backward.items() if where.backward == "waits")
    unknown = sum(count for where, count in backward.items() if not where.backward)
    sleeps = None if unknown > FEW_UNKNOWN * counts.total() else waits + asleep
    return _Rank(counts.total(), counts, waits, sleeps, waits + sum(backward.values()))


def _without_sleep(counts: Counter[Activity]) -> Counter[Activity]:
    """Return what a rank did, as that of ranks whose sleep is unknown."""
    found: Counter[Activity] = Counter()
    for where, count in counts.items():
        found[where._replace(backward="")] += count
    return found


def is_backward(where: Activity) -> bool:
    """Whether a thread is in the backward pass, where it may wait in C++."""
    return _names_backward(where.inside)


def may_wait(stack: Stack) -> bool:
    """Whether a thread with this stack waits for other ranks, or is in the backward pass."""
    return kind_of(stack) in WAITS or _names_backward(inside(stack))


def _names_backward(called: str) -> bool:
    """Whether the function that a line calls runs a backward pass."""
    return called.rpartition(".")[2] in BACKWARD


def _by_waits(ranks: Mapping[int, _Rank], waiting: Mapping[int, int]) -> Straggler | None:
    """Compare the samples in which ranks wait."""
    found = _late(ranks, waiting)
    if found is None:
        return None
    rank, others_wait, sure = found
    line = _own_line(rank, ranks)
    if max(sure, line.sure) < SURE:
        return None
    waits_there = line.where.kind in WAITS or (is_backward(line.where) and line.where.backward != "computes")
    differs = not waits_there and line.share - line.usual >= LEAST / 2
    waits = waiting[rank] / ranks[rank].total
    return Straggler(rank, waits, others_wait, line.where if differs else None, line.share, line.usual)


def _by_lines(ranks: Mapping[int, _Rank]) -> Straggler | None:
    """Compare lines. One on which all ranks but one are more often may stand for their waiting. Of two ranks,
    a line does not say which is the odd one."""
    if len(ranks) == 2:
        return None
    lines = {where for one in ranks.values() for where in one.counts if where.kind == "compute"}
    found = [each for where in lines if (each := _by_line(where, ranks)) is not None]
    return max(found, key=lambda each: each.others_wait - each.waits, default=None)


def _by_line(where: Activity, ranks: Mapping[int, _Rank]) -> Straggler | None:
    found = _late(ranks, {rank: one.counts[where] for rank, one in ranks.items()})
    if found is None:
        return None
    rank, others_wait, _ = found
    line = _own_line(rank, ranks)
    if line.sure < SURE or line.share - line.usual < LEAST:
        return None
    return Straggler(rank, ranks[rank].share(where), others_wait, line.where, line.share, line.usual)


def _late(ranks: Mapping[int, _Rank], waits: Mapping[int, int]) -> tuple[int, float, float] | None:
    """Return the rank that waits least, the median share of the others, and how sure that is.

    None if the others do not wait more by much, if chance may do that, or if several ranks wait little.

    Args:
        waits: The samples in which a rank waits, by rank.
    """
    shares = {rank: waits[rank] / ranks[rank].total for rank in ranks}
    least = min(shares, key=shares.__getitem__)
    others = [share for rank, share in shares.items() if rank != least]
    usual = statistics.median(others)
    sure = -_beyond_chance(least, ranks, waits)
    if sure < LIKELY or usual - shares[least] < LEAST:
        return None
    if min(others) - shares[least] < APART * (usual - shares[least]):
        return None
    return least, usual, sure


def _own_line(rank: int, ranks: Mapping[int, _Rank]) -> _Line:
    """Return the line on which a rank is more often than the others."""

    def usual(where: Activity) -> float:
        return statistics.median(one.share(where) for other, one in ranks.items() if other != rank)

    own = ranks[rank]
    where = max(own.counts, key=lambda each: own.share(each) - usual(each))
    sure = _beyond_chance(rank, ranks, {each: one.counts[where] for each, one in ranks.items()})
    return _Line(where, own.share(where), usual(where), sure)


def _beyond_chance(rank: int, ranks: Mapping[int, _Rank], counts: Mapping[int, int]) -> float:
    """Return how far the share of a rank is from that of the others together, in standard deviations."""
    of_others = sum(one.total for other, one in ranks.items() if other != rank)
    others = sum(found for other, found in counts.items() if other != rank)
    return deviation(counts[rank], ranks[rank].total, others, of_others)


def deviation(count: int, of: int, others: int, of_others: int) -> float:
    """Return how far the share `count / of` is from `others / of_others`, in standard deviations.

    It is the signed root of the likelihood ratio (G-test), which holds for small counts too. Negative if the
    first share is lower.
    """
    share = (count + others) / (of + of_others)

    def part(found: int, total: int) -> float:
        return found * math.log(found / (total * share)) if found else 0.0

    def rest(found: int, total: int) -> float:
        return (total - found) * math.log((total - found) / (total * (1 - share))) if total > found else 0.0

    ratio = part(count, of) + rest(count, of) + part(others, of_others) + rest(others, of_others)
    return math.copysign(math.sqrt(max(0.0, 2 * ratio)), count / of - others / of_others)
