"""What the benchmarks on a GPU node share: a load in a child, GPU rows as a viewer gets them, CPU time of
what watches."""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.measure import SPELL_S, Bench, until
from hoptui.client.session import Session
from hoptui.domain.columns import Columns, concatenate
from hoptui.domain.devices import GpuInfo

ALL = 1 << 62
"""As if every event and command were known already: an answer then waits for rows."""
RUN = """
import time, hoptui
run = hoptui.connect("beside")
for i in run.iterations():
    time.sleep(0.5)
    run.log({f"metric_{k}": i + k / 7 for k in range(40)}, env_steps=1024)
"""
"""A live run of two rows a second, so that what is measured also records."""


class Load:
    """A running load; `rates` are (monotonic seconds at the end of each spell, units per second)."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.rates: list[tuple[float, float]] = []
        self.process = psutil.Process(child.pid)
        self._child = child
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until its first spells of steady work are over."""
        until(lambda: len(self.rates) > 1 or self._child.poll() is not None, 120, "the load")
        if self._child.poll() is not None:
            raise RuntimeError("the load ended; `python -m benchmarks.loads` says why")

    def between(self, start: float, end: float) -> list[float]:
        """The rates of the spells that lie within."""
        return [rate for at, rate in list(self.rates) if start + SPELL_S <= at <= end]

    def _read(self) -> None:
        assert self._child.stdout is not None
        with suppress(ValueError):
            for line in self._child.stdout:
                at, rate = line.split()
                self.rates.append((float(at), float(rate)))


@contextmanager
def load(node: Bench, name: str) -> Iterator[Load]:
    """One of `benchmarks.loads` on this node, working already; ended afterwards."""
    child = node.start([sys.executable, "-m", "benchmarks.loads", name])
    try:
        running = Load(child)
        running.wait()
        yield running
    finally:
        child.kill()
        child.wait(30)


class Watcher:
    """A viewer that follows every GPU at a rate, in a thread: `rows` of a GPU are what it got."""

    def __init__(self, session: Session, hz: float) -> None:
        self._session, self._hz = session, hz
        self._parts: dict[str, list[Columns]] = {}
        self._stop = threading.Event()
        self.gpus: tuple[GpuInfo, ...] = until(self._find, 30, "a GPU that can be read")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def rows(self, gpu: GpuInfo, start: float, end: float) -> Columns:
        """What arrived of a GPU with stamps between two monotonic seconds."""
        parts = list(self._parts.get(f"gpu/{gpu.uuid}", ()))
        whole = concatenate(f"gpu/{gpu.uuid}", parts).after(int(start * 1e9))
        kept = sum(t <= end * 1e9 for t in whole.times())
        return whole.slice(0, kept)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(15)

    def _find(self) -> tuple[GpuInfo, ...]:
        node = self._session.fetch(state=0, wait_s=0.2).node
        return tuple(gpu for gpu in node.gpus if not gpu.problem) if node else ()

    def _follow(self) -> None:
        cursors = {f"gpu/{gpu.uuid}": time.monotonic_ns() for gpu in self.gpus}
        state = 0
        while not self._stop.is_set():
            delta = self._session.fetch(
                cursors=dict(cursors), state=state, events=ALL, commands=ALL, wait_s=1.0, hz=self._hz
            )
            state = delta.state
            for part in delta.columns:
                if len(part):
                    cursors[part.source] = part.times()[-1]
                    self._parts.setdefault(part.source, []).append(part)


@contextmanager
def watched(node: Bench, hz: float) -> Iterator[Watcher]:
    """Somebody watches the GPUs of this node `hz` times a second."""
    with node.session() as session:
        watcher = Watcher(session, hz)
        try:
            yield watcher
        finally:
            watcher.close()


def hoptui_processes(node: Bench) -> list[psutil.Process]:
    """The daemon of this node and its samplers."""
    found = []
    for process in psutil.process_iter(["environ", "cmdline"]):
        environment, line = process.info["environ"] or {}, " ".join(process.info["cmdline"] or ())
        ours = environment.get("HOPTUI_DIR") == node.environment["HOPTUI_DIR"]
        if ours and ("hoptui.daemon" in line or "hoptui.telemetry" in line):
            found.append(process)
    return found


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """CPU seconds that processes have used: user and system, of all their threads, those that have ended too.
    By the kernel's own count in nanoseconds (clock_getcpuclockid(3)): /proc and psutil have ticks of
    10 ms.

    Raises:
        OSError: one of them is gone.
    """
    return sum(time.clock_gettime_ns(_clock_of(process.pid)) for process in processes) / 1e9


def wake_ups(processes: Sequence[psutil.Process]) -> int:
    """How often threads of these have waited for something and gone on; of those that live."""
    found = 0
    for process in processes:
        for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
            found += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


def _clock_of(pid: int) -> int:
    clock = ctypes.c_int()
    failed = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if failed:
        raise OSError(failed, os.strerror(failed))
    return clock.value


def known(columns: Columns, name: str) -> list[float]:
    """The known values of a reading."""
    return [v for v in columns.column(name) if v == v] if name in columns.names else []


def median(columns: Columns, name: str, digits: int = 2) -> float | None:
    """The median of a reading, None where nothing is known of it."""
    values = known(columns, name)
    return round(statistics.median(values), digits) if values else None
