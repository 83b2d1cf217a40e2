"""What the ranks of a run decide together, so that a knob changes on all of them at the same boundary or on none.

How they talk is the trainer's matter and stands behind the protocol `Ranks`; there is no torch in here. A boundary at
which nobody has anything to say costs one reduction of one flag.
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


class Ranks(Protocol):
    """The processes of one run: every operation is called by all of them, in the same order."""

    @property
    def rank(self) -> int:
        """This process among all, from 0."""
        ...

    @property
    def world(self) -> int:
        """How many there are."""
        ...

    def all(self, ok: bool) -> bool:
        """Whether it is so on every rank."""
        ...

    def share(self, payload: bytes | None) -> bytes:
        """Rank 0's bytes, on every rank."""
        ...

    def gather(self, value: object) -> list[Any]:
        """Everybody's value, in order of rank."""
        ...


class SharingError(Exception):
    """The ranks can no longer agree: an operation raised, and with it the trainer's own will."""


class Identity(msgspec.Struct, frozen=True):
    """Which run this is, as rank 0 knows it; `on` is False where hoptui is switched off there."""

    run: str
    epoch: int
    nonce: str
    on: bool


class Turn(msgspec.Struct, frozen=True):
    """What rank 0 says at a boundary: the commands to carry out, and whether the pause is over because its lease is."""

    commands: tuple[Command, ...] = ()
    over: bool = False


class Single:
    """A process alone."""

    rank = 0
    world = 1

    def all(self, ok: bool) -> bool:
        return ok

    def share(self, payload: bytes | None) -> bytes:
        return payload or b""

    def gather(self, value: object) -> list[Any]:
        return [value]


class Agreement:
    """The ranks of one run at their boundaries.

    Every method raises SharingError, and nothing else, when the ranks cannot talk.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.rank = ranks.rank
        self.alone = ranks.world == 1
        self._boundaries = 0
        self._told = ""

    def identity(self, own: Identity) -> Identity:
        """Rank 0's."""
        if self.alone:
            return own
        raw = self._ask(lambda: self._ranks.share(msgspec.msgpack.encode(own)))
        return self._ask(lambda: msgspec.msgpack.decode(raw, type=Identity))

    def quiet(self, mine: bool) -> bool:
        """Whether no rank has anything to say."""
        return mine if self.alone else self._ask(lambda: self._ranks.all(mine))

    def wishes(self, mine: str | None) -> str | None:
        """Who asked that the run be stopped, named with the rank it happened on; None if nobody did."""
        if self.alone:
            return mine
        asked = self._ask(lambda: self._ranks.gather(mine))
        return next((f"{by} on rank {i}" if by else "" for i, by in enumerate(asked) if by is not None), None)

    def turn(self, own: Turn) -> Turn:
        """What rank 0 says."""
        if self.alone:
            return own
        raw = self._ask(lambda: self._ranks.share(msgspec.msgpack.encode(own) if self.rank == 0 else None))
        return self._ask(lambda: msgspec.msgpack.decode(raw, type=Turn))

    def problem(self, mine: str) -> str:
        """ "" if no rank has a problem, else all of them with the ranks that have them: on every rank the same text."""
        if self.alone or self.quiet(not mine):
            return mine
        texts = self._ask(lambda: self._ranks.gather(mine))
        return _by_rank(texts)

    def difference(self, knobs: Callable[[], dict[str, KnobValue]]) -> str:
        """Which knobs are not what they are on rank 0, told on rank 0 when that is news; looked at now and then."""
        if self.alone:
            return ""
        self._boundaries += 1
        if (self._boundaries - 1) % COMPARED_EVERY:
            return ""
        everyones = self._ask(lambda: self._ranks.gather(knobs()))
        text = _differences(everyones)
        if self.rank or text == self._told:
            return ""
        self._told = text
        return text or "the knobs of all ranks are the same again"

    def _ask(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except Exception as error:
            raise SharingError(f"{type(error).__name__}: {error}") from error


def _by_rank(texts: Sequence[str]) -> str:
    """ "rank 1: ValueError: no"; where all ranks say the same, that alone."""
    if len(set(texts)) == 1:
        return texts[0]
    having = [(i, text) for i, text in enumerate(texts) if text]
    shown_first = "; ".join(f"rank {i}: {text}" for i, text in having[:3])
    return shown_first + (f"; and {len(having) - 3} more ranks" if len(having) > 3 else "")


def _differences(everyones: Sequence[dict[str, KnobValue]]) -> str:
    first = everyones[0]
    parts = [
        f"{name} is {shown(knobs.get(name))} on rank {i} and {shown(first.get(name))} on rank 0"
        for i, knobs in enumerate(everyones)
        for name in dict.fromkeys((*first, *knobs))
        if knobs.get(name) != first.get(name)
    ]
    return "; ".join(parts[:3]) + (f"; and {len(parts) - 3} more" if len(parts) > 3 else "")
