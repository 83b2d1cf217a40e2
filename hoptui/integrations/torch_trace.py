"""A trace of some iterations with torch.profiler, for adapters of frameworks on top of torch."""

from __future__ import annotations

from typing import Any

import torch

import hoptui


class TorchTrace:
    """A trace of some iterations with torch.profiler, on rank 0."""

    def __init__(self, run: hoptui.Run) -> None:
        self._run = run
        self._profile: Any = None
        self._left = 0

    def start(self, steps: int, *, stacks: bool = False, shapes: bool = False, memory: bool = False) -> None:
        """Begin a trace of so many iterations: a handler for `Run.on_profile`."""
        if self._profile is not None:
            raise ValueError("a trace is being made already")
        if _rank():
            return
        self._left = steps
        self._profile = torch.profiler.profile(with_stack=stacks, record_shapes=shapes, profile_memory=memory)
        self._profile.start()

    def step(self) -> None:
        """An iteration is over."""
        if self._profile is not None:
            self._left -= 1
            if self._left <= 0:
                self.finish()

    def finish(self) -> None:
        """End the trace, and write it."""
        profile, self._profile = self._profile, None
        if profile is None:
            return
        try:
            profile.stop()
            self._run.trace_folder.mkdir(parents=True, exist_ok=True)
            path = self._run.trace_folder / f"{self._run.id}-{self._run.step}.json"
            profile.export_chrome_trace(str(path))
            self._run.event(f"trace written to {path}")
        except Exception as error:
            self._run.event(f"no trace was written: {error}", level="warning")


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
