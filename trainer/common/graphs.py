"""CUDA graphs of functions with fixed shapes: what takes the host longer to launch than the GPU to compute.

A graph repeats the addresses and the numbers of its capture. So a function that is to be captured takes nothing and
returns nothing: it reads and writes tensors that stay where they are, and every value that may change is one of them; a
Python float in it would be frozen without a word. Nothing in here knows of torch.compile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

import torch

from trainer.common.memory import is_out_of_memory, release

Work = Callable[[], None]

WARM_UPS = 2
"""Calls before the capture: they compile, make handles and workspaces, and learn the kernels' attributes."""
KEPT = 32
"""Graphs kept; the one that was used longest ago goes first."""


class Recorder(Protocol):
    """Turns a function into a graph."""

    def warm_up(self, function: Work) -> None:
        """Run it as it is, where graphs are captured."""
        ...

    def capture(self, function: Work) -> Work:
        """What repeats the function from now on; the capture itself computes nothing."""
        ...

    def forget(self) -> None:
        """Give back the memory of all graphs, of which none is used any more."""
        ...


class CudaRecorder:
    """Captures on a stream of its own, into one pool of memory that all graphs share.

    They may share it because no graph returns anything: what lies in the pool is dead when a replay ends, and replays
    follow each other on one stream. The pool is as large as the largest graph needs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, function: Work) -> None:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                function()
        finally:
            current.wait_stream(self._stream)

    def capture(self, function: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self._device)
        try:
            # thread_local: another thread, such as one that pins memory, may call CUDA meanwhile.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                function()
        except RuntimeError as error:
            # To end a capture that failed may raise again, and leaves the stream as it is then.
            torch.cuda.set_stream(current)
            raise error.__context__ or error from None
        return graph.replay

    def forget(self) -> None:
        release(self._device)
        self._pool = torch.cuda.graph_pool_handle()


class Graphs:
    """Runs functions by key: the first `WARM_UPS` times as they are, then as a graph. Without a recorder, always as they are.

    Each call does the work once, whichever way, so that a capture leaves no trace in the training and nothing needs to
    be restored after it. `captured` counts captures, `refused` the functions for which memory was too short; those run
    as they are.
    """

    def __init__(self, recorder: Recorder | None, kept: int = KEPT) -> None:
        self.wanted = True
        self._recorder = recorder
        self._kept = kept
        self._calls: dict[Hashable, int] = {}
        self._replays: OrderedDict[Hashable, Work] = OrderedDict()
        self.captured = 0
        self.refused = 0

    @property
    def active(self) -> bool:
        """Whether functions become graphs here: where they can, unless `wanted` is false."""
        return self._recorder is not None and self.wanted

    def run(self, key: Hashable, function: Work) -> None:
        """Do the work of `function`.

        The key says all that the function's kernels depend on: name, shapes, flags. Two functions with one key must be
        the same work on the same tensors; after a tensor is replaced, `clear` forgets the graphs that used it.
        """
        recorder = self._recorder
        if recorder is None or not self.wanted:
            function()
            return
        replay = self._replays.get(key)
        if replay is None:
            calls = self._calls.get(key, 0)
            if calls < WARM_UPS:
                recorder.warm_up(function)
                self._calls[key] = calls + 1
                return
            replay = self._replays[key] = self._captured(recorder, function)
            if len(self._replays) > self._kept:
                oldest, _ = self._replays.popitem(last=False)
                del self._calls[oldest]
        else:
            self._replays.move_to_end(key)
        replay()

    def clear(self) -> None:
        """Forget all graphs and their memory: before tensors that they use are replaced."""
        self._calls.clear()
        self._replays.clear()
        if self._recorder is not None:
            self._recorder.forget()

    def _captured(self, recorder: Recorder, function: Work) -> Work:
        try:
            replay = recorder.capture(function)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.refused += 1
            return function
        self.captured += 1
        return replay


def graphs(device: torch.device) -> Graphs:
    """Graphs on a GPU, plain calls elsewhere."""
    return Graphs(CudaRecorder(device) if device.type == "cuda" else None)
