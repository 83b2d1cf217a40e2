"""Where an iteration's time goes, measured where the work is done.

On a GPU the host only queues work, so its clock would measure launches: there a pair of CUDA events brackets
each phase and is read one iteration late, when the GPU has passed it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

import hoptui


class PhaseClock(Protocol):
    """Reports phases to the run. Phases nest: `env` inside `rollout` is `rollout/env`."""

    def queued(self, name: str) -> AbstractContextManager[None]:
        """A phase whose work the device does in its own time."""
        ...

    def waited(self, name: str) -> AbstractContextManager[None]:
        """A phase that ends when its work is done, such as writing a file."""
        ...

    def end_iteration(self) -> None:
        """Called once, after the last phase of an iteration."""
        ...


class NoClock:
    """Reports nothing: for work that is compiled or captured as a whole, whose parts take no time of their
    own."""

    def queued(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def waited(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def end_iteration(self) -> None:
        pass


NO_CLOCK = NoClock()


class HostClock:
    """On the CPU, work is done when the call returns, so the run's own phases suffice."""

    def __init__(self, run: hoptui.Run) -> None:
        self._run = run

    def queued(self, name: str) -> AbstractContextManager[None]:
        return self._run.phase(name)

    def waited(self, name: str) -> AbstractContextManager[None]:
        return self._run.phase(name)

    def end_iteration(self) -> None:
        pass


LEAST_S = 0.05
"""A shorter phase contains no sample of a GPU, so nobody needs to know when it was."""
ANCHORED_S = 120.0
"""For so long the clocks of GPU and host count as equally fast: 50 ppm of it are 6 ms."""


class CudaClock:
    """On a GPU: events in the stream, reported through `run.phase_seconds` one iteration late.

    An event whose time on the host's clock is known, the anchor, places all others on that clock.
    """

    def __init__(self, run: hoptui.Run) -> None:
        self._run = run
        self._path: list[str] = []
        self._spans: list[tuple[str, torch.Event, torch.Event]] = []
        self._before: list[tuple[str, torch.Event, torch.Event]] = []
        self._spare: list[torch.Event] = []
        self._anchor: torch.Event | None = None
        self._anchored = 0.0  # when the anchor passed, monotonic seconds

    @contextmanager
    def queued(self, name: str) -> Iterator[None]:
        self._path.append(name)
        path, start = "/".join(self._path), self._mark()
        try:
            yield
        finally:
            self._path.pop()
            self._spans.append((path, start, self._mark()))

    @contextmanager
    def waited(self, name: str) -> Iterator[None]:
        # What was queued before belongs to its own phase, not to this one.
        torch.cuda.synchronize()
        with self._run.phase(name):
            yield

    def end_iteration(self) -> None:
        """Report the phases of the iteration before this one.

        Waiting for its last event keeps the host at most one iteration ahead of the GPU, so that the time
        between two boundaries is the time an iteration takes.
        """
        if self._before:
            self._pass(self._before[-1][2])
        for path, start, end in self._before:
            seconds = start.elapsed_time(end) / 1000
            self._run.phase_seconds(path, seconds, ended=self._when(end) if seconds >= LEAST_S else None)
            self._spare += (one for one in (start, end) if one is not self._anchor)
        self._before, self._spans = self._spans, []

    def _pass(self, event: torch.Event) -> None:
        """Wait for an event. If the host had to wait, it knows when the event passed."""
        waits = not event.query()
        event.synchronize()
        if waits:
            self._set_anchor(event)
        elif self._anchor is None or time.monotonic() - self._anchored > ANCHORED_S:
            mark = self._mark()
            mark.synchronize()
            self._set_anchor(mark)

    def _set_anchor(self, event: torch.Event) -> None:
        self._anchored = time.monotonic()
        if self._anchor is not None:
            self._spare.append(self._anchor)
        self._anchor = event

    def _when(self, event: torch.Event) -> float | None:
        """Return when an event passed, in seconds of the host's monotonic clock."""
        if self._anchor is None:
            return None
        return self._anchored - event.elapsed_time(self._anchor) / 1000

    def _mark(self) -> torch.Event:
        event = self._spare.pop() if self._spare else torch.Event("cuda", enable_timing=True)
        event.record()
        return event


def phase_clock(run: hoptui.Run, device: torch.device) -> PhaseClock:
    """The clock that fits the device."""
    return CudaClock(run) if device.type == "cuda" else HostClock(run)
