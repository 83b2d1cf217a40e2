"""When to sample, and what goes into a tick. It neither sleeps nor writes: the clock and the sources are
passed in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import (
    CORES,
    Devices,
    FromSampler,
    GpuInfo,
    GpuProcess,
    Happened,
    HostInfo,
    RunProcesses,
    Sample,
    Tenants,
    Watch,
)
from hoptui.domain.facts import Fact
from hoptui.telemetry.host import HostReader, Processes
from hoptui.telemetry.nvml_errors import SECOND_NS

DEFAULT_HZ = 1.0
MIN_HZ = 0.1
MAX_HZ = 10.0
HOST_MAX_HZ = 2.0
SENT_NS = SECOND_NS // 5
"""Rows of faster ticks are sent together, the first of them a tick late. No screen is drawn more often than
this, and each message wakes the daemon and every viewer."""
ASIDE = 8
"""An eighth of the time between two ticks is for slow readings: the next tick is not late for them."""


class TickSchedule:
    """When the next tick is due.

    Ticks lie on a grid of the monotonic clock, so that samplers of one rate agree on when they look. The next
    one is chosen after the current one is done and at least half a period after it began: a late tick is
    followed by a longer pause, never by a short window.

    Args:
        clock: monotonic ns.
        max_hz: the fastest.
    """

    def __init__(self, clock: Callable[[], int], max_hz: float) -> None:
        self._clock = clock
        self._max_hz = max_hz
        self.period = self._period(DEFAULT_HZ)
        """Between two ticks, ns."""
        self.started = self.due = clock()

    def set(self, hz: float) -> None:
        """Take over a rate; one outside 0.1 Hz to the fastest becomes the nearest in it."""
        period = self._period(hz)
        if period != self.period:
            self.period = period
            self.due = self._next()

    def begin(self) -> int:
        """A tick begins; its time."""
        self.started = self._clock()
        return self.started

    def end(self) -> None:
        """The tick is done."""
        self.due = self._next()

    def _next(self) -> int:
        earliest = max(self._clock(), self.started + self.period // 2)
        return -(-earliest // self.period) * self.period

    def _period(self, hz: float) -> int:
        hz = DEFAULT_HZ if math.isnan(hz) else min(max(hz, MIN_HZ), self._max_hz)
        return round(1e9 / hz)


class HostSampler:
    """The host and the runs' processes, at most twice a second.

    Args:
        clock: monotonic ns.
    """

    def __init__(self, host: HostReader, processes: Processes, clock: Callable[[], int]) -> None:
        self._host = host
        self._processes = processes
        self._pace = TickSchedule(clock, HOST_MAX_HZ)

    @property
    def due(self) -> int:
        """When to call `tick` next, monotonic ns."""
        return self._pace.due

    def watch(self, message: Watch) -> None:
        """Take over the rate and the processes asked for."""
        self._processes.watch(message.pids)
        self._pace.set(message.hz)

    def start(self) -> Iterator[FromSampler]:
        """The first messages."""
        yield HostInfo(cpus=self._host.cpus, memory_total_bytes=self._host.memory_total_bytes)
        yield from self.tick()

    def tick(self) -> Iterator[FromSampler]:
        """One tick's messages."""
        t = self._pace.begin()
        row = self._host_row(t)
        cores = [pack(CORES, [(t, -1, self._host.cores)])] if self._host.cores else []
        yield Sample(parts=(row, *cores, *self._processes.read()))
        if (listed := self._processes.listed()) is not None:
            yield RunProcesses(processes=listed)
        self._pace.end()

    def _host_row(self, t: int) -> Columns:
        return pack("host", [(t, -1, self._host.read(t))])


class GpuBackend(Protocol):
    """What a sampler needs of a vendor's library: `hoptui.telemetry.nvml.Gpus`, or `amd.AmdGpus`."""

    problem: Fact | None
    changes: int

    def infos(self) -> tuple[GpuInfo, ...]: ...
    def read(self, period: int) -> list[Columns]: ...
    def aside(self, until: int) -> None: ...
    def happened(self) -> list[Happened]: ...
    def processes(self) -> tuple[GpuProcess, ...]: ...


class GpuSampler:
    """The GPUs, up to ten times a second: first the rows, then what happened, then what takes its time.

    Args:
        clock: monotonic ns.
    """

    def __init__(self, gpus: GpuBackend, clock: Callable[[], int]) -> None:
        self._gpus = gpus
        self._clock = clock
        self._pace = TickSchedule(clock, MAX_HZ)
        self._told = -1
        self._devices: Devices | None = None
        self._tenants: tuple[GpuProcess, ...] = ()
        self._kept: list[Columns] = []  # rows that wait for those of the next tick
        self._sent = 0

    @property
    def due(self) -> int:
        """When to call `tick` next, monotonic ns."""
        return self._pace.due

    def watch(self, message: Watch) -> None:
        """Take over the rate asked for."""
        self._pace.set(message.hz)

    def start(self) -> Iterator[FromSampler]:
        """The first messages: one before the driver is asked for anything, because it may never answer."""
        yield from self._changes()
        yield from self.tick()

    def tick(self) -> Iterator[FromSampler]:
        """One tick's messages: Devices when a device has changed, the Sample (empty where nothing can be
        read, and with the next tick's rows where that comes soon), and what has happened; what the slow
        readings have found comes behind."""
        begun, period = self._pace.begin(), self._pace.period
        self._kept += self._gpus.read(period)
        yield from self._changes()
        if begun + period // 2 >= self._sent + SENT_NS:
            yield Sample(parts=tuple(self._kept))
            self._kept, self._sent = [], begun
        yield from self._gpus.happened()
        self._gpus.aside(begun + period // ASIDE)
        yield from self._gpus.happened()
        yield from self._changes()
        self._pace.end()

    def _changes(self) -> Iterator[FromSampler]:
        if self._gpus.changes == self._told:
            return
        self._told = self._gpus.changes
        devices = Devices(gpus=self._gpus.infos(), problem=self._gpus.problem)
        if devices != self._devices:
            self._devices = devices
            yield devices
        tenants = self._gpus.processes()
        if tenants != self._tenants:
            self._tenants = tenants
            yield Tenants(processes=tenants)
