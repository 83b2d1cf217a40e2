"""Profiler traces of some iterations, for `hoptui profile RUN --steps 5`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import hoptui


class Tracer:
    """Records iterations with torch's profiler and writes a Chrome trace (`chrome://tracing`,
    ui.perfetto.dev).

    The loop calls `end_iteration` after each iteration. A trace slows down only the iterations in it; one
    that cannot be written is reported in an event and harms nothing. Every rank traces itself, into a file
    of its own.
    """

    def __init__(self, run: hoptui.Run, workload: str, folder: Path, device: torch.device, rank: int) -> None:
        self._run, self._workload, self._folder, self._rank = run, workload, folder, rank
        self._activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            self._activities.append(ProfilerActivity.CUDA)
        self._profiler: profile | None = None
        self._left = 0
        self._first = 0
        run.on_profile(self.start)

    def start(self, steps: int) -> None:
        """Record the next `steps` iterations; called between two iterations.

        Raises:
            RuntimeError: a trace is being recorded already, or the profiler cannot begin.
        """
        if self._profiler is not None:
            raise RuntimeError(f"a trace is being recorded; {self._left} iterations are left")
        profiler = profile(activities=self._activities, record_shapes=True, acc_events=True)
        profiler.start()
        self._profiler, self._left, self._first = profiler, max(1, steps), self._run.step

    def end_iteration(self) -> None:
        """Count an iteration, and write the trace after the last one of it."""
        if self._profiler is None:
            return
        self._left -= 1
        if self._left <= 0:
            self.close()

    def close(self) -> None:
        """Write what is recorded so far; nothing without a trace."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        name = f"{self._workload}-trace-{self._first:09d}-rank{self._rank}.json.gz"
        try:
            path = (self._folder / name).absolute()
            profiler.stop()
            path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError, ValueError, MemoryError) as error:
            self._run.event(f"no trace written: {error}", level="warning")
            return
        self._run.event(f"trace written: {path}")
