"""Traces of some iterations with torch's profiler, for `hoptui profile RUN --steps 5`.

hoptui's trainer uses it, and adapters of frameworks on top of torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

import hoptui

MEMORY_BYTES = 256 << 20
"""How much the process may grow while it records. A trace ends before an iteration that would exceed it.

Writing takes several times as much on top for a moment; docs/howto/train.md has measurements.
"""
SECONDS = 60.0
"""How long it may record."""
WARMUP = 1
NICER = 10
"""By how much compressing yields to training: to a tenth of a core where all cores are busy."""


class TorchTrace:
    """Records iterations with torch's profiler and writes a trace for TensorBoard, ui.perfetto.dev and
    `chrome://tracing`.

    The loop calls `end_iteration` after each iteration. A trace slows down only the iterations in it and the
    one after. It is bounded in time and memory, but for its first iteration, which is recorded whole. A trace
    that cannot be written is reported in an event and harms nothing. Each rank writes a file of its own.

    Args:
        name: how the name of the file begins; None for the id of the run.
        folder: where traces go; None for `Run.trace_folder`.
        rank: of this process.
        others: whether ranks other than 0 are traced.
        say: prints a line for users, also from another thread.
    """

    def __init__(
        self,
        run: hoptui.Run,
        name: str | None = None,
        folder: Path | None = None,
        rank: int = 0,
        *,
        others: bool = True,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._run, self._name, self._folder, self._rank, self._say = run, name, folder, rank, say
        self._traced = others or rank == 0
        self._profiler: profile | None = None
        self._steps = self._lead = self._done = self._first = 0
        self._began = 0.0
        self._bytes = 0
        self._writers: list[threading.Thread] = []

    def start(
        self,
        steps: int,
        *,
        wait: int = 0,
        warmup: int = WARMUP,
        stacks: bool = False,
        shapes: bool = False,
        memory: bool = False,
    ) -> None:
        """Record `steps` iterations after `wait` and `warmup` others: a handler for `Run.on_profile`.

        In the warm-up the profiler runs and drops what it sees. `stacks` are source lines of operations,
        `shapes` those of their inputs, `memory` each allocation. Each of them costs: with shapes, a trace
        takes twice the memory and training pauses three times as long.

        Raises:
            RuntimeError: a trace is being recorded already, or the profiler cannot begin.
        """
        if not self._traced:
            return
        if self._profiler is not None:
            left = self._steps - self._recorded
            raise RuntimeError(f"a trace is being recorded; {left} iterations are left")
        with warnings.catch_warnings(action="ignore"):  # torch advises against a trace without a warm-up
            course = schedule(wait=wait, warmup=warmup, active=steps, repeat=1)
        profiler = profile(
            activities=_activities(),
            schedule=course,
            record_shapes=shapes,
            with_stack=stacks,
            profile_memory=memory,
            experimental_config=None if stacks else _no_python_events(),
        )
        profiler.start()
        self._profiler, self._steps, self._lead, self._done = profiler, steps, wait + warmup, 0
        self._begin(self._run.step)

    def _begin(self, step: int) -> None:
        """Note what the process was before the first iteration that is recorded; `step` is the next one."""
        if self._recorded == 0:
            self._first, self._began, self._bytes = step, time.monotonic(), _resident()

    @property
    def _recorded(self) -> int:
        """How many iterations are recorded so far; negative before the first one begins."""
        return self._done - self._lead

    def end_iteration(self) -> None:
        """Count an iteration, and write the trace after the last one of it."""
        if self._profiler is None:
            return
        self._done += 1
        if self._recorded >= self._steps:
            self._write("")
        elif self._recorded > 0 and (limit := self._exceeded()):
            self._write(limit)
        else:
            try:
                self._profiler.step()
            except Exception as error:
                self._drop()
                self.report(f"no trace written: {error}", level="warning")
                return
            self._begin(self._run.step + 1)

    def _exceeded(self) -> str:
        """Which limit one more iteration would exceed, in words; empty if none."""
        each = (_resident() - self._bytes) / self._recorded
        if each * (self._recorded + 1) > MEMORY_BYTES:
            return f"one more would take more than {MEMORY_BYTES >> 20} MB of memory"
        return f"it took more than {SECONDS:.0f} s" if time.monotonic() - self._began > SECONDS else ""

    def close(self) -> None:
        """Write what is recorded so far, and wait for files that are being compressed."""
        if self._profiler is not None:
            if self._recorded > 0:
                self._write("the run ended")
            else:
                self._drop()
                self.report("no trace written: the run ended before it began", level="warning")
        for writer in self._writers:
            writer.join()

    def _drop(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with contextlib.suppress(Exception):
                profiler.stop()
            _free(profiler)

    def _write(self, limit: str) -> None:
        """Write the trace and report its path, size and cost. `limit` is why it is shorter than asked for."""
        recorded = self._recorded
        profiler, self._profiler = self._profiler, None
        assert profiler is not None
        began = time.monotonic()
        # The name that TensorBoard's plugin looks for; other viewers take it too.
        name = f"{self._name or self._run.id}-rank{self._rank}.{self._first:09d}.pt.trace.json"
        try:
            path = ((self._folder or self._run.trace_folder) / name).absolute()
            profiler.stop()
            path.parent.mkdir(parents=True, exist_ok=True)
            _export(profiler, path)
        except Exception as error:
            self.report(f"no trace written: {error}", level="warning")
            return
        finally:
            _free(profiler)
        stall = time.monotonic() - began
        early = f", {self._steps - recorded} fewer than asked for: {limit}" if limit else ""
        what = f"{_iterations(recorded)}{early}; training paused for {stall:.1f} s"
        self._writers = [writer for writer in self._writers if writer.is_alive()]
        writer = threading.Thread(target=self._compress, args=(path, what), name="hoptui-trace", daemon=True)
        self._writers.append(writer)
        writer.start()

    def report(self, text: str, level: Literal["info", "warning"] = "info") -> None:
        """Tell users and viewers."""
        self._run.event(text, level=level)
        if self._say is not None:
            self._say(text)

    def _compress(self, path: Path, what: str) -> None:
        """Compress the file beside training, which zlib does not hold up."""
        with contextlib.suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICER)
        packed = path.with_name(f"{path.name}.gz")
        try:
            with path.open("rb") as source, gzip.open(packed, "wb", compresslevel=4) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            path.unlink()
            size = packed.stat().st_size
        except OSError as error:
            packed.unlink(missing_ok=True)
            self.report(f"trace written: {path} ({what}; not compressed: {error})", level="warning")
            return
        self.report(f"trace written: {packed} ({size / 1e6:.1f} MB, {what})")


def rank() -> int:
    """The rank of this process in torch.distributed; 0 outside."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _iterations(count: int) -> str:
    return f"{count} iteration{'' if count == 1 else 's'}"


def _activities() -> list[ProfilerActivity]:
    """The devices to record: the CPU, and others if they are in use."""
    cuda: Any = torch.cuda
    found: set[ProfilerActivity] = set(supported_activities())  # type: ignore[no-untyped-call]
    return sorted(found if cuda.is_initialized() else found - {ProfilerActivity.CUDA}, key=str)


def _no_python_events() -> Any:
    """Settings by which the profiler keeps no objects for Python, which nobody reads here; None before torch
    2.13. The file is the same, and writing it takes a third of the memory."""
    try:
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(trace_only=True)
    except (ImportError, TypeError):
        return None


def _export(profiler: profile, path: Path) -> None:
    """Write the file.

    Raises:
        OSError: it could not be written. torch itself only logs that, and leaves a part of the file behind.
    """
    path.unlink(missing_ok=True)
    profiler.export_chrome_trace(str(path))
    if not path.exists():
        path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)
        raise OSError(f"torch could not write {path}; is the disk full?")


def _free(profiler: profile) -> None:
    """Free what the profiler has recorded, and have the C library return it: up to gigabytes.

    A profiler is part of a reference cycle, and loops may do without the search for these.
    """
    vars(profiler).clear()
    with contextlib.suppress(OSError, AttributeError):  # musl has no malloc_trim
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)
