"""Profiler traces of some iterations, for `hoptui profile RUN --steps 5` and `--profile-steps`."""

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
from typing import Literal

import psutil
import torch
from torch.profiler import ProfilerActivity, profile, schedule

import hoptui
from hoptui_trainer.common.report import plural, silent
from hoptui_trainer.common.trace_plan import WARMUP, TracePlan

MEMORY_BYTES = 256 << 20
"""How much the process may grow while it records: then the trace ends early.

Writing takes up to four times as much for a moment, and training pauses meanwhile.
"""
SECONDS = 60.0
"""How long it may record, for the same reason."""
LOWEST_PRIORITY = 19


class Tracer:
    """Records iterations with torch's profiler and writes a trace for TensorBoard, ui.perfetto.dev and
    `chrome://tracing`.

    The loop calls `end_iteration` after each iteration. A trace slows down only the iterations in it and the
    one after. It is bounded in time and memory; one that cannot be written is reported in an event and harms
    nothing. Every rank traces itself, into a file of its own.

    Args:
        folder: where traces go; None for `Run.trace_folder`.
        planned: a trace of the first iterations, after its `wait`; None without one.
        say: prints a line for users, also from another thread.
    """

    def __init__(
        self,
        run: hoptui.Run,
        workload: str,
        folder: Path | None,
        device: torch.device,
        rank: int,
        planned: TracePlan | None = None,
        say: Callable[[str], None] = silent,
    ) -> None:
        self._run, self._workload, self._folder, self._rank, self._say = run, workload, folder, rank, say
        self._activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            self._activities.append(ProfilerActivity.CUDA)
        self._profiler: profile | None = None
        self._plan = TracePlan(steps=1)
        self._done = self._first = 0
        self._began = 0.0
        self._bytes = 0
        self._writers: list[threading.Thread] = []
        run.on_profile(self.start)
        if planned is not None:
            try:
                self._start(planned)
            except RuntimeError as error:
                self._report(f"no trace: {error}", level="warning")

    def start(
        self,
        steps: int,
        *,
        wait: int = 0,
        warmup: int = WARMUP,
        stacks: bool = False,
        shapes: bool = True,
        memory: bool = False,
    ) -> None:
        """Record some of the next iterations, as in `TracePlan`; called between two iterations.

        Raises:
            RuntimeError: a trace is being recorded already, or the profiler cannot begin.
        """
        plan = TracePlan(steps=steps, wait=wait, warmup=warmup, stacks=stacks, shapes=shapes, memory=memory)
        self._start(plan)

    def _start(self, plan: TracePlan) -> None:
        if self._profiler is not None:
            left = self._plan.steps - self._recorded
            raise RuntimeError(f"a trace is being recorded; {left} iterations are left")
        with warnings.catch_warnings(action="ignore"):  # torch advises against a trace without a warm-up
            course = schedule(wait=plan.wait, warmup=plan.warmup, active=plan.steps, repeat=1)
        profiler = profile(
            activities=self._activities,
            schedule=course,
            record_shapes=plan.shapes,
            with_stack=plan.stacks,
            profile_memory=plan.memory,
        )
        profiler.start()
        self._profiler, self._plan, self._done = profiler, plan, 0
        self._begin(self._run.step)

    def _begin(self, step: int) -> None:
        """Note what the process was before the first iteration that is recorded; `step` is the next one."""
        if self._recorded == 0:
            self._first, self._began, self._bytes = step, time.monotonic(), _resident()

    @property
    def _recorded(self) -> int:
        """How many iterations are recorded so far; negative before the first one begins."""
        return self._done - self._plan.lead

    def end_iteration(self) -> None:
        """Count an iteration, and write the trace after the last one of it."""
        if self._profiler is None:
            return
        self._done += 1
        if self._recorded >= self._plan.steps:
            self._write("")
        elif self._recorded > 0 and (limit := self._exceeded()):
            self._write(limit)
        else:
            self._profiler.step()
            self._begin(self._run.step + 1)

    def _exceeded(self) -> str:
        """Which limit the trace has reached, in words; empty if none."""
        if _resident() - self._bytes > MEMORY_BYTES:
            return f"it took more than {MEMORY_BYTES >> 20} MB of memory"
        return f"it took more than {SECONDS:.0f} s" if time.monotonic() - self._began > SECONDS else ""

    def close(self) -> None:
        """Write what is recorded so far, and wait for files that are being compressed."""
        if self._profiler is not None:
            if self._recorded > 0:
                self._write("the run ended")
            else:
                self._drop()
                self._report("no trace written: the run ended before it began", level="warning")
        for writer in self._writers:
            writer.join()

    def _drop(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with contextlib.suppress(RuntimeError):
                profiler.stop()

    def _write(self, limit: str) -> None:
        """Write the trace and report its path, size and cost. `limit` is why it is shorter than asked for."""
        recorded = self._recorded
        profiler, self._profiler = self._profiler, None
        assert profiler is not None
        began = time.monotonic()
        # The name that TensorBoard's plugin looks for; other viewers take it too.
        name = f"{self._workload}-rank{self._rank}.{self._first:09d}.pt.trace.json"
        try:
            path = ((self._folder or self._run.trace_folder) / name).absolute()
            profiler.stop()
            path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError, ValueError, MemoryError) as error:
            self._report(f"no trace written: {error}", level="warning")
            return
        finally:
            del profiler
            _return_memory()
        stall = time.monotonic() - began
        early = f", {self._plan.steps - recorded} fewer than asked for: {limit}" if limit else ""
        what = f"{recorded} {plural(recorded, 'iteration')}{early}; training paused for {stall:.1f} s"
        self._writers = [writer for writer in self._writers if writer.is_alive()]
        writer = threading.Thread(target=self._compress, args=(path, what), name="hoptui-trace", daemon=True)
        self._writers.append(writer)
        writer.start()

    def _report(self, text: str, level: Literal["info", "warning"] = "info") -> None:
        self._run.event(text, level=level)
        self._say(text)

    def _compress(self, path: Path, what: str) -> None:
        """Compress the file beside training, which zlib does not hold up."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        packed = path.with_name(f"{path.name}.gz")
        try:
            with path.open("rb") as source, gzip.open(packed, "wb", compresslevel=4) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            path.unlink()
            size = packed.stat().st_size
        except OSError as error:
            packed.unlink(missing_ok=True)
            self._report(f"trace written: {path} ({what}; not compressed: {error})", level="warning")
            return
        self._report(f"trace written: {packed} ({size / 1e6:.1f} MB, {what})")


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def _return_memory() -> None:
    """Let the C library give back what the profiler has freed: gigabytes that it would keep for good."""
    with contextlib.suppress(OSError, AttributeError):  # musl has no malloc_trim
        ctypes.CDLL("libc.so.6").malloc_trim(0)
