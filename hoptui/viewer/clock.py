"""The node's monotonic clock as a viewer knows it: from the stamps of its answers, carried on by the viewer's own."""

from __future__ import annotations

from collections.abc import Callable

SECOND = 1_000_000_000
WINDOW = 30 * SECOND
ANOTHER = 60 * SECOND


class NodeClock:
    """Nanoseconds. An answer has always been under way, so the one whose stamp is furthest ahead is the closest.

    Only those of the last 30 to 60 s count: a node whose clock stood still (a virtual machine that was moved) is followed after that,
    and a clock that is a minute or more behind is another one: the node was started again.
    """

    def __init__(self, own: Callable[[], int]) -> None:
        self._own = own
        self._ahead: int | None = None  # the furthest of this window, which began at:
        self._began = 0
        self._before: int | None = None  # the furthest of the window before

    def now(self) -> int:
        """The node's time; the viewer's own before any answer."""
        return self._own() + (self._furthest or 0)

    def heard(self, stamp: int) -> None:
        """An answer came that was stamped so."""
        own = self._own()
        ahead = stamp - own
        best = self._furthest
        if best is None or best - ahead > ANOTHER:
            self._ahead, self._before, self._began = ahead, None, own
        elif own - self._began > WINDOW:
            self._ahead, self._before, self._began = ahead, self._ahead, own
        else:
            self._ahead = ahead if self._ahead is None else max(ahead, self._ahead)

    @property
    def _furthest(self) -> int | None:
        known = [ahead for ahead in (self._ahead, self._before) if ahead is not None]
        return max(known, default=None)
