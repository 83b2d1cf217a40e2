"""Readings of the runs' processes: each run's process and its descendants, summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psutil

from hoptui.telemetry.rates import Rate
from hoptui.wire.columns import Columns, pack

WALK_EVERY_NS = 5_000_000_000
REST = 300  # work that took 1 ms rests for 300 ms: walking and reading each stay under 1/300 of a core


class Processes:
    """The readings of the sources `process/<run id>`, from psutil.

    | name | unit |
    |---|---|
    | `cpu_percent` | % of one core, since the reading before |
    | `memory_rss_bytes` | bytes, resident; a page shared by workers counts once for each of them |
    | `threads`, `processes` | how many, of all descendants and the run's own process |
    | `disk_read_bytes_per_s`, `disk_written_bytes_per_s` | bytes/s from and to disks of those that let us read it |

    Finding descendants walks every process of the node (15 µs each), so it happens every five seconds and more rarely
    where it is slow; a new worker counts from then on. Trees of hundreds of workers are read less often than asked.

    Args:
        clock: monotonic ns.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._trees: dict[str, _Tree] = {}
        self._walk_at = 0
        self._read_at = 0

    def watch(self, pids: Mapping[str, int]) -> None:
        """Whose processes to read from now on: run id -> pid. A run whose pid stays the same keeps its counters."""
        known, self._trees = self._trees, {}
        for run, pid in pids.items():
            tree = known.get(run)
            if tree is None or tree.pid != pid:
                tree = _Tree(pid)
                self._walk_at = self._read_at = 0
            self._trees[run] = tree

    def read(self) -> list[Columns]:
        """One row for each run whose process lives; none while the reading before is still being rested from."""
        start = self._clock()
        if not self._trees or start < self._read_at:
            return []
        if start >= self._walk_at:
            for tree in self._trees.values():
                tree.walk()
            end = self._clock()
            self._walk_at = start + max(WALK_EVERY_NS, REST * (end - start))
            start = end
        parts = []
        for run, tree in self._trees.items():
            t = self._clock()
            row = tree.read(t)
            if row:
                parts.append(pack(f"process/{run}", [(t, -1, row)]))
        self._read_at = start + REST * (self._clock() - start)
        return parts


class _Tree:
    """A run's process and its descendants. Once the process is gone it stays gone: its pid may become another's."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._members: dict[psutil.Process, _Member] = {}
        try:
            self._root: psutil.Process | None = psutil.Process(pid)
        except (psutil.Error, ValueError):  # no such process here, or no pid at all
            self._root = None

    def walk(self) -> None:
        """Find the descendants anew; those that stay keep their counters."""
        found: list[psutil.Process] = []
        if self._root is not None:
            try:
                found = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                self._root = None
        self._members = {process: self._members.get(process) or _Member(process) for process in found}

    def read(self, t: int) -> dict[str, float]:
        """The sums over the tree at `t`; empty when the run's own process is gone."""
        row: dict[str, float] = {}
        for process, member in self._members.items():
            try:
                readings = member.read(t)
            except psutil.Error:
                if process is self._root:
                    return {}
                continue
            for name, value in readings.items():
                row[name] = row.get(name, 0.0) + value
        return row


class _Member:
    """One process and its counters."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._cpu, self._read, self._written = Rate(), Rate(), Rate()

    def read(self, t: int) -> dict[str, float]:
        """What this process adds to its tree at `t`; rates from the second reading on.

        Raises:
            psutil.Error: the process is gone, only a zombie is left of it, or it may not be read.
        """
        with self._process.oneshot():
            if self._process.status() == psutil.STATUS_ZOMBIE:
                raise psutil.ZombieProcess(self._process.pid)
            times = self._process.cpu_times()
            row: dict[str, float] = {
                "memory_rss_bytes": self._process.memory_info().rss,
                "threads": self._process.num_threads(),
                "processes": 1,
            }
            try:
                disk = self._process.io_counters()
            except psutil.AccessDenied:
                disk = None
        cores = self._cpu.update(t, times.user + times.system)
        rates = {
            "cpu_percent": None if cores is None else 100 * cores,
            "disk_read_bytes_per_s": self._read.update(t, disk.read_bytes if disk else None),
            "disk_written_bytes_per_s": self._written.update(t, disk.write_bytes if disk else None),
        }
        return row | {name: value for name, value in rates.items() if value is not None}
