"""CUDA graphs of functions with fixed shapes: for work whose launches take longer than its computation.

A graph repeats the addresses and numbers of its capture. So a captured function takes and returns nothing.
It reads and writes tensors that stay in place, and every value that may change is one of them. A Python
float would be frozen. This module does not depend on torch.compile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple, Protocol

import torch

from hoptui_trainer.common.device import wait_for
from hoptui_trainer.common.memory import insist, is_out_of_memory, release

Work = Callable[[], None]
Place = tuple[Hashable, Hashable]
"""Owner and key of a graph."""

WARM_UPS = 2
"""Calls before the capture: they compile, make handles and workspaces, and learn the kernels' attributes."""
KEPT = 64
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

    They may share it because no graph returns anything: what lies in the pool is dead when a replay ends, and
    replays follow each other on one stream. The pool is as large as the largest graph needs.
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
        cause: Exception | None = None
        try:
            # thread_local: another thread, such as one that pins memory, may call CUDA meanwhile.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                try:
                    function()
                except Exception as error:
                    cause = error
                    raise
        except RuntimeError as error:
            # To end a capture that failed may raise again, and leaves the stream as it is then.
            torch.cuda.set_stream(current)
            raise cause or error from None
        finally:
            cause = None  # its traceback refers to this frame, and to all that the function had made
        # Its first launch takes memory of the driver's; without that, nothing is computed.
        return partial(insist, self._device, graph.replay)

    def forget(self) -> None:
        # Replays may still be queued, on another stream than the one that torch waits for before it unmaps a
        # segment: the one of the capture.
        wait_for(self._device)
        release(self._device)
        self._pool = torch.cuda.graph_pool_handle()


class Captured(NamedTuple):
    """A graph, and the function that it repeats: that one holds the tensors which the graph knows by address
    alone."""

    replay: Work
    function: Work


class Graphs:
    """Runs functions by key: the first `WARM_UPS` times as they are, then as a graph. Without a recorder,
    always as they are.

    Each call does the work once, whichever way, so that a capture leaves no trace in the training and nothing
    needs to be restored after it. Graphs belong to an owner, such as a size, and go with it. `captured`
    counts captures, `refused` the functions for which memory was too short; those run as they are.
    """

    def __init__(self, recorder: Recorder | None, kept: int = KEPT) -> None:
        self.wanted = True
        self._recorder = recorder
        self._kept = kept
        self._calls: dict[Place, int] = {}
        self._graphs: OrderedDict[Place, Captured] = OrderedDict()
        self.captured = 0
        self.refused = 0

    @property
    def active(self) -> bool:
        """Whether functions become graphs here: where they can, unless `wanted` is false."""
        return self._recorder is not None and self.wanted

    def run(self, key: Hashable, function: Work, of: Hashable = None) -> None:
        """Do the work of `function`; its graph is one of the owner `of`.

        The key has all that the function's kernels depend on: name, shapes, flags. Two functions with one
        key and owner must be the same work on the same tensors. What a function refers to lives as long as
        its graph; before a tensor is replaced that it only finds by name, `drop` or `clear` must forget the
        graphs that used it.
        """
        recorder = self._recorder if self.wanted else None
        if recorder is None:
            function()
            return
        place = of, key
        known = self._graphs.get(place)
        if known is None:
            calls = self._calls.get(place, 0)
            if calls < WARM_UPS:
                recorder.warm_up(function)
                self._calls[place] = calls + 1
                return
            known = self._capture(recorder, place, function)
        else:
            self._graphs.move_to_end(place)
        known.replay()

    def prepare(
        self, key: Hashable, function: Work, of: Hashable = None, *, before: Callable[[], object]
    ) -> None:
        """Make the graph that `run` would make by and by. Without a recorder, run the function once: it may
        be compiled.

        The work is done up to `WARM_UPS` times, each time after `before`; to undo it is the caller's matter.
        """
        recorder, place = self._recorder if self.wanted else None, (of, key)
        if place in self._graphs:
            return
        needed = 1 if recorder is None else WARM_UPS
        once = function if recorder is None else partial(recorder.warm_up, function)
        for _ in range(needed - self._calls.get(place, 0)):
            before()
            once()
        self._calls[place] = needed
        if recorder is not None:
            self._capture(recorder, place, function)

    def drop(self, of: Hashable) -> None:
        """Forget an owner's graphs: before the tensors that only they use are given back."""
        for place in [place for place in (*self._graphs, *self._calls) if place[0] == of]:
            self._graphs.pop(place, None)
            self._calls.pop(place, None)
        if self._recorder is not None and not self._graphs:
            self._recorder.forget()  # a pool does not outlive its last graph

    def clear(self) -> None:
        """Forget all graphs and their memory: before tensors that they use are replaced."""
        self._calls.clear()
        self._graphs.clear()
        if self._recorder is not None:
            self._recorder.forget()

    def _capture(self, recorder: Recorder, place: Place, function: Work) -> Captured:
        replay = function
        try:
            replay = recorder.capture(function)
            self.captured += 1
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.refused += 1
        known = self._graphs[place] = Captured(replay, function)
        if len(self._graphs) > self._kept:
            oldest, _ = self._graphs.popitem(last=False)
            self._calls.pop(oldest, None)
        return known


def graphs(device: torch.device) -> Graphs:
    """Graphs on a GPU, plain calls elsewhere."""
    return Graphs(CudaRecorder(device) if device.type == "cuda" else None)
