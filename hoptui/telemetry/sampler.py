"""When to sample, and what goes into a tick. It neither sleeps nor writes: the clock and the sources are passed in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from hoptui.telemetry.host import Host
from hoptui.telemetry.nvml import Gpus
from hoptui.telemetry.processes import Processes
from hoptui.wire.columns import Columns, pack
from hoptui.wire.devices import Devices, Sample, Watch

DEFAULT_HZ = 1.0
MIN_HZ = 0.1
MAX_HZ = 10.0


class Sampler:
    """Turns readings into the sampler's messages, tick by tick.

    Ticks lie on a grid of the monotonic clock, so that samplers of one rate agree on when they look. The next one is
    chosen after the current one is done and at least half a period after it began: a late tick is followed by a
    longer pause, never by a short window.

    Args:
        clock: monotonic ns.
    """

    def __init__(self, host: Host, processes: Processes, gpus: Gpus, clock: Callable[[], int]) -> None:
        self._host = host
        self._processes = processes
        self._gpus = gpus
        self._clock = clock
        self._period = _period(DEFAULT_HZ)
        self._started = clock()
        self._sent: Devices | None = None
        self.due = self._started
        """When to call `tick` next, monotonic ns."""

    def watch(self, message: Watch) -> None:
        """Take over the rate and the processes asked for; a rate outside 0.1–10 Hz becomes the nearest in it."""
        self._processes.watch(message.pids)
        period = _period(message.hz)
        if period != self._period:
            self._period = period
            self.due = self._next()

    def start(self) -> Iterator[Devices | Sample]:
        """The first messages: the host's before the driver is asked for anything, because it may never answer."""
        self._started = self._clock()
        yield from self._devices()
        yield Sample(parts=(self._host_row(),))
        gpus = self._gpus.read()
        yield from self._devices()
        if gpus:
            yield Sample(parts=tuple(gpus))
        self.due = self._next()

    def tick(self) -> Iterator[Devices | Sample]:
        """One tick's messages: Devices when a device has changed, then the Sample."""
        self._started = self._clock()
        parts = (self._host_row(), *self._processes.read(), *self._gpus.read())
        yield from self._devices()
        yield Sample(parts=parts)
        self.due = self._next()

    def _host_row(self) -> Columns:
        return pack("host", [(self._started, -1, self._host.read(self._started))])

    def _devices(self) -> Iterator[Devices]:
        devices = Devices(
            gpus=self._gpus.infos(),
            reason=self._gpus.reason,
            cpus=self._host.cpus,
            memory_total_bytes=self._host.memory_total_bytes,
        )
        if devices != self._sent:
            self._sent = devices
            yield devices

    def _next(self) -> int:
        earliest = max(self._clock(), self._started + self._period // 2)
        return -(-earliest // self._period) * self._period


def _period(hz: float) -> int:
    hz = DEFAULT_HZ if math.isnan(hz) else min(max(hz, MIN_HZ), MAX_HZ)
    return round(1e9 / hz)
