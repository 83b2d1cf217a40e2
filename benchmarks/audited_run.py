"""A run that writes down what really happened: its rows, each call of a setter, each slow boundary.

`python -m benchmarks.audited_run LEDGER NAME HZ NUMBER` trains until SIGTERM, at most HZ iterations a second.
A row holds `n`, which no other row of any process has. `Ledger` reads what was written, also by a process
that was killed. AUDITED_RUN in the environment continues an earlier process: JSON of its `state_dict()`.
"""

from __future__ import annotations

import array
import json
import mmap
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hoptui
from hoptui.sdk import RankStore

KNOBS = 8
MOST_ROWS = 10**9
"""Row i of process number p holds n = p * MOST_ROWS + i."""
SLOW_NS = 10_000_000
"""Boundaries longer than this are written down one by one."""
FAST_HZ = 1000
"""From this rate on the run waits in a loop of Python, which holds the interpreter as a real one does."""
REFUSED = 9
"""Setters refuse values that end with this digit."""
MOST_KEPT = 2_000_000
_COUNTS = struct.Struct("<2q")  # rows, and the value of k0
_CLOCKS = ("wall", "cpu", "blocked")


@dataclass(frozen=True)
class Call:
    """A call of a setter at `t` (monotonic ns). `what` is `set`, `refuse`, or `undo` after a refusal."""

    what: str
    t: int
    knob: str
    value: int


@dataclass(frozen=True)
class Slow:
    """A boundary that ended at `t`: durations in ns. `queued`: the kernel ran other threads instead."""

    t: int
    wall: int
    cpu: int
    blocked: int
    queued: int


class Ledger:
    """What a process of the run has written. It can be read at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _lines(self, *kinds: str) -> Iterator[list[str]]:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return
        for line in text.splitlines():
            kind, *rest = line.split(" ", 1)
            if kind in kinds and rest:
                yield [kind, *rest]

    @property
    def identity(self) -> dict[str, Any] | None:
        """Its pid, the id of its link thread, its run id and `state_dict`; None before it has connected."""
        found = next(self._lines("run"), None)
        return dict(json.loads(found[1])) if found else None

    @property
    def ended(self) -> int:
        """When it ended in order (monotonic ns), 0 if it has not."""
        found = next(self._lines("end"), None)
        return int(found[1].split()[0]) if found else 0

    @property
    def closing_s(self) -> float:
        """How long `Run.close` took, 0 if it has not ended in order."""
        found = next(self._lines("end"), None)
        return int(found[1].split()[1]) / 1e9 if found else 0.0

    @property
    def rows(self) -> int:
        """How many rows it has logged."""
        return self._counts()[0]

    def rows_at(self, t: int) -> int:
        """How many rows it had logged at a stamp (monotonic ns), to a second."""
        found = [rest.split() for _, rest in self._lines("at")]
        return max((int(rows) for at, rows in found if int(at) <= t), default=0)

    @property
    def value(self) -> int:
        """The value of k0 in effect."""
        return self._counts()[1]

    def _counts(self) -> tuple[int, int]:
        try:
            rows, value = _COUNTS.unpack(self.path.with_suffix(".counts").read_bytes())
        except (FileNotFoundError, struct.error):
            return 0, 0
        return rows, value

    def calls(self) -> list[Call]:
        """Every call of a setter, in order."""
        found = [(kind, rest.split()) for kind, rest in self._lines("set", "refuse", "undo")]
        return [Call(kind, int(t), knob, int(value)) for kind, (t, knob, value) in found]

    def slow(self) -> list[Slow]:
        """Every boundary of more than 10 ms."""
        return [Slow(*map(int, rest.split())) for _, rest in self._lines("slow")]

    def boundaries(self) -> dict[str, array.array[int]]:
        """The durations of all boundaries in ns by clock, of a process that ended in order."""
        found = {}
        for clock in _CLOCKS:
            found[clock] = array.array("q")
            found[clock].frombytes(self.path.with_suffix(f".{clock}").read_bytes())
        return found


class AuditedRun:
    """The training process. Each change is written before the next instruction of the loop."""

    def __init__(self, ledger: Path, name: str, number: int, ranks: RankStore | None = None) -> None:
        self._path = ledger
        self._log = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        counts = ledger.with_suffix(".counts")
        counts.write_bytes(_COUNTS.pack(0, 0))
        with counts.open("r+b") as file:
            self._counts = mmap.mmap(file.fileno(), _COUNTS.size)
        self._number = number
        self._values = dict.fromkeys((f"k{i}" for i in range(KNOBS)), 0)
        self._refused = ""
        resume = json.loads(os.environ.get("AUDITED_RUN", "null"))
        self.run = run = hoptui.connect(name, resume=resume, ranks=ranks)
        for knob in self._values:
            run.knob(
                knob, 0, min=0, max=2**53, apply=self._setter(knob), read=self._reader(knob), effect="speed"
            )
        signal.signal(signal.SIGTERM, lambda *_: run.stop())
        link = next((t.native_id for t in threading.enumerate() if t.name == "hoptui-link"), 0)
        identity = {"pid": os.getpid(), "link": link, "run": run.id, "state": run.state_dict()}
        self._write("run", json.dumps(identity))

    def _write(self, kind: str, text: str) -> None:
        os.write(self._log, f"{kind} {text}\n".encode())

    def _setter(self, knob: str) -> Any:
        def put(value: int) -> None:
            refused = value % 10 == REFUSED
            kind = "undo" if self._refused == knob else "refuse" if refused else "set"
            self._write(kind, f"{time.monotonic_ns()} {knob} {value}")
            self._refused = knob if kind == "refuse" else ""
            if kind == "refuse":
                raise ValueError(f"{value} is refused")
            self._values[knob] = value

        return put

    def _reader(self, knob: str) -> Any:
        return lambda: self._values[knob]

    def _wait(self, since: int, hz: float) -> None:
        """Wait for the next iteration. A sleep would be too long for a fast loop."""
        if hz < FAST_HZ:
            time.sleep(1 / hz)
            return
        due = since + int(1e9 / hz)
        while time.monotonic_ns() < due:
            pass

    def train(self, hz: float) -> None:
        """Iterate until a stop. Measure each boundary with the log of its row."""
        run, clocks = self.run, [array.array("q") for _ in _CLOCKS]
        queue = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        base, step, going, due = self._number * MOST_ROWS, 0, True, 0
        while going:
            queued = int(os.pread(queue, 64, 0).split()[1])
            cpu, wall = time.thread_time_ns(), time.monotonic_ns()
            going = run.boundary(step)
            if going:
                run.log(n=base + step)
            end = time.monotonic_ns()
            wall, cpu = end - wall, time.thread_time_ns() - cpu
            queued = int(os.pread(queue, 64, 0).split()[1]) - queued
            blocked = max(0, wall - cpu - queued)
            if len(clocks[0]) < MOST_KEPT:
                for durations, took in zip(clocks, (wall, cpu, blocked), strict=True):
                    durations.append(took)
            if wall > SLOW_NS:
                self._write("slow", f"{end} {wall} {cpu} {blocked} {queued}")
            step += going
            if end > due:
                due = end + 10**9
                self._write("at", f"{end} {step}")
            _COUNTS.pack_into(self._counts, 0, step, self._values["k0"])
            self._wait(end, hz)
        for clock, durations in zip(_CLOCKS, clocks, strict=True):
            self._path.with_suffix(f".{clock}").write_bytes(durations.tobytes())
        closing = time.monotonic_ns()
        run.close()
        end = time.monotonic_ns()
        self._write("end", f"{end} {end - closing}")


def main() -> None:
    """Train."""
    ledger, name, hz, number = sys.argv[1:]
    AuditedRun(Path(ledger), name, int(number)).train(float(hz))


if __name__ == "__main__":
    main()
