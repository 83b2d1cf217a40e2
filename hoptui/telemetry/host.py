"""Readings of the whole node: processors, memory, disks and network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from hoptui.telemetry.rates import Rate


class Host:
    """The readings of the source `host`, from psutil.

    | name | unit |
    |---|---|
    | `cpu_percent` | % of all cores together, 0–100, since the reading before |
    | `memory_used_bytes`, `memory_total_bytes`, `swap_used_bytes` | bytes; used is total less what can be given out |
    | `load_1m`, `load_5m` | runnable and blocked tasks |
    | `disk_read_bytes_per_s`, `disk_written_bytes_per_s` | bytes/s of the physical disks |
    | `net_received_bytes_per_s`, `net_sent_bytes_per_s` | bytes/s of the physical interfaces; RDMA is not in it |

    Args:
        report: takes one line about a reading that cannot be had, once for each new reason.
        sysfs: where the kernel lists its devices.
    """

    def __init__(self, report: Callable[[str], None], sysfs: Path = Path("/sys")) -> None:
        self._report = report
        self._reported: dict[str, str] = {}
        self._disks = Traffic(sysfs / "block", "disk_read_bytes_per_s", "disk_written_bytes_per_s")
        self._network = Traffic(sysfs / "class/net", "net_received_bytes_per_s", "net_sent_bytes_per_s")
        self._cpu_primed = False
        self.cpus = psutil.cpu_count() or 0
        self.memory_total_bytes = psutil.virtual_memory().total

    def read(self, t: int) -> dict[str, float]:
        """What can be read at `t` (monotonic ns); the rest is left out."""
        row: dict[str, float] = {}
        for group in (self._cpu, self._memory, self._swap, self._load, self._disk, self._net):
            try:
                row.update(group(t))
            except Exception as error:  # psutil raises many kinds on odd kernels; the other readings go on
                self._complain(group.__name__.strip("_"), f"{type(error).__name__}: {error}")
        return row

    def _complain(self, what: str, why: str) -> None:
        if self._reported.get(what) != why:
            self._reported[what] = why
            self._report(f"host {what} cannot be read: {why}")

    def _cpu(self, t: int) -> dict[str, float]:
        percent = psutil.cpu_percent()
        primed, self._cpu_primed = self._cpu_primed, True
        return {"cpu_percent": percent} if primed else {}

    def _memory(self, t: int) -> dict[str, float]:
        memory = psutil.virtual_memory()
        return {"memory_used_bytes": memory.total - memory.available, "memory_total_bytes": memory.total}

    def _swap(self, t: int) -> dict[str, float]:
        return {"swap_used_bytes": psutil.swap_memory().used}

    def _load(self, t: int) -> dict[str, float]:
        one, five, _ = os.getloadavg()
        return {"load_1m": one, "load_5m": five}

    def _disk(self, t: int) -> dict[str, float]:
        disks = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        return self._disks.update(
            t, {name: (disk.read_bytes, disk.write_bytes) for name, disk in disks.items()}
        )

    def _net(self, t: int) -> dict[str, float]:
        cards = psutil.net_io_counters(pernic=True, nowrap=False) or {}
        return self._network.update(
            t, {name: (card.bytes_recv, card.bytes_sent) for name, card in cards.items() if name != "lo"}
        )


class Traffic:
    """Bytes per second in and out of one class of devices, each byte counted once.

    A byte to an encrypted volume passes the volume, the array and the disk, and one from a container its bridge, the
    bond and the card: only hardware counts, which has a `device` link in sysfs. Network interfaces inside a container
    have none; where no device has one, all of `/sys/class/net` counts, and no disk.

    Args:
        folder: the class in sysfs, `/sys/block` or `/sys/class/net`.
        into: the name of the rate of what comes in (read, received).
        out: the name of the rate of what goes out (written, sent).
    """

    def __init__(self, folder: Path, into: str, out: str) -> None:
        self._folder = folder
        self._names = (into, out)
        self._seen: frozenset[str] = frozenset()
        self._counted: tuple[str, ...] = ()
        self._rates = (Rate(), Rate())

    def update(self, t: int, devices: Mapping[str, tuple[int, int]]) -> dict[str, float]:
        """The two rates since the reading before, where known, from each device's bytes in and out since boot."""
        if self._seen != devices.keys():
            self._choose(devices)
        if not self._counted:
            return {}
        row = {}
        for name, rate, side in zip(self._names, self._rates, (0, 1), strict=True):
            value = rate.update(t, sum(devices[device][side] for device in self._counted))
            if value is not None:
                row[name] = value
        return row

    def _choose(self, devices: Mapping[str, tuple[int, int]]) -> None:
        self._seen = frozenset(devices)
        counted = tuple(name for name in devices if (self._folder / name / "device").exists())
        if not counted and self._folder.name == "net":
            counted = tuple(devices)
        if counted != self._counted:  # a device that came or went would look like a burst of traffic
            self._counted = counted
            self._rates = (Rate(), Rate())
