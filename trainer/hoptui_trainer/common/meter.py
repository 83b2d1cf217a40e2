"""The steady rate of a run, and how much of the GPUs' peak that is.

Without compilation, evaluations, checkpoints, and what is tried out for a knob.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from hoptui_trainer.common.device import wait_for


class Meter:
    """Counts units and the seconds in which it was running. It is paused at first.

    It waits for what is queued on `device` whenever it begins or pauses.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.monotonic) -> None:
        self._device, self._clock = device, clock
        self._units = 0
        self._seconds = 0.0
        self._ideal: float | None = 0.0
        self._since: float | None = None

    @property
    def running(self) -> bool:
        return self._since is not None

    def begin(self) -> None:
        """Run from here on, if it does not already."""
        if self._since is None:
            wait_for(self._device)
            self._since = self._clock()

    def add(self, units: int, ideal: float | None) -> None:
        """Units done; they count only while it runs.

        `ideal` are the seconds that they would have taken at the GPUs' peak, None where that means nothing:
        what a unit costs, and in which precision, may change while a run goes on.
        """
        if self.running:
            self._units += units
            self._ideal = None if self._ideal is None or ideal is None else self._ideal + ideal

    def pause(self) -> None:
        """Pause from here on, unless it is paused already."""
        if self._since is not None:
            wait_for(self._device)
            self._seconds += self._clock() - self._since
            self._since = None

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is done in here does not count; it goes on as it was afterwards."""
        running = self.running
        self.pause()
        try:
            yield
        finally:
            if running:
                self.begin()

    def rate(self) -> float | None:
        """Units a second, None as long as nothing was measured. Read it while the meter is paused."""
        return self._units / self._seconds if self._units and self._seconds > 0 else None

    def mfu(self) -> float | None:
        """Model FLOPs utilization, as a fraction; None where it would mean nothing. Read it while
        the meter is paused."""
        return self._ideal / self._seconds if self._ideal and self._seconds > 0 else None
