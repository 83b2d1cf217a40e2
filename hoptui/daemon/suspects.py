"""GPUs in which a driver call hung: left alone for a while, then tried again, ever more rarely. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PAUSES_S = (60.0, 120.0, 300.0)
FORGIVEN_S = 900.0
"""A GPU that has answered for so long is trusted like any other."""


@dataclass
class _Suspect:
    hangs: int
    again: float
    answered: float | None = None

    @property
    def pause_s(self) -> float:
        return PAUSES_S[min(self.hangs, len(PAUSES_S)) - 1]


class Suspects:
    """By the index of the GPU, or `mark.DRIVER` for the driver as a whole; times are monotonic seconds, passed in."""

    def __init__(self) -> None:
        self._known: dict[int, _Suspect] = {}

    def hung(self, what: int, now: float) -> None:
        """A call did not return."""
        known = self._known.get(what)
        if known is None or (known.answered is not None and now - known.answered > FORGIVEN_S):
            known = _Suspect(0, 0.0)
        self._known[what] = known = _Suspect(known.hangs + 1, 0.0)
        known.again = now + known.pause_s

    def answered(self, what: int, now: float) -> None:
        """It was tried again and answered."""
        known = self._known.get(what)
        if known is not None and known.answered is None:
            known.answered = now

    def left(self) -> tuple[int, ...]:
        """What is left alone now, in order."""
        return tuple(sorted(what for what, known in self._known.items() if known.answered is None))

    def due(self, now: float, blocked: Iterable[int] = ()) -> int | None:
        """What to try again now, None for nothing; never what is in `blocked`."""
        waiting = (what for what in self.left() if what not in blocked)
        return next((what for what in waiting if now >= self._known[what].again), None)

    def pause_s(self, what: int) -> float:
        """How long it is left alone between two tries, seconds."""
        return self._known[what].pause_s
