"""What is wrong with a run on several nodes: a slow rank, a hung one, a silent node. Pure; no I/O.

Each report is made once, and its end is reported too. `hoptui.domain.slow_ranks` says which rank is slow, and
`hoptui.domain.slow_nodes` whether a whole node is. In a hung run, the rank is named that does not wait.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hoptui.domain.facts import Fact, fact
from hoptui.domain.job_findings import hung_rank, silent_node
from hoptui.domain.jobs import SAMPLES_S, JobNode, JobState, RankSummary
from hoptui.domain.slow_nodes import slow_node
from hoptui.domain.slow_ranks import (
    LATE_ITERATIONS,
    LATE_S,
    Evidence,
    SlowRank,
    comparable,
    evidence,
    late,
    slow_rank,
)

TWICE, QUIET_LOOKS = 2, 60
"""Looks in a row, one a second, before a report, and before its end. A rank that is slow by little is not
found in each minute's samples."""
HUNG_S, HUNG_ITERATIONS = 10.0, 5.0
"""A job hangs after so long without a boundary, and after so many usual iterations."""
WAITS, OTHERS_WAIT = 0.35, 0.5
"""In a hung run, the named rank waits for at most this share of the time, and the median one for more."""
BEFORE = 2
"""How many times `SAMPLES_S` before the newest samples are counted too. A rank that is slow by little is
found in a minute."""


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
        self._before: deque[tuple[float, Evidence]] = deque(maxlen=BEFORE + 1)

    @property
    def slow(self) -> Fact | None:
        """The report of a slow rank or node that holds, None without one."""
        cases = ((kind, case) for (kind, _), case in self._cases.items())
        told = [case.what for kind, case in cases if kind == "slow" and case.told_at is not None]
        return max(told, key=lambda what: len(what.fields["ranks"]), default=None)

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
        ranks = comparable(state)
        stands = late(ranks, HUNG_S, HUNG_ITERATIONS)
        found = {(each.kind, each.name): each.what for each in self._suspects(state, ranks, now)}
        self._of_node(found)
        for key, what in found.items():
            self._cases.setdefault(key, _Case(what)).what = what
        news = []
        for key, case in list(self._cases.items()):
            case.found, case.missed = (case.found + 1, 0) if key in found else (0, case.missed + 1)
            if case.told_at is None and case.found >= TWICE:
                case.told_at = now
                news.append(case.what)
            elif key[0] == "hung" and case.told_at is not None and stands and not _goes_on(ranks, key[1]):
                continue  # what it does is not known any more, as its samples are too old
            elif case.missed >= (QUIET_LOOKS if key[0] == "slow" else 1):
                del self._cases[key]
                if case.told_at is not None:
                    news.append(_end(key[0], case, now))
        return news

    def _of_node(self, found: dict[tuple[str, str], Fact]) -> None:
        """Let the report of a slow node stand for its ranks. None of them goes on, or is slow, by itself."""
        key = next((key for key in found if key[0] == "slow"), None)  # a look finds one at most
        if key is None:
            return
        what, told = found[key], self.slow
        for rank in what.fields["ranks"]:
            self._cases.pop(("slow", str(rank)), None)
        if told is not None and not what.fields["ranks"] and what.fields["rank"] in told.fields["ranks"]:
            del found[key]
            found["slow", _name(told)] = told

    def _suspects(self, state: JobState, ranks: Mapping[int, RankSummary], now: float) -> Iterator[Suspect]:
        """Yield what looks wrong now. `ranks` are those that may be compared."""
        for node in state.nodes:
            if node.condition == "silent" and node.summary is not None:
                what = silent_node(node, state)
                yield Suspect("silent", f"{node.host} {what.fields['ranks'][:1]}", what)
        live = {rank.rank: (node, rank) for node, rank in state.live_ranks()}
        if late(ranks, HUNG_S, HUNG_ITERATIONS):
            named = _not_waiting(ranks)
            if named is not None:
                yield Suspect("hung", str(named), hung_rank(*live[named], state))
        elif not late(ranks, LATE_S, LATE_ITERATIONS):
            earlier = self._earlier(ranks, now)
            whole = slow_node(ranks, {rank: live[rank][0].index for rank in ranks})
            slow = whole.rank if whole is not None else slow_rank(ranks, earlier)
            if slow is not None and slow.named:
                together = sorted(whole.ranks) if whole is not None else []
                yield _slow(*live[slow.rank], slow, together, ranks, state)

    def _earlier(self, ranks: Mapping[int, RankSummary], now: float) -> list[Evidence]:
        """Return the samples before those of now, none of which counts twice. Remember those of now."""
        earlier = [before for t, before in self._before if SAMPLES_S <= now - t < (BEFORE + 1) * SAMPLES_S]
        newest = evidence(ranks)
        if newest.waits and (not self._before or now - self._before[-1][0] >= SAMPLES_S):
            self._before.append((now, newest))
        return earlier


def _goes_on(ranks: Mapping[int, RankSummary], name: str) -> bool:
    """Whether a rank is known to have passed a boundary lately."""
    rank = ranks.get(int(name))
    return rank is not None and rank.progress_age_s is not None and rank.progress_age_s < HUNG_S


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


def _slow(
    node: JobNode,
    rank: RankSummary,
    found: SlowRank,
    together: Sequence[int],
    ranks: Mapping[int, RankSummary],
    state: JobState,
) -> Suspect:
    """Return the report of a slow rank, or of the node whose ranks are slow together."""
    others = [one for number, one in ranks.items() if number not in (rank.rank, *together)]
    by_share = found.basis in ("waits", "backward")
    what = fact(
        "job.slow_rank",
        rank=rank.rank,
        world=state.world,
        host=node.host,
        ranks=list(together),
        basis=found.basis,
        waits=found.value if by_share else rank.waiting,
        others_wait=found.usual if by_share else _median([one.waiting for one in others]),
        work_s=found.value if found.basis == "phases" else None,
        usual_work_s=found.usual if found.basis == "phases" else None,
        phases=rank.phases if found.basis == "phases" else "",
        iteration_s=rank.iteration_s,
        usual_s=_median([one.iteration_s for one in others]),
        line=rank.line,
        gpu=rank.gpu.index if rank.gpu is not None else None,
        throttled=rank.gpu.throttled if rank.gpu is not None else None,
    )
    return Suspect("slow", _name(what), what)


def _name(slow: Fact) -> str:
    """Return what identifies the report of a slow rank or node."""
    ranks = slow.fields["ranks"]
    return f"node of {ranks[0]}" if ranks else str(slow.fields["rank"])


def _end(kind: str, case: _Case, now: float) -> Fact:
    after_s = now - (case.told_at or now)
    fields = case.what.fields
    if kind == "silent":
        return fact("job.node_back", host=fields["host"], after_s=after_s)
    if kind == "slow":
        return fact(
            "job.even", rank=fields["rank"], ranks=fields["ranks"], host=fields["host"], after_s=after_s
        )
    return fact("job.progress", rank=fields["rank"], after_s=after_s)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
