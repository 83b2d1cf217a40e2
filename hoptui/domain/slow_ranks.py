"""The rank of a job that the others wait for: one evidence for the report and for the screens. Pure.

Each rank takes its own time for an iteration and waits for the rest. So the slow one waits least. Three
things say so, and the first that is sure names the rank:

- its stack samples: it waits in fewer of them. DistributedDataParallel waits without a frame of its own,
  inside the backward pass. There the samples in the backward pass count too;
- its phases in which no rank was seen to wait. Their time is measured and needs no samples. They may be a
  small part of an iteration, so the samples must agree, or the phases alone must make the difference;
- the time of its iterations, where the ranks do not wait for each other.

Chance makes ranks differ. Samples are spread evenly, and iterations are nearly equally long. So counts of
equal ranks differ less than those of independent samples. Or more: older versions take samples at nearly
equal distances. Then the variance is up to three times as large where an iteration takes as long as the time
between two samples. How large it is shows by the differences of many ranks, and else by those of the counts
of a rank in some seconds each.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from hoptui.domain.jobs import JobState, RankSummary
from hoptui.domain.stragglers import LEAST_SAMPLES, deviation

Basis = Literal["waits", "backward", "phases", "time"]
"""What a rank is compared by: its waiting, that with the backward pass, its phases, or its iterations."""
Doubt = Literal["chance", "small", "slower_rank", "few_samples", "late"]
"""Why a rank with a long own time is not reported as slow: chance may be the cause, the others wait little
for it, another rank is slower, it has too few samples, or half of the ranks are late and may hang."""
LEAST = 0.05
"""The share of the time by which the others wait more, and by which an iteration is longer."""
LEAST_BACKWARD = 0.10
"""The same of samples in the backward pass, which also computes."""
ALIKE = 0.05
"""Iterations of ranks that wait for each other differ by no more than this part of their length."""
SURE = 5.0
"""Standard deviations from chance. 512 even ranks come to it once in a day."""
LIKELY = 2.0
"""Standard deviations by which the samples agree with the phases."""
SPREADS = 8.0
"""How many times the usual difference of the ranks a time is longer: 5.4 standard deviations."""
FEWEST = 3
"""Ranks that can be compared by the time of an iteration."""
FEWEST_TIMED = 8
"""Ranks that can be compared by the time of their phases."""
LEAST_DIFFERENCE = 0.001
"""The usual difference of the ranks is taken to be at least this part of a time."""
FEWEST_SPREAD = 64
"""Ranks that show by themselves how much their counts differ. Fewer show how much theirs change over time."""
PARTS, LEAST_PARTS = 9, 5
"""How many parts of its samples show by how much the counts of a rank change: usually, without one, and at
least."""
LEAST_DISPERSION = 0.25
"""The least part of the variance of independent samples that is relied on."""
TRIMMED = 20
"""One of so many ranks at each end does not count in that: slow ranks are not chance."""
LATE_S, LATE_ITERATIONS = 2.0, 2.0
"""Ranks that are late by so much may be about to hang. Then no rank is called slow."""
Counts = Mapping[int, tuple[int, int]]
"""By rank: the samples in which it waits, and all."""


class Evidence(NamedTuple):
    """The samples of some time in which the ranks wait, and those in which they wait or are in the backward
    pass. Empty if too few ranks are known.

    `dispersion` is how many times the variance of independent samples the counts of a rank have over time, at
    least 1. It is a bound that the real one exceeds in one case of six.
    """

    waits: Counts
    backward: Counts
    dispersion: float


class SlowRank(NamedTuple):
    """The rank that looks slow, by what, and how sure that is.

    `value` and `usual` are its share and the median of the others, or seconds. `deviation` is in standard
    deviations from chance, of seconds in usual differences of the ranks. From `needed` on it is sure.
    `large`: the difference matters.
    """

    rank: int
    basis: Basis
    value: float
    usual: float
    deviation: float
    needed: float
    large: bool

    @property
    def named(self) -> bool:
        """Whether it is reported."""
        return self.large and self.deviation >= self.needed


def comparable(state: JobState) -> dict[int, RankSummary]:
    """Return the ranks of a job that may be compared, by rank: those of live nodes that train."""
    return {rank.rank: rank for _, rank in state.live_ranks() if rank.condition not in ("paused", "ended")}


def evidence(ranks: Mapping[int, RankSummary]) -> Evidence:
    """Return what the newest samples of the ranks say."""
    found = [one.dispersion for one in ranks.values() if one.dispersion is not None]
    return Evidence(
        _counts(ranks, {rank: one.waiting for rank, one in ranks.items()}),
        _counts(ranks, {rank: one.backward for rank, one in ranks.items()}),
        max(1.0, statistics.fmean(found) * (1 + math.sqrt(2 / (PARTS * len(found))))) if found else 1.0,
    )


def dispersion(parts: Iterable[tuple[int, int]]) -> float | None:
    """Return how many times the variance of independent samples the counts of a rank have. None if unknown.

    Args:
        parts: The samples of some seconds each in which it waits, and all.
    """
    known = [(count, of) for count, of in parts if of]
    share = sum(count for count, _ in known) / max(1, sum(of for _, of in known))
    if len(known) < LEAST_PARTS or not 0.0 < share < 1.0:
        return None
    away = sum((count - of * share) ** 2 / (of * share * (1 - share)) for count, of in known)
    return away / (len(known) - 1)


def pooled(parts: Sequence[Evidence]) -> Evidence:
    """Return the samples of several times together, of the ranks that all have."""
    waits, backward, most = parts[0]
    for part in parts[1:]:
        waits, backward = _added(waits, part.waits), _added(backward, part.backward)
        most = max(most, part.dispersion)
    return Evidence(waits, backward, most)


def slow_rank(ranks: Mapping[int, RankSummary], earlier: Sequence[Evidence] = ()) -> SlowRank | None:
    """Return the rank that looks slow, the surest one if none is. None if nothing can be compared.

    Args:
        ranks: The newest summaries of the live ranks, by rank.
        earlier: The samples of times before, none of which counts twice.
    """
    found: list[SlowRank] = []
    for each in _assessed(ranks, earlier):
        if each.named:
            return each
        found.append(each)
    return max(found, key=lambda one: one.deviation / one.needed, default=None)


def doubt(rank: int, ranks: Mapping[int, RankSummary], found: SlowRank | None) -> tuple[Doubt | None, float]:
    """Return why a rank is not reported as slow, None if it is about to be, and its standard deviations.

    Args:
        ranks: As for `slow_rank`.
        found: What `slow_rank` returns for them.
    """
    if late(ranks, LATE_S, LATE_ITERATIONS):
        return "late", 0.0
    if found is not None and found.named and found.rank != rank:
        return "slower_rank", 0.0
    if found is not None and found.named:
        return None, found.deviation
    newest = evidence(ranks)
    if rank not in newest.waits:
        return "few_samples", 0.0
    own = _of_share("waits", newest, rank)
    return ("chance" if own.deviation < own.needed else "small"), max(0.0, own.deviation)


def late(ranks: Mapping[int, RankSummary], seconds: float, iterations: float) -> bool:
    """Return whether at least half of the ranks have passed no boundary for so long."""
    found = [
        age_s > max(seconds, iterations * usual)
        for one in ranks.values()
        if (age_s := one.progress_age_s) is not None and (usual := one.iteration_s) is not None
    ]
    return any(found) and 2 * sum(found) >= len(ranks)


def _assessed(ranks: Mapping[int, RankSummary], earlier: Sequence[Evidence]) -> Iterator[SlowRank]:
    """Yield the rank that each kind of evidence points to."""
    newest = evidence(ranks)
    times = [newest, pooled([newest, *earlier])] if earlier else [newest]
    for each in times:
        yield from _by_share("waits", each)
    for each in times if alike(ranks) else ():
        yield from _by_share("backward", each)
    yield from _by_phases(ranks, newest)
    yield from _by_time(ranks)


# by stack samples -------------------------------------------------------------------------------------------


def _counts(ranks: Mapping[int, RankSummary], shares: Mapping[int, float | None]) -> Counts:
    counts = {
        rank: (round(share * one.samples), one.samples)
        for rank, one in ranks.items()
        if (share := shares[rank]) is not None and one.samples is not None and one.samples >= LEAST_SAMPLES
    }
    return counts if len(counts) >= 2 and 2 * len(counts) >= len(ranks) else {}


def _added(one: Counts, other: Counts) -> Counts:
    return {
        rank: (count + other[rank][0], of + other[rank][1])
        for rank, (count, of) in one.items()
        if rank in other
    }


def _of_basis(basis: Basis, found: Evidence) -> Counts:
    return found.backward if basis == "backward" else found.waits


def _by_share(basis: Basis, found: Evidence) -> Iterator[SlowRank]:
    """Yield the rank that waits less than all others together by most."""
    counts = _of_basis(basis, found)
    if len(counts) >= 2:
        waits, total = (sum(each) for each in zip(*counts.values(), strict=True))
        least = min(counts, key=lambda rank: (-_less(counts[rank], waits, total), rank))
        yield _of_share(basis, found, least)


def _of_share(basis: Basis, found: Evidence, rank: int) -> SlowRank:
    """Compare the waiting of a rank with that of all others."""
    counts = _of_basis(basis, found)
    waits, total = (sum(each) for each in zip(*counts.values(), strict=True))
    value = counts[rank][0] / counts[rank][1]
    usual = statistics.median(count / of for each, (count, of) in counts.items() if each != rank)
    sure = _less(counts[rank], waits, total) / math.sqrt(_dispersion(counts, found.dispersion))
    least = LEAST_BACKWARD if basis == "backward" else LEAST
    return SlowRank(rank, basis, value, usual, sure, SURE, usual - value >= least)


def _less(own: tuple[int, int], waits: int, total: int) -> float:
    """Return how many standard deviations a rank waits less than all others together, if samples were
    independent."""
    count, of = own
    return -deviation(count, of, waits - count, total - of)


def _dispersion(counts: Counts, over_time: float) -> float:
    """Return how many times the variance of independent samples the counts have.

    By many ranks, it is a bound as that over time. By few, it is the one over time.
    """
    share = statistics.median(count / of for count, of in counts.values())
    if len(counts) < FEWEST_SPREAD or not 0.0 < share < 1.0:
        return over_time
    left_out = len(counts) // TRIMMED
    scaled = sorted(
        (count - of * share) / math.sqrt(of * share * (1 - share)) for count, of in counts.values()
    )[left_out:-left_out]
    normal = statistics.NormalDist()
    edge = normal.inv_cdf(1 - left_out / len(counts))
    kept = 1 - 2 * edge * normal.pdf(edge) / (len(scaled) / len(counts))  # of the variance, if normal
    bound = 1 + math.sqrt(2 / len(scaled))
    return max(LEAST_DISPERSION, bound * statistics.pvariance(scaled) / kept)


def alike(ranks: Mapping[int, RankSummary]) -> bool:
    """Return whether iterations take equally long, as where ranks wait for each other."""
    seconds = [one.iteration_s for one in ranks.values() if one.iteration_s]
    if len(seconds) < 2:
        return False
    usual = statistics.median(seconds)
    return all(abs(each - usual) <= ALIKE * usual for each in seconds)


# by time ----------------------------------------------------------------------------------------------------


def _by_phases(ranks: Mapping[int, RankSummary], newest: Evidence) -> Iterator[SlowRank]:
    """Yield the rank that takes longer in the phases without waiting. All ranks have the same phases."""
    names = Counter(one.phases for one in ranks.values() if one.work_s and one.phases)
    if not names:
        return
    phases, count = names.most_common(1)[0]
    if count < FEWEST_TIMED or 2 * count < len(ranks):
        return
    seconds = {rank: one.work_s for rank, one in ranks.items() if one.work_s and one.phases == phases}
    found = _longest("phases", seconds)
    iterations = [one.iteration_s for one in ranks.values() if one.iteration_s]
    if found is None or not iterations:
        return
    longer = found.value - found.usual
    alone = longer >= LEAST * statistics.median(iterations)
    yield found._replace(large=alone or (found.large and _agrees(found.rank, newest)))


def _agrees(rank: int, newest: Evidence) -> bool:
    """Whether samples say too that the others wait for a rank."""
    kinds: tuple[Basis, ...] = ("waits", "backward")
    own = [_of_share(basis, newest, rank) for basis in kinds if rank in _of_basis(basis, newest)]
    return any(one.large and one.deviation >= LIKELY for one in own)


def _by_time(ranks: Mapping[int, RankSummary]) -> Iterator[SlowRank]:
    """Yield the rank whose iterations take longest."""
    found = _longest("time", {rank: one.iteration_s for rank, one in ranks.items() if one.iteration_s})
    if found is not None:
        yield found


def _longest(basis: Basis, seconds: Mapping[int, float | None]) -> SlowRank | None:
    """Return the rank that takes longest, beside how much the ranks usually differ."""
    known = {rank: each for rank, each in seconds.items() if each is not None}
    if len(known) < FEWEST:
        return None
    usual = statistics.median(known.values())
    spread = statistics.median(abs(each - usual) for each in known.values())
    last = max(known, key=lambda rank: known[rank])
    longer = known[last] - usual
    away = longer / max(spread, LEAST_DIFFERENCE * usual)
    return SlowRank(last, basis, known[last], usual, away, SPREADS, longer > LEAST * usual)
