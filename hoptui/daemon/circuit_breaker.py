"""Work that comes again and again, where a fault costs that work and nothing else. The clock is passed in;
only the log is written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

log = logging.getLogger("hoptui.daemon")

AFTER_FAULT_NS = 600_000_000_000
"""So long after a fault the same work is not begun again: the fault would come again."""

P = ParamSpec("P")
T = TypeVar("T")


class Faults:
    """What has broken of late. `now` tells monotonic nanoseconds."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._until: dict[str, int] = {}

    def attempt(self, what: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Do some work; None where it breaks, which is logged, and where `what` has broken of late."""
        if self.resting(what):
            return None
        try:
            return work(*args, **kwargs)
        except Exception:
            log.exception("%s broke", what)
            self._until[what] = self._now() + AFTER_FAULT_NS
            return None

    def resting(self, what: str) -> bool:
        """Whether it is left alone, because it has broken of late."""
        if self._now() < self._until.get(what, 0):
            return True
        self._until.pop(what, None)
        return False
