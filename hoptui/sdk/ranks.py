"""Decisions that the ranks make together. A knob changes on all ranks at the same boundary, or on none.

Ranks exchange commands at joint boundaries, which `RankSchedule` agrees on. The other boundaries cost no
communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hoptui.domain.facts import Fact, fact, nested
from hoptui.domain.knobs import KnobValue
from hoptui.protocol.messages import Command
from hoptui.sdk.rank_schedule import RankMember, RankSchedule
from hoptui.sdk.rank_session import RankSession
from hoptui.sdk.rank_store import CallWatch, CheckedStore, Exchange, Presence, RankStore, next_prefix

NAMED = 3
"""Ranks or knobs that a problem names."""
LEAVE_S = 0.5
"""How long the end of a run waits until the other ranks can know it."""


class RunIdentity(msgspec.Struct, frozen=True):
    """Which run this is, as rank 0 knows it. `on` is False if hoptui is switched off on rank 0.

    `node` is the node of rank 0 (see `hoptui.node.identity`), "" if it is not known.
    """

    run: str
    epoch: int
    nonce: str
    on: bool
    node: str = ""


class BoundaryPlan(msgspec.Struct, frozen=True):
    """What rank 0 decides at a boundary: the commands, and whether the lease of a pause is `over`."""

    commands: tuple[Command, ...] = ()
    over: bool = False


class RankAgreement:
    """The ranks of one run at their boundaries. A run of one process is `alone` and decides by itself.

    Every method raises SharingError, and nothing else, if the ranks cannot communicate. `passed` counts the
    boundaries of this process. `schedule` says which of them are joint; it is None for one process alone.
    `prefix` is that of the keys of this run.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.alone = True
        self.passed = 0
        self._exchange: Exchange | None = None
        self.schedule: RankSchedule | None = None
        self._dissolved: RankSchedule | None = None  # it may still have to write that this rank has left
        self._reported: Fact | None = None
        self.prefix = next_prefix()

    def join(self, store: RankStore, own: RunIdentity, member: RankMember) -> None:
        """Take part in the run of several ranks. `own` is the identity of the run if this is rank 0."""
        checked = CheckedStore(store)
        session = RankSession(checked, self.prefix)
        presence = Presence(session, "")
        self.rank, self.alone = session.rank, False
        self._exchange = Exchange(session, "", presence)
        identity = msgspec.msgpack.encode(own) if session.rank == 0 else None
        watch = CallWatch(checked)
        self.schedule = RankSchedule(session, "", presence, identity, member, session, watch)
        self.schedule.passed = self.passed
        self.schedule.start()

    def dissolve(self) -> None:
        """From now on this process decides alone."""
        self.leave(0.0)
        self._dissolved = self.schedule or self._dissolved
        self.rank, self.alone, self.schedule = 0, True, None

    def abandon(self) -> None:
        """Have no other ranks from now on: this is a forked child, and its parent has them.

        It takes no lock. A thread of the parent may have held it when the process was forked.
        """
        self._dissolved = self.schedule = None
        self.rank, self.alone = 0, True

    def leave(self, limit_s: float = LEAVE_S) -> None:
        """This rank passes no more boundaries. Wait at most so long until the others can know it.

        Without that wait, a process that ends at once would leave the others waiting for it.
        """
        schedule = self.schedule or self._dissolved
        if schedule is not None:
            schedule.close(limit_s)

    def watch(self) -> None:
        """Notice that the store answers no more. Called once a second in the thread of the link."""
        schedule = self.schedule
        if schedule is not None:
            schedule.watch()

    def finish(self) -> None:
        """The commands of a joint boundary have been carried out."""
        if self.schedule is not None:
            self.schedule.finish()

    def stop_request(self, mine: str | None) -> str | None:
        """Return who asked for a stop, with the rank that received it. None without a request."""
        if self.alone:
            return mine
        asked = self._gather(mine)
        return next((f"{by} on rank {i}" if by else "" for i, by in enumerate(asked) if by is not None), None)

    def plan(self, own: BoundaryPlan) -> BoundaryPlan:
        """Return rank 0's plan."""
        if self.alone or self._exchange is None:
            return own
        raw = self._exchange.share(msgspec.msgpack.encode(own) if self.rank == 0 else None)
        return msgspec.msgpack.decode(raw, type=BoundaryPlan)

    def problem(self, mine: Fact | None, later: bool = False) -> Fact | None:
        """Return the problems with their ranks, the same fact on every rank. None if there are none.

        `later`: what this rank has done takes effect later. It is a problem if that is not so on all.
        """
        if self.alone:
            return mine
        by_rank = self._gather([None if mine is None else msgspec.to_builtins(mine), later])
        problems = [problem for problem, _ in by_rank]
        if any(problem is not None for problem in problems):
            return _by_rank(problems)
        at_once = [rank for rank, (_, waits) in enumerate(by_rank) if not waits]
        if at_once and len(at_once) < len(by_rank):
            return fact("ranks.not_all_later", rank=at_once[0])
        return None

    def ended(self, mine: dict[str, Fact | None]) -> dict[str, Fact | None]:
        """Return the commands that have ended on every rank: id and problem, the same on every rank.

        `mine` are those that have ended on this one.
        """
        if self.alone:
            return mine
        by_rank = self._gather(
            {
                name: None if problem is None else msgspec.to_builtins(problem)
                for name, problem in mine.items()
            }
        )
        everywhere = [name for name in by_rank[0] if all(name in rank for rank in by_rank)]
        return {name: _by_rank([rank[name] for rank in by_rank]) for name in everywhere}

    def difference(self, knobs: dict[str, KnobValue]) -> Fact | None:
        """Return which knobs differ from rank 0's, None if none does or it has been reported.

        Only rank 0 reports.
        """
        if self.alone:
            return None
        found = _differences(self._gather(knobs))
        if self.rank or found == self._reported:
            return None
        self._reported = found
        return found or fact("ranks.agree")

    def _gather(self, value: object) -> list[Any]:
        assert self._exchange is not None, "a run of one process has nobody to ask"
        return self._exchange.gather(value)


def _by_rank(problems: Sequence[dict[str, Any] | None]) -> Fact | None:
    """Return the problem if all ranks have the same one, else the first three with their ranks."""
    having = [{"rank": i, "problem": problem} for i, problem in enumerate(problems) if problem is not None]
    if all(problem == problems[0] for problem in problems):
        return nested(problems[0])
    return fact("on_ranks", problems=having[:NAMED], more=max(0, len(having) - NAMED))


def _differences(by_rank: Sequence[dict[str, KnobValue]]) -> Fact | None:
    first = by_rank[0]
    found = [
        {"knob": name, "rank": i, "value": knobs.get(name), "first": first.get(name)}
        for i, knobs in enumerate(by_rank)
        for name in dict.fromkeys((*first, *knobs))
        if knobs.get(name) != first.get(name)
    ]
    if not found:
        return None
    return fact("ranks.differ", knobs=found[:NAMED], more=max(0, len(found) - NAMED))
