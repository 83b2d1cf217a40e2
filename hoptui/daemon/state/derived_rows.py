"""Figures of a run and its GPUs together: energy per unit of work, idle watts, MFU, balance. No I/O.

Stamps are passed in. Energy covers only the run's GPUs, by their counters. Hosts, fans and power supplies are
not included.
"""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hoptui.domain.columns import Columns
from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.domain.throughput import took
from hoptui.protocol.messages import Flops, RunState

SECOND = 1_000_000_000
WINDOW_NS = 10 * SECOND
MOST_ITERATIONS = 256
OLD_ITERATIONS = 3
"""Figures per iteration are unknown if none has ended for this many iteration times, or for a window."""
SPACING_NS = SECOND // 2
REMEMBERED_NS = 900 * SECOND
THROUGHPUT = ("env_steps_per_s", "tokens_per_s", "samples_per_s")
NAN = math.nan


class GpuRow(NamedTuple):
    """The relevant values of one row of a GPU. NaN is unknown."""

    power_w: float
    energy_j: float
    sm_active: float
    memory_used_bytes: float
    memory_total_bytes: float
    mfu_estimated: float


def reading(row: Columns) -> GpuRow:
    """Return the newest row of a GPU's columns."""
    names = row.names
    return GpuRow(*(_last(row.values[names.index(n)]) if n in names else NAN for n in GpuRow._fields))


def _last(raw: bytes) -> float:
    (value,) = struct.unpack_from("d", raw, len(raw) - 8)
    return float(value)


class _Iteration(NamedTuple):
    start: int
    end: int
    seconds: float
    units: float  # of the headline
    work: float  # of the metric that FLOPs are declared for


class Account:
    """One run's energy and work so far.

    Args:
        energy_j: the energy used when the previous daemon ended.
        counters: the GPUs' counters at that time, J by UUID.
    """

    def __init__(self, energy_j: float = 0.0, counters: Mapping[str, float] | None = None) -> None:
        self._total = energy_j
        self._counters = dict(counters or {})
        self._t: array[int] = array("q")
        self._energy: array[float] = array("d")  # joules so far, at each of these stamps
        self._coming: deque[_Iteration] = deque(maxlen=MOST_ITERATIONS)  # ended after the newest reading
        self._window: deque[_Iteration] = deque(maxlen=MOST_ITERATIONS)

    def restart(self) -> None:
        """Start another process of the run. GPU energy since the last reading is not the run's."""
        self._counters.clear()
        self._coming.clear()
        self._window.clear()

    def iterations(self, rows: Columns, state: RunState) -> None:
        """Add new rows of the run."""
        if "iteration_s" not in rows.names:
            return
        rate, work = headline(state, rows.names), state.flops.metric if state.flops else ""
        columns = {
            name: rows.column(name) for name in {"iteration_s", rate, work or rate} if name in rows.names
        }
        for i, t in enumerate(rows.times()):
            seconds = columns["iteration_s"][i]
            if not took(seconds):
                continue
            units = columns[rate][i] * seconds if rate in columns else NAN
            done = columns[work or rate][i] * seconds if (work or rate) in columns else NAN
            self._coming.append(_Iteration(t - int(seconds * SECOND), t, seconds, units, done))

    def tick(
        self,
        t: int,
        readings: Mapping[str, GpuRow],
        state: RunState,
        gpus: Sequence[GpuInfo],
        processes: Iterable[GpuProcess],
    ) -> dict[str, float]:
        """Return the row at `t` from the readings of this tick. Unknown values are left out.

        Args:
            readings: by UUID, of every GPU that was read.
            gpus: the run's own. With fewer GPUs than ranks, some are on other nodes, and figures for the
                whole run are left out.
            processes: the run's own, on any GPU.
        """
        if not gpus:
            return {}
        own = [readings.get(gpu.uuid, _UNKNOWN) for gpu in gpus]
        power = sum(r.power_w for r in own)
        row = {
            "power_w": round(power, 2),
            "energy_j": round(self._use(t, gpus, own), 1),
            "idle_power_w": round(sum(r.power_w * (1 - r.sm_active / 100) for r in own), 2),
            "memory_headroom_bytes": _least(r.memory_total_bytes - r.memory_used_bytes for r in own),
            "mfu_estimated": round(sum(r.mfu_estimated for r in own) / len(own), 2),
            **_of_several(own),
            **self._of_iterations(t, state, gpus),
            **_of_processes(processes, len(gpus)),
        }
        return {name: value for name, value in row.items() if math.isfinite(value)}

    def _use(self, t: int, gpus: Sequence[GpuInfo], own: Sequence[GpuRow]) -> float:
        """Return joules so far, NaN while a counter is unknown.

        A counter that fell was reset: energy since its last reading is lost.
        """
        known = True
        for gpu, r in zip(gpus, own, strict=True):
            if math.isnan(r.energy_j):
                known = False
                continue
            self._total += max(0.0, r.energy_j - self._counters.get(gpu.uuid, r.energy_j))
            self._counters[gpu.uuid] = r.energy_j
        if not known:
            return NAN
        if len(self._t) > 1 and t - self._t[-2] < SPACING_NS:
            self._t[-1], self._energy[-1] = t, self._total
        else:
            self._t.append(t)
            self._energy.append(self._total)
        if (
            t - self._t[0] > 2 * REMEMBERED_NS
        ):  # remove half at once: one by one would shift the arrays with every reading
            old = bisect_right(self._t, t - REMEMBERED_NS)
            del self._t[:old], self._energy[:old]
        return self._total

    def _of_iterations(self, t: int, state: RunState, gpus: Sequence[GpuInfo]) -> dict[str, float]:
        """Return figures over the iterations of the last ten seconds, at most 256.

        The last iteration is always included.
        """
        window = self._window
        while self._coming and self._coming[0].end <= t:
            window.append(self._coming.popleft())
        known_from = self._t[0] if self._t else 0  # earlier iterations were not measured
        while len(window) > 1 and (window[0].end <= t - WINDOW_NS or window[0].start < known_from):
            window.popleft()
        if not window or len(gpus) < state.world:
            return {}
        last = window[-1]
        if t - last.end > max(WINDOW_NS, OLD_ITERATIONS * last.seconds * SECOND):
            return {}
        used = self._at(last.end) - self._at(window[0].start)
        row = {"energy_per_iteration_j": _digits(used / len(window))}
        units = sum(iteration.units for iteration in window)
        if units > 0:
            row["energy_per_unit_j"] = _digits(used / units)
        work, seconds = sum(i.work for i in window), sum(i.seconds for i in window)
        peak = _peak(state.flops, gpus)
        if state.flops is not None and peak:
            row["mfu"] = _digits(100 * state.flops.per_unit * work / seconds / peak)
        return row

    def _at(self, t: int) -> float:
        """Return joules so far at a stamp between the first and the last reading, interpolated; NaN
        outside."""
        after = bisect_left(self._t, t)
        if after == len(self._t):
            return NAN
        if self._t[after] == t:
            return self._energy[after]
        if not after:
            return NAN
        t0, t1 = self._t[after - 1], self._t[after]
        e0, e1 = self._energy[after - 1], self._energy[after]
        return e0 + (e1 - e0) * (t - t0) / (t1 - t0)


_UNKNOWN = GpuRow(NAN, NAN, NAN, NAN, NAN, NAN)


def headline(state: RunState, names: Iterable[str]) -> str:
    """Return the throughput metric if it is a rate, else the usual one that exists, "" for none."""
    chosen = state.headline
    if chosen and (chosen.endswith("_per_s") or state.units.get(chosen, "").endswith("/s")):
        return chosen
    return next((name for name in THROUGHPUT if name in names), "")


def _of_several(own: Sequence[GpuRow]) -> dict[str, float]:
    """Return the mean and the least SM activity of several GPUs. The others wait for the slowest."""
    if len(own) < 2:
        return {}
    mean = sum(r.sm_active for r in own) / len(own)
    return {"sm_active": round(mean, 2), "sm_active_least": _least(r.sm_active for r in own)}


def _of_processes(processes: Iterable[GpuProcess], gpus: int) -> dict[str, float]:
    """Return the memory of all of them, and their mean share of the SMs' time over the run's GPUs."""
    own = list(processes)
    if not own:
        return {}
    memory = [NAN if p.memory_used_bytes is None else p.memory_used_bytes for p in own]
    share = [NAN if p.sm_percent is None else p.sm_percent for p in own]
    return {"gpu_memory_bytes": sum(memory), "gpu_sm_percent": round(sum(share) / gpus, 2)}


def _peak(flops: Flops | None, gpus: Sequence[GpuInfo]) -> float:
    """Return FLOP/s of all the GPUs at the declared precision, 0 if one is unknown."""
    peaks = [gpu.peak_flops.get(flops.precision, 0.0) if flops else 0.0 for gpu in gpus]
    return sum(peaks) if all(peaks) else 0.0


def _least(values: Iterable[float]) -> float:
    """Return the least value, NaN if one is unknown."""
    found = list(values)
    return NAN if any(math.isnan(value) for value in found) else min(found)


def _digits(value: float) -> float:
    """Round to five significant digits."""
    return float(f"{value:.5g}")
