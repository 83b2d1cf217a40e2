"""Tools for benchmarks: quantiles, the machine, a separate node, a terminal that stamps every byte."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import platform
import pty
import queue
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from hoptui.client.session import NO_EVENTS, Session
from hoptui.protocol.messages import Delta, RunState

Figures = TypeVar("Figures")
Case = TypeVar("Case")

RESULTS = Path(__file__).parent / "results"
BEGAN = time.monotonic()
SPELL_S = 0.2
"""How often a GPU load says its rate."""
THIN_S, PAUSE_S = 0.01, 0.02
"""A thin line carries what it can in such pieces; between two frames nothing comes for longer."""


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which a share `q` of the values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Median, least and greatest, and how many."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "n": len(values),
    }


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for package in ("torch", "textual", "zmq", "msgspec"):
        with suppress(ImportError):
            module = __import__(package)
            found[package] = getattr(module, "__version__", "?")
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        printed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        found["gpus"] = printed.strip().splitlines()
    return found


def report(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Write a benchmark's figures to results/<name>.json, with the machine, and print them as one JSON
    object."""
    result = {"benchmark": name, "machine": machine(), **figures}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result), flush=True)
    return result


def tell(case: str, figures: Figures) -> Figures:
    """Say on stderr what one case of a benchmark has come to, with the seconds since the benchmark began, and
    return it: what is cut short, or fails later, has then not measured in vain."""
    print(f"{time.monotonic() - BEGAN:5.0f} s  {case}: {json.dumps(figures)}", file=sys.stderr, flush=True)
    return figures


def until(check: Callable[[], Any], seconds: float = 30.0, what: str = "") -> Any:
    """Wait for `check` to return something true, and return it."""
    end = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s in vain for {what or check}")
        time.sleep(0.01)
    return found


def newer_state(session: Session, state: int, *, wait_s: float, hz: float = 0.0) -> Delta:
    """Wait for a newer state of the node, and return it with the vitals of its runs.

    Rows and events are left out: with them the daemon answers at once, and a loop would take most of a core.
    """
    return session.fetch(state=state, cursors={"host": 1 << 62}, events=NO_EVENTS, wait_s=wait_s, hz=hz)


def in_lanes(measure: Callable[[Case, int], Figures], cases: Sequence[Case], lanes: int) -> list[Figures]:
    """Measure cases, as many at a time as there are lanes, and return what they come to, in their order.

    `measure` gets a case and the number of its lane, from 0. What it raises ends the benchmark once the cases
    in progress have ended.
    """
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for lane in range(lanes):
        free.put(lane)

    def one(case: Case) -> Figures:
        lane = free.get()
        try:
            return measure(case, lane)
        finally:
            free.put(lane)

    with ThreadPoolExecutor(lanes) as pool:
        return list(pool.map(one, cases))


@dataclass
class Bench:
    """A separate node: directories, processes that are reaped, runs."""

    base: Path
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        found = {name: value for name, value in os.environ.items() if name != "HOPTUI"}
        return found | {"HOPTUI_DIR": str(self.base / "run"), "HOPTUI_STATE_DIR": str(self.base / "state")}

    def start(
        self, command: Sequence[str], *, cpus: set[int] | None = None, **more: str
    ) -> subprocess.Popen[str]:
        """Start a program on this node, on some processors alone if `cpus` says so."""
        pinned = ["taskset", "-c", ",".join(map(str, sorted(cpus))), *command] if cpus else list(command)
        child = subprocess.Popen(
            pinned,
            env=self.environment | more,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.children.append(child)
        return child

    def python(self, script: str, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        """Start a Python program on this node."""
        return self.start([sys.executable, "-c", script, *arguments], **more)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A blocking viewer on this node."""
        with Session(client="bench", start_daemon=True) as session:
            yield session

    def find(self, name: str) -> RunState | None:
        """The run of this name, None as long as the daemon knows none."""
        with self.session() as session:
            state = session.fetch(state=0).node
        return next((r for r in reversed(state.runs) if r.name == name), None) if state else None

    def run(self, name: str) -> RunState:
        """The run of this name, once the daemon knows it."""
        found: RunState = until(lambda: self.find(name), what=f"the run {name}")
        return found

    def close(self) -> None:
        for child in self.children:
            if child.poll() is None:
                with suppress(OSError):
                    child.send_signal(signal.SIGCONT)
                child.kill()
            child.communicate(timeout=10)
        ours = [p for p in psutil.process_iter(["environ"]) if self._ours(p)]
        for process in ours:
            process.kill()
        psutil.wait_procs(ours, timeout=10)

    def _ours(self, process: psutil.Process) -> bool:
        environment = process.info.get("environ") or {}
        return environment.get("HOPTUI_DIR") == str(self.base / "run") and process.pid != os.getpid()


@contextmanager
def bench() -> Iterator[Bench]:
    """Yield a separate node, which this process uses too. It is removed afterwards."""
    before = {name: os.environ.get(name) for name in ("HOPTUI_DIR", "HOPTUI_STATE_DIR", "HOPTUI")}
    made = Bench(Path(tempfile.mkdtemp(prefix="hoptui-bench-")))
    os.environ |= {n: v for n, v in made.environment.items() if n.startswith("HOPTUI")}
    os.environ.pop("HOPTUI", None)
    try:
        yield made
    finally:
        made.close()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(made.base, ignore_errors=True)


class Terminal:
    """A terminal program in a separate pty. Its output is stored with the time of each write."""

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], columns: int = 120, rows: int = 40
    ) -> None:
        self.columns, self.rows = columns, rows
        self.written: list[tuple[float, bytes]] = []
        self.started = time.monotonic()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], list(command), environment | {"TERM": "xterm-256color", "COLORTERM": ""})
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = psutil.Process(self.pid)

    def read(self, seconds: float, rate: float | None = None) -> None:
        """Take what it writes for so long, at most `rate` bytes a second of it."""
        end = time.monotonic() + seconds
        most = max(1, int((rate or 1e9) * THIN_S))
        while (left := end - time.monotonic()) > 0:
            if select.select([self._fd], [], [], left)[0]:
                try:
                    data = os.read(self._fd, min(1 << 16, most))
                except OSError:
                    return
                self.written.append((self.clock(), data))
                if rate is not None:
                    time.sleep(len(data) / rate)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def cpu_s(self) -> float:
        """CPU seconds of the program and its children so far."""
        tree = [self.process, *self.process.children(recursive=True)]
        return float(sum(sum(p.cpu_times()[:2]) for p in tree))

    def clock(self) -> float:
        """Seconds since the program began."""
        return time.monotonic() - self.started

    def bytes_between(self, start: float, end: float) -> int:
        return sum(len(data) for at, data in self.written if start <= at < end)

    def first_full_frame_s(self, share: float = 0.9, within_s: float = math.inf) -> float:
        """When so much of the cells drawn in the end, or after so many seconds, were drawn: the stream
        replayed through a terminal emulator."""
        import pyte

        def drawn(screen: pyte.Screen) -> set[tuple[int, int]]:
            lines = screen.display
            return {(y, x) for y, line in enumerate(lines) for x, cell in enumerate(line) if cell != " "}

        written = [(at, data) for at, data in self.written if at <= within_s]
        screen, stream = _emulator(self.columns, self.rows)
        for _, data in written:
            stream.feed(data)
        goal = drawn(screen)
        screen, stream = _emulator(self.columns, self.rows)
        for at, data in written:
            stream.feed(data)
            if len(goal & drawn(screen)) >= share * len(goal):
                return at
        return written[-1][0]

    def screen(self) -> list[str]:
        """What is on the screen now."""
        screen, stream = _emulator(self.columns, self.rows)
        for _, data in self.written:
            stream.feed(data)
        return list(screen.display)

    def shown(self, pattern: str, start: float, every_s: float = 0.25) -> list[tuple[float, re.Match[str]]]:
        """What the screen showed of a pattern from `start` on, looked at so often where no frame was half
        written; the time is seconds since the program began."""
        screen, stream = _emulator(self.columns, self.rows)
        found, look_at = [], start
        for (at, data), (following, _) in itertools.pairwise(self.written):
            stream.feed(data)
            look_at = max(look_at, at + PAUSE_S) if at + PAUSE_S < following else look_at
            while at + PAUSE_S <= look_at < following:
                if seen := re.search(pattern, "\n".join(screen.display)):
                    found.append((look_at, seen))
                look_at += every_s
        return found

    def answered(self, pattern: str, times: Sequence[float]) -> list[float]:
        """The seconds from each of these times, of the program's clock, until what the screen shows of a
        pattern is other than it was then. A time without such an answer before the next one is left out."""
        screen, stream = _emulator(self.columns, self.rows)
        left, found = list(times), []
        shown, at_first = "", ""
        waiting: float | None = None
        for at, data in self.written:
            while left and left[0] <= at:
                waiting, at_first = left.pop(0), shown
            stream.feed(data)
            seen = re.search(pattern, "\n".join(screen.display))
            shown = seen[0] if seen else shown
            if waiting is not None and shown != at_first:
                found.append(at - waiting)
                waiting = None
        return found

    def close(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.process.terminate()
        self.read(1.0)
        with suppress(psutil.NoSuchProcess):
            self.process.kill()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._fd)


def _emulator(columns: int, rows: int) -> tuple[Any, Any]:
    import pyte

    screen = pyte.Screen(columns, rows)
    return screen, pyte.ByteStream(screen)


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
