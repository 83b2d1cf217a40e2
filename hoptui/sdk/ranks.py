"""Decisions that the ranks make together. A knob changes on all ranks at the same boundary, or on none.

The trainer provides the communication as a `RankGroup`; this module does not use torch. A boundary without
commands costs one reduction of one flag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from hoptui.domain.knobs import KnobValue, shown
from hoptui.protocol.messages import Command

T = TypeVar("T")
COMPARED_EVERY = 100
"""Boundaries between two comparisons of the knobs."""


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
        self._reported = ""

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
        """Return who asked for a stop, with the rank that received it. None if nobody did."""
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

    def problem(self, mine: str) -> str:
        """Return the problems with their ranks, the same text on every rank. "" if there are none."""
        if self.alone or self.idle(not mine):
            return mine
        texts = self._call(lambda: self._ranks.gather(mine))
        return _by_rank(texts)

    def difference(self, knobs: Callable[[], dict[str, KnobValue]]) -> str:
        """Return which knobs differ from rank 0's, or "".

        The knobs are compared every `COMPARED_EVERY` boundaries. A difference is reported once, on rank 0.
        """
        if self.alone:
            return ""
        self._boundaries += 1
        if (self._boundaries - 1) % COMPARED_EVERY:
            return ""
        by_rank = self._call(lambda: self._ranks.gather(knobs()))
        text = _differences(by_rank)
        if self.rank or text == self._reported:
            return ""
        self._reported = text
        return text or "the knobs of all ranks are the same again"

    def _call(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except Exception as error:
            raise SharingError(f"{type(error).__name__}: {error}") from error


def _by_rank(texts: Sequence[str]) -> str:
    """Return "rank 1: ValueError: no", or the text alone if all ranks report the same one."""
    if len(set(texts)) == 1:
        return texts[0]
    having = [(i, text) for i, text in enumerate(texts) if text]
    shown_first = "; ".join(f"rank {i}: {text}" for i, text in having[:3])
    return shown_first + (f"; and {len(having) - 3} more ranks" if len(having) > 3 else "")


def _differences(by_rank: Sequence[dict[str, KnobValue]]) -> str:
    first = by_rank[0]
    parts = [
        f"{name} is {shown(knobs.get(name))} on rank {i} and {shown(first.get(name))} on rank 0"
        for i, knobs in enumerate(by_rank)
        for name in dict.fromkeys((*first, *knobs))
        if knobs.get(name) != first.get(name)
    ]
    return "; ".join(parts[:3]) + (f"; and {len(parts) - 3} more" if len(parts) > 3 else "")
