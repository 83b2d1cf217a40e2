"""Readings of the whole node: processors, memory, disks and network."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hoptui.telemetry.procfs import ProcFile, Rate

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
    | `memory_used_bytes`, `memory_total_bytes`, `swap_used_bytes` | bytes; used is total less what can be given out |
    | `load_1m`, `load_5m` | runnable and blocked tasks |
    | `disk_read_bytes_per_s`, `disk_written_bytes_per_s` | bytes/s of the physical disks |
    | `net_received_bytes_per_s`, `net_sent_bytes_per_s` | bytes/s of the physical interfaces; RDMA is not in it |

    Args:
        report: takes one line about a reading that cannot be had, once for each new reason.
        proc: where the kernel tells of the node.
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
        self.cpus = os.cpu_count() or 0
        self.memory_total_bytes = 0
        with suppress(OSError):  # each reading says so again
            self.memory_total_bytes = self._in_memory().get(b"MemTotal", 0)

    def read(self, t: int) -> dict[str, float]:
        """What can be read at `t` (monotonic ns); the rest is left out."""
        row: dict[str, float] = {}
        for group in (self._cpu, self._memory, self._load, self._disk, self._net):
            try:
                row.update(group(t))
            except Exception as error:  # odd kernels tell odd things; the other readings go on
                self._complain(group.__name__.strip("_"), f"{type(error).__name__}: {error}")
        return row

    def _complain(self, what: str, why: str) -> None:
        if self._reported.get(what) != why:
            self._reported[what] = why
            self._report(f"host {what} cannot be read: {why}")

    def _cpu(self, t: int) -> dict[str, float]:
        """Work is all that is neither idle nor waiting for a disk; what a hypervisor takes away counts as
        work."""
        before, self._cpu_before = self._cpu_before, None
        now = [
            int(count) for count in self._stat.head(256).split(None, 9)[1:9]
        ]  # guests' time is in the users'
        self._cpu_before = now
        if before is None:
            return {}
        spent = [max(0, b - a) for a, b in zip(before, now, strict=True)]  # iowait can go back
        whole = sum(spent)
        return {"cpu_percent": round(100 * (whole - spent[IDLE] - spent[IOWAIT]) / whole, 1)} if whole else {}

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
