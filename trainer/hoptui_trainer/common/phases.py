"""Where an iteration's time goes, measured where the work is done.

On a GPU the host only queues work, so its clock would measure launches: there a pair of CUDA events brackets
each phase and is read one iteration late, when the GPU has passed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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


class CudaClock:
    """On a GPU: events in the stream, reported through `run.phase_seconds` one iteration late."""

    def __init__(self, run: hoptui.Run) -> None:
        self._run = run
        self._path: list[str] = []
        self._spans: list[tuple[str, torch.Event, torch.Event]] = []
        self._before: list[tuple[str, torch.Event, torch.Event]] = []
        self._spare: list[torch.Event] = []

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
            self._before[-1][2].synchronize()
        for path, start, end in self._before:
            self._run.phase_seconds(path, start.elapsed_time(end) / 1000)
            self._spare += (start, end)
        self._before, self._spans = self._spans, []

    def _mark(self) -> torch.Event:
        event = self._spare.pop() if self._spare else torch.Event("cuda", enable_timing=True)
        event.record()
        return event


def phase_clock(run: hoptui.Run, device: torch.device) -> PhaseClock:
    """The clock that fits the device."""
    return CudaClock(run) if device.type == "cuda" else HostClock(run)
