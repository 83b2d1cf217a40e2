"""Readings of the node: processors, memory, disks and network. And of each run's process and its descendants,
summed.

The kernel's text files are the source (proc(5)). Those of the node stay open and are read with one call.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import MOST_RUN_PROCESSES, RunProcess
from hoptui.telemetry.cpu_cores import LINE_BYTES, MOST_CORES, CoreTimes, summary


class Rate:
    """The rate of one counter between two readings of it.

    It is unknown at the first reading, after a reading that failed, and when the counter went back (a device
    was reset or replaced): a rate over that gap would not be a measured number.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def update(self, t: int, counter: float | None) -> float | None:
        """Counts per second since the reading before this one.

        Args:
            t: when the counter was read, monotonic ns.
            counter: its value, None where it could not be read.
        """
        before, self._last = self._last, None if counter is None else (t, counter)
        if before is None or counter is None or counter < before[1] or t <= before[0]:
            return None
        return (counter - before[1]) * 1e9 / (t - before[0])


LONGEST_COMMAND = 200
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PIECE = 1 << 14
"""More than the kernel gives at once of a file that is a list."""
ENDED = (b"Z", b"X", b"x")
_IO = re.compile(rb"^read_bytes: (\d+)\nwrite_bytes: (\d+)$", re.M)


class ProcFile:
    """A file of `/proc` that exists as long as the node runs. It stays open: a reading is one `pread`.
    Opening it for each reading would cost three times as much.

    Args:
        path: the file. If it is missing, `head` and `whole` raise OSError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def head(self, size: int) -> bytes:
        """Its first bytes, at most `size`.

        Raises:
            OSError: it cannot be read; the next reading opens it again.
        """
        return self._pread(size, 0)

    def whole(self) -> bytes:
        """All of it, however long the list is; raises as `head`."""
        found = b""
        while piece := self._pread(PIECE, len(found)):
            found += piece
        return found

    def close(self) -> None:
        """Let go of the file; the next reading opens it again."""
        if self._fd is not None:
            with suppress(OSError):
                os.close(self._fd)
        self._fd = None

    def _pread(self, size: int, at: int) -> bytes:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(self._fd, size, at)
        except OSError:
            self.close()
            raise


class Stat(NamedTuple):
    """One process: who started it, how long it ran (s, of all its threads), what it holds. `started` (ticks
    since boot) and the pid together name a process for ever.

    `waited_s` is the same time of its children that it has waited for, and of theirs.
    """

    parent: int
    started: int
    cpu_s: float
    waited_s: float
    threads: int
    rss_bytes: int


def stat_of(proc: Path, pid: int) -> Stat | None:
    """A process as `/proc/<pid>/stat` shows it. None if it does not exist or is a zombie."""
    try:
        fields = (
            _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
        )  # its name may hold spaces and brackets
        if fields[0] in ENDED:
            return None
        cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        waited_s = (int(fields[13]) + int(fields[14])) / TICKS_PER_S
        rss_bytes = int(fields[21]) * PAGE_BYTES
        return Stat(int(fields[1]), int(fields[19]), cpu_s, waited_s, int(fields[17]), rss_bytes)
    except (OSError, IndexError, ValueError):  # gone; or cut off, because it is going
        return None


def io_of(proc: Path, pid: int) -> tuple[int, int] | None:
    """Bytes that a process has read from disks and written to them, None where it does not let us know."""
    try:
        found = _IO.search(_read(f"{proc}/{pid}/io"))
    except OSError:
        return None
    return (int(found[1]), int(found[2])) if found else None


def pids(proc: Path) -> list[int]:
    """All processes there are."""
    return [int(name) for name in os.listdir(proc) if name.isdecimal()]  # noqa: PTH208 - thousands, and no Path of each


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


KIB = 1024
SECTOR_BYTES = 512
"""In `/proc/diskstats`, whatever the disk's own are."""
IDLE, IOWAIT = 3, 4
_MEMORY = re.compile(rb"^(MemTotal|MemFree|MemAvailable|SwapTotal|SwapFree): +(\d+) kB$", re.M)
_DISK = re.compile(rb"^ *\d+ +\d+ (\S+) \d+ \d+ (\d+) \d+ \d+ \d+ (\d+) ", re.M)
_CARD = re.compile(rb"^ *(\S+): *(\d+)(?: +\d+){7} +(\d+) ", re.M)


class HostReader:
    """The readings of the source `host`, from /proc (proc(5)).

    | name | unit |
    |---|---|
    | `cpu_percent` | % of all cores together, 0–100, since the reading before |
    | `cpu_busiest_core_percent` | % of the core that was the busiest since then |
    | `cpu_busy_cores` | how many cores were at least 90 % busy since then |
    | `memory_used_bytes`, `memory_total_bytes`, `swap_used_bytes` | bytes; used is total less available |
    | `load_1m`, `load_5m` | runnable and blocked tasks |
    | `disk_read_bytes_per_s`, `disk_written_bytes_per_s` | bytes/s of the physical disks |
    | `net_received_bytes_per_s`, `net_sent_bytes_per_s` | bytes/s of physical interfaces, without RDMA |

    Args:
        report: takes one line about an unavailable reading, once for each new reason.
        proc: where the kernel describes the node.
        sysfs: where the kernel lists its devices.
    """

    def __init__(
        self, report: Callable[[str], None], proc: Path = Path("/proc"), sysfs: Path = Path("/sys")
    ) -> None:
        self._report = report
        self._reported: dict[str, str] = {}
        self._stat, self._meminfo = ProcFile(proc / "stat"), ProcFile(proc / "meminfo")
        self._loadavg, self._diskstats = ProcFile(proc / "loadavg"), ProcFile(proc / "diskstats")
        self._cards = ProcFile(proc / "net/dev")
        self._disks = Traffic(sysfs / "block", "disk_read_bytes_per_s", "disk_written_bytes_per_s")
        self._network = Traffic(sysfs / "class/net", "net_received_bytes_per_s", "net_sent_bytes_per_s")
        self._cpu_before: list[int] | None = None
        self._core_times = CoreTimes()
        self.cores: dict[str, float] = {}
        """How busy each core was between the last two readings, in % by its number."""
        self.cpus = os.cpu_count() or 0
        self.memory_total_bytes = 0
        with suppress(OSError):  # each reading reports it again
            self.memory_total_bytes = self._in_memory().get(b"MemTotal", 0)

    def read(self, t: int) -> dict[str, float]:
        """What can be read at `t` (monotonic ns); the rest is left out."""
        row: dict[str, float] = {}
        for group in (self._cpu, self._memory, self._load, self._disk, self._net):
            try:
                row.update(group(t))
            except Exception as error:  # unusual kernels, odd formats; the other readings go on
                self._complain(group.__name__.strip("_"), f"{type(error).__name__}: {error}")
        return row

    def _complain(self, what: str, why: str) -> None:
        if self._reported.get(what) != why:
            self._reported[what] = why
            self._report(f"host {what} cannot be read: {why}")

    def _cpu(self, t: int) -> dict[str, float]:
        """All time counts as work except idle time and waits for a disk. Time that a hypervisor takes counts
        as work."""
        before, self._cpu_before = self._cpu_before, None
        self.cores = {}
        first, *others = self._stat.head(256 + LINE_BYTES * min(self.cpus, MOST_CORES)).split(b"\n")
        now = [int(count) for count in first.split(None, 9)[1:9]]  # guests' time is in the users'
        self._cpu_before = now
        self.cores = self._core_times.update(others[:-1])
        row = summary(self.cores)
        if before is None:
            return row
        spent = [max(0, b - a) for a, b in zip(before, now, strict=True)]  # iowait can go back
        whole = sum(spent)
        if whole:
            row["cpu_percent"] = round(100 * (whole - spent[IDLE] - spent[IOWAIT]) / whole, 1)
        return row

    def _memory(self, t: int) -> dict[str, float]:
        found = self._in_memory()
        total, available = found[b"MemTotal"], found[b"MemAvailable"]
        if not 0 < available <= total:  # inside some containers it is the whole machine's
            available = found[b"MemFree"]
        return {
            "memory_used_bytes": total - available,
            "memory_total_bytes": total,
            "swap_used_bytes": found[b"SwapTotal"] - found[b"SwapFree"],
        }

    def _in_memory(self) -> dict[bytes, int]:
        return {name: int(size) * KIB for name, size in _MEMORY.findall(self._meminfo.head(2048))}

    def _load(self, t: int) -> dict[str, float]:
        one, five, _ = self._loadavg.head(64).split(None, 2)
        return {"load_1m": float(one), "load_5m": float(five)}

    def _disk(self, t: int) -> dict[str, float]:
        return self._disks.update(t, _DISK.findall(self._diskstats.whole()), SECTOR_BYTES)

    def _net(self, t: int) -> dict[str, float]:
        return self._network.update(
            t, [card for card in _CARD.findall(self._cards.whole()) if card[0] != b"lo"]
        )


class Traffic:
    """Bytes per second in and out of one class of devices, each byte counted once.

    A byte to an encrypted volume passes the volume, the array and the disk, and one from a container its
    bridge, the bond and the card: only hardware counts, which has a `device` link in sysfs. Network
    interfaces inside a container have none; where no device has one, all of `/sys/class/net` counts, and no
    disk.

    Args:
        folder: the class in sysfs, `/sys/block` or `/sys/class/net`.
        into: the name of the rate of what comes in (read, received).
        out: the name of the rate of what goes out (written, sent).
    """

    def __init__(self, folder: Path, into: str, out: str) -> None:
        self._folder = folder
        self._names = (into, out)
        self._seen: list[bytes] = []
        self._counted: frozenset[bytes] = frozenset()
        self._rates = (Rate(), Rate())

    def update(
        self, t: int, devices: Sequence[tuple[bytes, bytes, bytes]], unit_bytes: int = 1
    ) -> dict[str, float]:
        """The two rates since the reading before, where known.

        Args:
            devices: each one's name and what came in and went out since boot, in digits as the kernel writes
                them.
            unit_bytes: what one of these is.
        """
        seen = [name for name, _, _ in devices]
        if seen != self._seen:
            self._seen = seen
            self._choose(seen)
        if not self._counted:
            return {}
        counted = [device for device in devices if device[0] in self._counted]
        row = {}
        for name, rate, side in zip(self._names, self._rates, (1, 2), strict=True):
            value = rate.update(t, unit_bytes * sum(int(device[side]) for device in counted))
            if value is not None:
                row[name] = value
        return row

    def _choose(self, seen: Sequence[bytes]) -> None:
        counted = frozenset(name for name in seen if (self._folder / os.fsdecode(name) / "device").exists())
        if not counted and self._folder.name == "net":
            counted = frozenset(seen)
        if counted != self._counted:  # a device that came or went would look like a burst of traffic
            self._counted = counted
            self._rates = (Rate(), Rate())


WALK_EVERY_NS, LIST_EVERY_NS = 1_000_000_000, 5_000_000_000
REST = 300  # work that took 1 ms rests for 300 ms: walking and reading each stay under 1/300 of a core


class Processes:
    """The readings of the sources `process/<run id>`, from /proc (proc(5)).

    | name | unit |
    |---|---|
    | `cpu_percent` | % of one core, since the reading before, with that of ended children |
    | `memory_rss_bytes` | bytes, resident; a page shared by workers counts once for each of them |
    | `threads`, `processes` | how many, of all descendants and the run's own process |
    | `disk_read_bytes_per_s`, `disk_written_bytes_per_s` | bytes/s of disks, where readable |

    Descendants are looked for every second, and more rarely where that is slow. A process that has begun
    since the look before counts from its beginning. Trees of hundreds of workers are read less often than
    asked.

    Args:
        clock: monotonic ns.
        proc: where the kernel lists its processes.
    """

    def __init__(self, clock: Callable[[], int], proc: Path = Path("/proc")) -> None:
        self._clock = clock
        self._proc = proc
        self._family = Family(proc)
        self._trees: dict[str, _Tree] = {}
        self._walk_at = self._read_at = self._list_at = 0
        self._to_list = self._listed_some = False

    def watch(self, pids: Mapping[str, int]) -> None:
        """Whose processes to read from now on: run id -> pid. A run whose pid stays the same keeps its
        counters."""
        known, self._trees = self._trees, {}
        for run, pid in pids.items():
            tree = known.get(run)
            if tree is None or tree.pid != pid:
                tree = _Tree(self._proc, pid)
                self._walk_at = self._read_at = self._list_at = 0
            self._trees[run] = tree
        if not self._trees:
            self._to_list = True  # that there are none is news

    def listed(self) -> tuple[RunProcess, ...] | None:
        """The processes of all runs, if that is due: every five seconds, and more rarely where it is slow to
        look for them."""
        if not self._to_list or (not self._trees and not self._listed_some):
            return None
        self._to_list, self._listed_some = False, bool(self._trees)
        found = [one for run, tree in self._trees.items() for one in tree.listed(run.partition("/")[0])]
        return tuple(found[:MOST_RUN_PROCESSES])

    def read(self) -> list[Columns]:
        """One row for each run whose process lives; none while the reading before is still being rested
        from."""
        start = self._clock()
        if not self._trees or start < self._read_at:
            return []
        if start >= self._walk_at:
            self._family.look(start)
            for tree in self._trees.values():
                tree.walk(self._family)
            if start >= self._list_at:
                self._list_at, self._to_list = start + LIST_EVERY_NS, True
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
        self._came: set[int] = set()
        self._before: int | None = None
        self._looked_at: int | None = None

    def look(self, t: int) -> None:
        """See who came and who went.

        Args:
            t: now, monotonic ns.
        """
        self._before, self._looked_at = self._looked_at, t
        known, self._known, self._children = self._known, {}, {}
        for pid in pids(self._proc):
            stat = known.get(pid) or stat_of(self._proc, pid)
            if stat is not None:
                self._known[pid] = stat
                self._children.setdefault(stat.parent, []).append(pid)
        self._came = self._known.keys() - known.keys()

    def absent_at(self, pid: int) -> int | None:
        """When a process had not begun yet: at the look before the last one (monotonic ns). None if it had
        begun, or if that was the first look."""
        return self._before if pid in self._came else None

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
        self._ended: defaultdict[int, float] = defaultdict(float)
        """What members had used that have ended since the reading before, s, by the pid of their parent."""

    def walk(self, family: Family) -> None:
        """Find the descendants anew; those that stay keep their counters."""
        found = list(family.of(self.pid))
        if self._root not in found:
            found = []
        known = self._members
        self._members = {
            key: known.get(key) or _Member(self._proc, *key, family.absent_at(key[0])) for key in found
        }
        for key in known.keys() - self._members.keys():
            self._end(known[key].stat)

    def listed(self, run: str) -> Iterator[RunProcess]:
        """Each process as it was at the reading before, the run's own first; none once that is gone."""
        living = {key[0]: member.stat for key, member in self._members.items() if member.stat is not None}
        for pid, stat in living.items() if self.pid in living else ():
            member = self._members[pid, stat.started]
            yield RunProcess(
                pid=pid,
                parent=stat.parent if stat.parent in living and pid != self.pid else 0,
                run=run,
                cpu_percent=member.cpu_percent,
                rss_bytes=stat.rss_bytes,
                command=member.command(),
            )

    def read(self, t: int) -> dict[str, float]:
        """The sums over the tree at `t`; empty when the run's own process is gone."""
        for member in self._members.values():
            before = member.stat
            if member.look() is None:
                self._end(before)
        root = self._members.get(self._root)
        if root is None or root.stat is None:
            return {}
        row: dict[str, float] = {}
        for member in self._members.values():
            for name, value in member.read(t, self._ended[member.pid]).items():
                row[name] = row.get(name, 0.0) + value
        self._ended.clear()
        return row

    def _end(self, last: Stat | None) -> None:
        if last is not None:
            self._ended[last.parent] += last.cpu_s + last.waited_s


class _Member:
    """One process and its counters. At `absent_at` it had not begun yet, so that they were 0.

    The kernel adds the time of a child to the one that waits for it. What was read of that child before is
    subtracted. So the last part of its time counts, and all of that of a child between two looks.
    """

    def __init__(self, proc: Path, pid: int, started: int, absent_at: int | None) -> None:
        self._proc = proc
        self.pid = pid
        self._started = started
        self._cpu, self._children, self._read, self._written = Rate(), Rate(), Rate(), Rate()
        self._waited_s: float | None = None
        self._to_wait_for_s = self._children_s = 0.0
        if absent_at is not None:
            self._waited_s = 0.0
            for rate in (self._cpu, self._children, self._read, self._written):
                rate.update(absent_at, 0)
        self._command = ""
        self.stat: Stat | None = None
        """As last read; None if it is gone."""
        self.cpu_percent: float | None = None

    def command(self) -> str:
        """Its command line, read once; empty where it cannot be read."""
        if not self._command:
            with suppress(OSError):
                raw = _read(f"{self._proc}/{self.pid}/cmdline")
                self._command = raw.replace(b"\0", b" ").decode(errors="replace").strip()[:LONGEST_COMMAND]
        return self._command

    def look(self) -> Stat | None:
        """It as it is now. None: it is gone, or only a zombie."""
        found = stat_of(self._proc, self.pid)
        self.stat = found if found is not None and found.started == self._started else None
        return self.stat

    def read(self, t: int, ended_s: float) -> dict[str, float]:
        """What this process adds to its tree at `t`, nothing if it is gone. Rates from the second reading on,
        or from the first one if it is known when it had not begun.

        Args:
            t: monotonic ns.
            ended_s: what was read of those of its children that have ended since the reading before.
        """
        if (stat := self.stat) is None:
            return {}
        self._to_wait_for_s += ended_s
        if self._waited_s is not None:
            waited_s = max(0.0, stat.waited_s - self._waited_s)
            counted_s = min(waited_s, self._to_wait_for_s)
            self._to_wait_for_s -= counted_s
            self._children_s += waited_s - counted_s
        self._waited_s = stat.waited_s
        cores, children = self._cpu.update(t, stat.cpu_s), self._children.update(t, self._children_s)
        self.cpu_percent = None if cores is None else round(100 * cores, 1)
        read, written = io_of(self._proc, self.pid) or (None, None)
        rates = {
            "cpu_percent": None if cores is None else 100 * (cores + (children or 0.0)),
            "disk_read_bytes_per_s": self._read.update(t, read),
            "disk_written_bytes_per_s": self._written.update(t, written),
        }
        row: dict[str, float] = {"memory_rss_bytes": stat.rss_bytes, "threads": stat.threads, "processes": 1}
        return row | {name: value for name, value in rates.items() if value is not None}
