"""Readings of the runs' processes: each run's process and its descendants, summed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hoptui.domain.columns import Columns, pack
from hoptui.telemetry.procfs import Rate, Stat, io_of, pids, stat_of

WALK_EVERY_NS = 5_000_000_000
REST = 300  # work that took 1 ms rests for 300 ms: walking and reading each stay under 1/300 of a core


class Processes:
    """The readings of the sources `process/<run id>`, from /proc (proc(5)).

    | name | unit |
    |---|---|
    | `cpu_percent` | % of one core, since the reading before |
    | `memory_rss_bytes` | bytes, resident; a page shared by workers counts once for each of them |
    | `threads`, `processes` | how many, of all descendants and the run's own process |
    | `disk_read_bytes_per_s`, `disk_written_bytes_per_s` | bytes/s from and to disks of those that let us read it |

    Descendants are looked for every five seconds, and more rarely where that is slow; a new worker counts
    from then on. Trees of hundreds of workers are read less often than asked.

    Args:
        clock: monotonic ns.
        proc: where the kernel lists its processes.
    """

    def __init__(self, clock: Callable[[], int], proc: Path = Path("/proc")) -> None:
        self._clock = clock
        self._proc = proc
        self._family = Family(proc)
        self._trees: dict[str, _Tree] = {}
        self._walk_at = 0
        self._read_at = 0

    def watch(self, pids: Mapping[str, int]) -> None:
        """Whose processes to read from now on: run id -> pid. A run whose pid stays the same keeps its
        counters."""
        known, self._trees = self._trees, {}
        for run, pid in pids.items():
            tree = known.get(run)
            if tree is None or tree.pid != pid:
                tree = _Tree(self._proc, pid)
                self._walk_at = self._read_at = 0
            self._trees[run] = tree

    def read(self) -> list[Columns]:
        """One row for each run whose process lives; none while the reading before is still being rested
        from."""
        start = self._clock()
        if not self._trees or start < self._read_at:
            return []
        if start >= self._walk_at:
            self._family.look()
            for tree in self._trees.values():
                tree.walk(self._family)
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


class Family:
    """Who started whom, of all processes there are.

    Asking one costs 15 µs and a node has thousands, so each is asked once: it has the same parent as long as
    that lives, and what an ancestor leaves behind when it dies is not its descendant any more. A pid that
    came to be another process's between two looks is the other's; there are many more of them than are used
    up in that time.

    Args:
        proc: where the kernel lists its processes.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: dict[int, Stat] = {}
        self._children: dict[int, list[int]] = {}

    def look(self) -> None:
        """See who came and who went."""
        known, self._known, self._children = self._known, {}, {}
        for pid in pids(self._proc):
            stat = known.get(pid) or stat_of(self._proc, pid)
            if stat is not None:
                self._known[pid] = stat
                self._children.setdefault(stat.parent, []).append(pid)

    def of(self, pid: int) -> Iterator[tuple[int, int]]:
        """A process and its descendants, each as its pid and when it started, in ticks since boot."""
        waiting = [pid] if pid in self._known else []
        while waiting:
            parent = waiting.pop()
            started = self._known[parent].started
            yield parent, started
            # one that is older than its parent was started by another of the same number
            waiting += [c for c in self._children.get(parent, ()) if self._known[c].started >= started]


class _Tree:
    """A run's process and its descendants. Once the process is gone it stays gone: its pid may become
    another's."""

    def __init__(self, proc: Path, pid: int) -> None:
        self._proc = proc
        self.pid = pid
        root = stat_of(proc, pid)
        self._root = (pid, root.started if root is not None else -1)
        self._members: dict[tuple[int, int], _Member] = {}

    def walk(self, family: Family) -> None:
        """Find the descendants anew; those that stay keep their counters."""
        found = list(family.of(self.pid))
        if self._root not in found:
            found = []
        self._members = {key: self._members.get(key) or _Member(self._proc, *key) for key in found}

    def read(self, t: int) -> dict[str, float]:
        """The sums over the tree at `t`; empty when the run's own process is gone."""
        row: dict[str, float] = {}
        for key, member in self._members.items():
            readings = member.read(t)
            if readings is None:
                if key == self._root:
                    return {}
                continue
            for name, value in readings.items():
                row[name] = row.get(name, 0.0) + value
        return row


class _Member:
    """One process and its counters."""

    def __init__(self, proc: Path, pid: int, started: int) -> None:
        self._proc = proc
        self._pid = pid
        self._started = started
        self._cpu, self._read, self._written = Rate(), Rate(), Rate()

    def read(self, t: int) -> dict[str, float] | None:
        """What this process adds to its tree at `t`; rates from the second reading on. None: it is gone, or
        only a zombie."""
        stat = stat_of(self._proc, self._pid)
        if stat is None or stat.started != self._started:
            return None
        read, written = io_of(self._proc, self._pid) or (None, None)
        cores = self._cpu.update(t, stat.cpu_s)
        rates = {
            "cpu_percent": None if cores is None else 100 * cores,
            "disk_read_bytes_per_s": self._read.update(t, read),
            "disk_written_bytes_per_s": self._written.update(t, written),
        }
        row: dict[str, float] = {"memory_rss_bytes": stat.rss_bytes, "threads": stat.threads, "processes": 1}
        return row | {name: value for name, value in rates.items() if value is not None}
