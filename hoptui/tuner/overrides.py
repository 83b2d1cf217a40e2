"""Which knobs of a run the tuner must leave alone. One object per run owns this; everybody else asks it."""

from __future__ import annotations

from collections.abc import Iterable

from hoptui.domain.tuning import ADVISED
from hoptui.protocol.messages import CommandRecord, Origin, Stage

ASKED: tuple[Stage, ...] = ("accepted", "scheduled", "applied", "reverted")
"""Stages of a user's command that show what the user wants. A refused command shows nothing."""


class KnobOverrides:
    """The knobs that are not the tuner's, with the reason.

    A knob is `chosen` when a user or an agent set its value, unless that took the advice of a verdict. The
    daemon refuses the tuner's commands for it. A knob is frozen when a user asked the tuner to leave it
    alone, or when the tuner gives it up. Both last until it is released.
    """

    def __init__(self) -> None:
        self._chosen: set[str] = set()
        self._frozen: set[str] = set()

    @property
    def chosen(self) -> frozenset[str]:
        """The knobs whose value a user set."""
        return frozenset(self._chosen)

    @property
    def all(self) -> frozenset[str]:
        """The chosen and the frozen knobs."""
        return frozenset(self._chosen | self._frozen)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, sorted."""
        return tuple(sorted(self.all))

    def choose(self, knobs: Iterable[str]) -> None:
        """These knobs have the values that a user wants."""
        self._chosen.update(knobs)

    def withdraw(self, knob: str) -> None:
        """The user's command for this knob came to nothing."""
        self._chosen.discard(knob)

    def freeze(self, knobs: Iterable[str]) -> None:
        """The tuner leaves these knobs alone."""
        self._frozen.update(knobs)

    def release(self, knob: str) -> None:
        """The tuner may turn this knob again."""
        self._chosen.discard(knob)
        self._frozen.discard(knob)

    def thaw(self) -> None:
        """Another tuner starts: only the knobs that a user chose are left alone."""
        self._frozen.clear()

    def end_process(self) -> None:
        """The run has ended, and with it what users chose. A tuner that goes on later leaves it alone."""
        self._frozen |= self._chosen
        self._chosen.clear()


def asks(record: CommandRecord) -> bool:
    """Whether this command shows what value a user or an agent wants."""
    return record.verb == "set" and by_choice(record.origin) and record.stage in ASKED


def holds(record: CommandRecord) -> bool:
    """Whether the tuner leaves the knob of this command alone: not if it took advice, or was released."""
    return asks(record) and record.released is None and not record.why.startswith(ADVISED)


def by_choice(origin: Origin) -> bool:
    """Whether the tuner leaves alone what this author sets."""
    return origin.kind in ("person", "agent")
