"""Decisions that the ranks make together. A knob changes on all ranks at the same boundary, or on none.

The trainer provides the communication as a `RankGroup`; this module does not use torch. A boundary without
commands costs one reduction of one flag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from hoptui.domain.facts import Fact, fact, nested
from hoptui.domain.knobs import KnobValue
from hoptui.protocol.messages import Command

T = TypeVar("T")
COMPARED_EVERY = 100
"""Boundaries between two comparisons of the knobs."""
NAMED = 3
"""Ranks or knobs that a problem names."""


class RankGroup(Protocol):
    """The processes that train one run together. All of them call each operation, in the same order."""

    @property
    def rank(self) -> int:
        """The index of this process, from 0."""
        ...

    @property
    def world(self) -> int:
        """The number of processes."""
        ...

    def all(self, ok: bool) -> bool:
        """Return whether `ok` is true on every rank."""
        ...

    def share(self, payload: bytes | None) -> bytes:
        """Return rank 0's `payload` on every rank."""
        ...

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks, in order of rank."""
        ...


class SharingError(Exception):
    """The ranks can no longer communicate: an operation of the trainer's `RankGroup` raised."""


class RunIdentity(msgspec.Struct, frozen=True):
    """Which run this is, as rank 0 knows it. `on` is False if hoptui is switched off on rank 0."""

    run: str
    epoch: int
    nonce: str
    on: bool


class BoundaryPlan(msgspec.Struct, frozen=True):
    """What rank 0 decides at a boundary: the commands, and whether the lease of a pause is `over`."""

    commands: tuple[Command, ...] = ()
    over: bool = False


class SingleProcess:
    """The `RankGroup` of a run with one process."""

    rank = 0
    world = 1

    def all(self, ok: bool) -> bool:
        return ok

    def share(self, payload: bytes | None) -> bytes:
        return payload or b""

    def gather(self, value: object) -> list[Any]:
        return [value]


class RankAgreement:
    """The ranks of one run at their boundaries.

    Every method raises SharingError, and nothing else, if the ranks cannot communicate.
    """

    def __init__(self, ranks: RankGroup) -> None:
        self._ranks = ranks
        self.rank = ranks.rank
        self.alone = ranks.world == 1
        self._boundaries = 0
        self._reported: Fact | None = None

    def dissolve(self) -> None:
        """From now on this process decides alone."""
        self._ranks, self.rank, self.alone = SingleProcess(), 0, True

    def identity(self, own: RunIdentity) -> RunIdentity:
        """Return rank 0's identity of the run."""
        if self.alone:
            return own
        raw = self._call(lambda: self._ranks.share(msgspec.msgpack.encode(own)))
        return self._call(lambda: msgspec.msgpack.decode(raw, type=RunIdentity))

    def idle(self, mine: bool) -> bool:
        """Return whether no rank has anything to do at this boundary."""
        return mine if self.alone else self._call(lambda: self._ranks.all(mine))

    def stop_request(self, mine: str | None) -> str | None:
        """Return who asked for a stop, with the rank that received it. None without a request."""
        if self.alone:
            return mine
        asked = self._call(lambda: self._ranks.gather(mine))
        return next((f"{by} on rank {i}" if by else "" for i, by in enumerate(asked) if by is not None), None)

    def plan(self, own: BoundaryPlan) -> BoundaryPlan:
        """Return rank 0's plan."""
        if self.alone:
            return own
        raw = self._call(lambda: self._ranks.share(msgspec.msgpack.encode(own) if self.rank == 0 else None))
        return self._call(lambda: msgspec.msgpack.decode(raw, type=BoundaryPlan))

    def problem(self, mine: Fact | None) -> Fact | None:
        """Return the problems with their ranks, the same fact on every rank. None if there are none."""
        if self.alone or self.idle(mine is None):
            return mine
        return _by_rank(self._call(lambda: self._ranks.gather(msgspec.to_builtins(mine))))

    def difference(self, knobs: Callable[[], dict[str, KnobValue]]) -> Fact | None:
        """Return which knobs differ from rank 0's, None if none does.

        The knobs are compared every `COMPARED_EVERY` boundaries. A difference is reported once, on rank 0.
        """
        if self.alone:
            return None
        self._boundaries += 1
        if (self._boundaries - 1) % COMPARED_EVERY:
            return None
        by_rank = self._call(lambda: self._ranks.gather(knobs()))
        found = _differences(by_rank)
        if self.rank or found == self._reported:
            return None
        self._reported = found
        return found or fact("ranks.agree")

    def _call(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except Exception as error:
            raise SharingError(f"{type(error).__name__}: {error}") from error


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
