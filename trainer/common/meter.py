"""The steady rate of a run: without compilation, evaluations and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable


class Meter:
    """Counts units and the seconds in which it was running; it stands at first.

    What is queued on a device must be done when it is started or paused.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._units = 0
        self._seconds = 0.0
        self._since: float | None = None

    @property
    def running(self) -> bool:
        return self._since is not None

    def start(self) -> None:
        self._since = self._clock()

    def add(self, units: int) -> None:
        """Units done; they count only while it runs."""
        if self.running:
            self._units += units

    def pause(self) -> None:
        if self._since is not None:
            self._seconds += self._clock() - self._since
            self._since = None

    def rate(self) -> float | None:
        """Units a second, None as long as nothing was measured. To be read while it stands."""
        return self._units / self._seconds if self._units and self._seconds > 0 else None
