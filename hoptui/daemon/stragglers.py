"""The ranks that the others wait for, found in the stack samples of the live runs."""

from __future__ import annotations

from dataclasses import dataclass

from hoptui.daemon.rank_devices import rank_device
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.facts import fact
from hoptui.domain.stragglers import Straggler, find_straggler

SECOND = 1_000_000_000
EVERY_S = 2.0
WINDOW_S = 30.0
TWICE, QUIET_LOOKS = 2, 15
"""A straggler is reported when it is found so often in a row, and its end after so many looks without it."""
LONGEST = 200


@dataclass
class _Case:
    """What is known of a process of a run: `rank` was found so often in a row, and `told` was reported."""

    nonce: str
    since: int
    rank: int = -1
    found: int = 0
    missed: int = 0
    told: int = -1
    told_at: float = 0.0


class Stragglers:
    """Judges the live runs with several ranks. Call `tend` about once per second."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._cases: dict[str, _Case] = {}
        self._due = 0.0

    def tend(self) -> None:
        """Judge every run if it is due."""
        now = self._node.clock.t() / SECOND
        if now < self._due:
            return
        self._due = now + EVERY_S
        live = [run for run in self._node.registry.live() if run.state.world > 1]
        self._cases = {run.id: self._cases[run.id] for run in live if run.id in self._cases}
        for run in live:
            self._node.faults.attempt(f"looking for a straggler of {run.id}", self._look, run, now)

    def _look(self, run: TrackedRun, now: float) -> None:
        case = self._cases.get(run.id)
        if case is None or case.nonce != run.nonce:
            case = self._cases[run.id] = _Case(run.nonce, self._node.clock.t())
            run.straggler = None
        if run.judge(now)[0] != "live":  # a pause, or a hang, which is reported with its stacks
            case.found = 0
            case.since = self._node.clock.t()
            return
        since = max(case.since, int((now - WINDOW_S) * SECOND))
        found = find_straggler(run.stacks.activities(since))
        self._count(case, found)
        if found is not None and case.found == TWICE and case.told != found.rank:
            self._end(run, case, now)
            case.told, case.told_at = found.rank, now
            self._report(run, found)
        elif case.told >= 0 and case.missed >= QUIET_LOOKS:
            self._end(run, case, now)

    def _count(self, case: _Case, found: Straggler | None) -> None:
        rank = found.rank if found is not None else -1
        case.found = case.found + 1 if rank == case.rank and found is not None else int(found is not None)
        case.rank = rank
        case.missed = 0 if rank == case.told else case.missed + 1

    def _report(self, run: TrackedRun, found: Straggler) -> None:
        where = found.where
        known = set(run.known_ranks)
        since = self._node.clock.t() - int(WINDOW_S * SECOND)
        what = fact(
            "run.straggler",
            rank=found.rank,
            world=run.state.world,
            waits=found.waits,
            others_wait=found.others_wait,
            where=None
            if where is None
            else {
                "kind": where.kind,
                "file": where.place.file[-LONGEST:],
                "line": where.place.line,
                "function": where.place.function[:LONGEST],
                "inside": where.inside[:LONGEST],
            },
            share=found.share,
            others_share=found.others_share,
            unsampled=sorted(known - run.stacks.activities(since).keys()),
            elsewhere=max(0, run.state.world - len(known)),
            **rank_device(self._node, run, found.rank, since)._asdict(),
        )
        run.straggler = what
        self._node.event("straggler", what, run=run.id, step=run.step, level="warning")

    def _end(self, run: TrackedRun, case: _Case, now: float) -> None:
        if case.told < 0:
            return
        run.straggler = None
        what = fact("run.even", rank=case.told, after_s=now - case.told_at)
        self._node.event("straggler", what, run=run.id, step=run.step)
        case.told, case.missed = -1, 0
