"""What is wrong with a run on several nodes: a slow rank, a hung one, a silent node. Pure; no I/O.

Each report is made once, and its end is reported too. A rank is slow if it waits less for the others than
chance explains, while they wait much, or if its iterations take longer where the ranks do not wait for each
other. In a hung run, the rank is named that does not wait.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hoptui.domain.facts import Fact, fact
from hoptui.domain.job_findings import hung_rank, silent_node
from hoptui.domain.jobs import SAMPLES_S, JobNode, JobState, RankSummary
from hoptui.domain.stragglers import LEAST_SAMPLES, deviation

LEAST = 0.05
"""The share of the time by which the others wait more, and by which an iteration is longer."""
SURE = 5.0
"""Standard deviations from chance. 512 even ranks come to it once in a day."""
SPREADS = 8.0
"""How many times the usual spread of the ranks an iteration is longer."""
FEWEST = 3
"""Ranks that can be compared by the time of an iteration."""
TWICE, QUIET_LOOKS = 2, 60
"""Looks in a row, one a second, before a report, and before its end. A rank that is slow by little is not
found in each minute's samples."""
HUNG_S, HUNG_ITERATIONS = 10.0, 5.0
"""A job hangs after so long without a boundary, and after so many usual iterations."""
LATE_S, LATE_ITERATIONS = 2.0, 2.0
"""Ranks that are late by so much may be about to hang. Then no rank is called slow."""
WAITS, OTHERS_WAIT = 0.35, 0.5
"""In a hung run, the named rank waits for at most this share of the time, and the median one for more."""
BEFORE = 2
"""How many times `SAMPLES_S` before the newest samples are counted too. A rank that is slow by little is
found in a minute."""
Counts = dict[int, tuple[int, int]]
"""By rank: the samples in which it waits, and all."""


class Suspect(NamedTuple):
    """What may be reported: `kind` and `name` identify it, `what` is the report."""

    kind: str
    name: str
    what: Fact


class _Case:
    """How often in a row something was found and missed, and whether and when it was reported."""

    def __init__(self, what: Fact) -> None:
        self.what = what
        self.found = self.missed = 0
        self.told_at: float | None = None


class JobHealth:
    """Judges the states of one run over time. One epoch begins where another ends."""

    def __init__(self) -> None:
        self._cases: dict[tuple[str, str], _Case] = {}
        self._epoch = 0
        self._before: deque[tuple[float, Counts]] = deque(maxlen=BEFORE + 1)

    def look(self, state: JobState, now: float) -> list[Fact]:
        """Return what is new since the last look: reports that begin, and the ends of those before.

        Args:
            state: The newest state. One that could not be read says nothing.
            now: Seconds of any clock.
        """
        if state.epoch != self._epoch:
            self._epoch, self._cases = state.epoch, {}
            self._before.clear()
        if state.store_problem:
            return []
        found = {(each.kind, each.name): each.what for each in self._suspects(state, now)}
        for key, what in found.items():
            self._cases.setdefault(key, _Case(what)).what = what
        news = []
        for key, case in list(self._cases.items()):
            case.found, case.missed = (case.found + 1, 0) if key in found else (0, case.missed + 1)
            if case.told_at is None and case.found >= TWICE:
                case.told_at = now
                news.append(case.what)
            elif case.missed >= (QUIET_LOOKS if key[0] == "slow" else 1):
                del self._cases[key]
                if case.told_at is not None:
                    news.append(_end(key[0], case, now))
        return news

    def _suspects(self, state: JobState, now: float) -> Iterator[Suspect]:
        """Yield what looks wrong now."""
        for node in state.nodes:
            if node.condition == "silent" and node.summary is not None:
                what = silent_node(node, state)
                yield Suspect("silent", f"{node.host} {what.fields['ranks'][:1]}", what)
        live = {
            rank.rank: (node, rank)
            for node, rank in state.live_ranks()
            if rank.condition not in ("paused", "ended")
        }
        ranks = {rank: summary for rank, (_, summary) in live.items()}
        if _most(ranks, HUNG_S, HUNG_ITERATIONS):
            named = _not_waiting(ranks)
            if named is not None:
                yield Suspect("hung", str(named), hung_rank(*live[named], state))
        elif not _most(ranks, LATE_S, LATE_ITERATIONS):
            slow = self._slow(ranks, now)
            if slow is not None:
                yield _slow(*live[slow], ranks, state)

    def _slow(self, ranks: Mapping[int, RankSummary], now: float) -> int | None:
        """Return the slow rank by its newest samples, by those of a minute, or by the time it takes."""
        newest = pooled = _counts(ranks)
        for t, before in self._before:
            if SAMPLES_S <= now - t < (BEFORE + 1) * SAMPLES_S:  # none of them counts twice
                pooled = _added(pooled, before)
        if newest and (not self._before or now - self._before[-1][0] >= SAMPLES_S):
            self._before.append((now, newest))
        found = _slow_by_waits(newest)
        found = found if found is not None else _slow_by_waits(pooled)
        return found if found is not None else _slow_by_time(ranks)


def _most(ranks: Mapping[int, RankSummary], seconds: float, iterations: float) -> bool:
    """Whether at least half of the ranks have passed no boundary for so long."""
    late = [
        age_s > max(seconds, iterations * usual)
        for one in ranks.values()
        if (age_s := one.progress_age_s) is not None and (usual := one.iteration_s) is not None
    ]
    return any(late) and 2 * sum(late) >= len(ranks)


def _not_waiting(ranks: Mapping[int, RankSummary]) -> int | None:
    """Return the rank of a hung run that does not wait. None if that is not clear."""
    unheard = [rank for rank, one in ranks.items() if one.condition == "unknown"]
    if len(unheard) == 1:
        return unheard[0]
    waits = {rank: one.waiting for rank, one in ranks.items() if one.waiting is not None}
    if len(waits) < 2:
        return None
    ordered = sorted(waits, key=lambda rank: waits[rank])
    least, other = ordered[0], ordered[1]
    usual = statistics.median(waits.values())
    clear = waits[least] <= WAITS < waits[other] or (len(waits) == 2 and waits[least] < waits[other] / 2)
    return least if clear and max(usual, waits[other]) > OTHERS_WAIT else None


def _counts(ranks: Mapping[int, RankSummary]) -> Counts:
    """Return in how many of its samples each rank waits. Empty if too few ranks are known."""
    counts = {
        rank: (round(one.waiting * one.samples), one.samples)
        for rank, one in ranks.items()
        if one.waiting is not None and one.samples is not None and one.samples >= LEAST_SAMPLES
    }
    return counts if len(counts) >= 2 and 2 * len(counts) >= len(ranks) else {}


def _added(one: Counts, other: Counts) -> Counts:
    """Return the counts of two times together, of the ranks that both have."""
    return {
        rank: (count + other[rank][0], of + other[rank][1])
        for rank, (count, of) in one.items()
        if rank in other
    }


def _slow_by_waits(counts: Counts) -> int | None:
    """Return the rank that waits less than chance explains."""
    if len(counts) < 2:
        return None
    waits, total = (sum(each) for each in zip(*counts.values(), strict=True))
    shares = {rank: count / of for rank, (count, of) in counts.items()}
    least = min(shares, key=lambda rank: (-_less(counts[rank], waits, total), rank))
    others = [share for rank, share in shares.items() if rank != least]
    if statistics.median(others) - shares[least] < LEAST:
        return None
    return least if _less(counts[least], waits, total) >= SURE else None


def _less(own: tuple[int, int], waits: int, total: int) -> float:
    """Return how sure it is that a rank waits less than all others together."""
    count, of = own
    return -deviation(count, of, waits - count, total - of)


def _slow_by_time(ranks: Mapping[int, RankSummary]) -> int | None:
    """Return the rank whose iterations take longer by far more than the ranks usually differ."""
    seconds = {rank: one.iteration_s for rank, one in ranks.items() if one.iteration_s}
    if len(seconds) < FEWEST:
        return None
    usual = statistics.median(seconds.values())
    spread = statistics.median(abs(each - usual) for each in seconds.values())
    last = max(seconds, key=lambda rank: seconds[rank])
    longer = seconds[last] - usual
    return last if longer > max(LEAST * usual, SPREADS * spread) else None


def _slow(node: JobNode, rank: RankSummary, ranks: Mapping[int, RankSummary], state: JobState) -> Suspect:
    others = [one for number, one in ranks.items() if number != rank.rank]
    what = fact(
        "job.slow_rank",
        rank=rank.rank,
        world=state.world,
        host=node.host,
        waits=rank.waiting,
        others_wait=_median([one.waiting for one in others]),
        iteration_s=rank.iteration_s,
        usual_s=_median([one.iteration_s for one in others]),
        line=rank.line,
        gpu=rank.gpu.index if rank.gpu is not None else None,
        throttled=rank.gpu.throttled if rank.gpu is not None else None,
    )
    return Suspect("slow", str(rank.rank), what)


def _end(kind: str, case: _Case, now: float) -> Fact:
    after_s = now - (case.told_at or now)
    fields = case.what.fields
    if kind == "silent":
        return fact("job.node_back", host=fields["host"], after_s=after_s)
    return fact("job.even" if kind == "slow" else "job.progress", rank=fields["rank"], after_s=after_s)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
