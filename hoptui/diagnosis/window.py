"""The mean readings of a run over some seconds: phases, GPUs and host. Built from rows; no clock, no
I/O."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hoptui.diagnosis.sampled_time import SampledTime
from hoptui.domain.columns import Columns
from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import Fact
from hoptui.domain.knobs import KnobState
from hoptui.domain.stragglers import RankDevice, Straggler
from hoptui.domain.throughput import ASIDE, LONGEST_S, PHASE, took

NAN = math.nan
SECOND = 1_000_000_000
MOST_ASIDE = 0.1
POWER_CAP, HEAT, BRAKE = 0x04, 0x20 | 0x40, 0x80
"""Bits of the `throttle` reading, as in `hoptui.domain.devices`."""


@dataclass(frozen=True)
class GpuWindow:
    """What one GPU showed. Shares are 0 to 1 and, as watts, MHz and °C, means over the window; NaN is
    unknown.

    `busy` is the share of the time in which any kernel ran, `sm` that in which the SMs had work, `tensor`,
    `fp32`, `fp64`, `fp16` and `dram` the share of what the tensor cores, the units of these formats and the
    memory bus could do. `capped`, `hot` and `braked` are the shares of readings in which the clocks gave way
    to the power limit, to heat and to the server's power brake. `link` is what it sent over NVLink, bytes a
    second, `upload` and `download` what came and left over PCIe. `shared`: processes that are not the run's
    work on it.
    """

    index: int
    rows: int = 0
    busy: float = NAN
    sm: float = NAN
    tensor: float = NAN
    fp32: float = NAN
    fp64: float = NAN
    fp16: float = NAN
    dram: float = NAN
    power_w: float = NAN
    power_limit_w: float = NAN
    clock_mhz: float = NAN
    clock_max_mhz: float = NAN
    temperature_c: float = NAN
    capped: float = NAN
    hot: float = NAN
    braked: float = NAN
    memory: float = NAN
    upload: float = NAN
    upload_limit: float = NAN
    download: float = NAN
    link: float = NAN
    shared: bool = False
    missing: Fact | None = None

    @property
    def clock_lost(self) -> float:
        """The share of its highest clock that it runs without."""
        return 1 - self.clock_mhz / self.clock_max_mhz if self.clock_max_mhz > 0 else NAN

    @property
    def uploading(self) -> float:
        """The share of what its PCIe link carries that comes in."""
        return self.upload / self.upload_limit if self.upload_limit > 0 else NAN


@dataclass(frozen=True)
class ObservationWindow:
    """A run over `seconds`, up to the stamp `t` (monotonic ns).

    `phases` are shares of the iterations' time by path, nested ones as `rollout/env`; `aside` is the share of
    all the time that went into iterations which evaluated, saved or stood paused, and which are in nothing
    else here. `no_gpu` is why `gpus` is empty, None where no GPU is known to be the run's.
    `host_cpu` is the share of the host's `cpus` at work. `host_filled` is the share that a run without a GPU
    holds of the host's memory, less what other processes hold. `sampled` are the stack samples of the
    training threads. `on_cpu` is the share of the time for which these had a processor, and `queued` that for
    which they could have run and waited for one. `free_gpus` are GPUs of the node that no process uses.
    `elsewhere`: the driver lists processes of the run, and none on its GPUs. `straggler` is the rank that the
    others wait for, and `straggler_device` where it runs. `step_t` is
    when the run has just begun to do something else: then the window begins there. 0 otherwise. `acts`: the
    run acts in environments, by what it logs.
    """

    t: int
    seconds: float
    iterations: int
    phases: Mapping[str, float] = field(default_factory=dict)
    aside: float = 0.0
    gpus: tuple[GpuWindow, ...] = ()
    no_gpu: Fact | None = None
    knobs: tuple[KnobState, ...] = ()
    world: int = 1
    cpus: int = 0
    host_cpu: float = NAN
    host_filled: float = NAN
    sampled: SampledTime = field(default_factory=SampledTime)
    on_cpu: float = NAN
    queued: float = NAN
    free_gpus: int = 0
    elsewhere: bool = False
    straggler: Straggler | None = None
    straggler_device: RankDevice | None = None
    step_t: int = 0
    acts: bool = False


@dataclass(frozen=True)
class WindowIterations:
    """The iterations of a window: those that only trained, and when the others were (monotonic ns, start and
    end)."""

    start: int
    end: int
    count: int
    phases: Mapping[str, float]
    aside: float
    apart: tuple[tuple[int, int], ...]


def iterations(rows: Columns) -> WindowIterations | None:
    """The use of a run's time, from its rows. None if no row ended an iteration.

    In a run that declares no iterations, each row ends one.
    """
    if not len(rows):
        return None
    if "iteration_s" not in rows.names:
        return _between_rows(rows.times())
    times, seconds = rows.times(), rows.column("iteration_s")
    ended: Sequence[int] = range(len(seconds))
    if not _plain(seconds) or min(seconds) <= 0 or max(seconds) >= LONGEST_S:
        ended = [i for i, s in enumerate(seconds) if took(s)]
    if not ended:
        return None
    phases = {name.removeprefix(PHASE): rows.column(name) for name in rows.names if name.startswith(PHASE)}
    apart = _apart(seconds, [phases[name] for name in ASIDE if name in phases]).intersection(ended)
    kept = [i for i in ended if i not in apart] if apart else ended
    whole, trained = _sum(seconds, ended), _sum(seconds, kept)
    shares = {name: min(1.0, _sum(column, kept) / trained) for name, column in phases.items() if trained > 0}
    first, last = ended[0], ended[-1]
    return WindowIterations(
        start=times[first] - int(seconds[first] * SECOND),
        end=times[last],
        count=len(kept),
        phases={name: share for name, share in shares.items() if share > 0},
        aside=(whole - trained) / whole,
        apart=tuple((times[i] - int(seconds[i] * SECOND), times[i]) for i in sorted(apart)),
    )


def _between_rows(times: Sequence[int]) -> WindowIterations | None:
    if len(times) < 2:
        return None
    return WindowIterations(times[0], times[-1], len(times) - 1, {}, 0.0, ())


def gpu_window(
    gpu: GpuInfo, rows: Columns | None, apart: Sequence[tuple[int, int]], *, shared: bool
) -> GpuWindow:
    """The mean readings of a GPU. Rows read in a stretch of `apart` are left out.

    Each row counts the same, not each second. Sampling rates that change within a window matter less than the
    cost of weighting.
    """
    missing = gpu.problem or gpu.missing_because.get("gpm")
    if rows is None or not len(rows):
        return GpuWindow(gpu.index, shared=shared, missing=missing)
    kept = _outside(rows.times(), apart)

    def mean(name: str, scale: float = 1.0) -> float:
        if name not in rows.names:
            return NAN
        return scale * _mean(_picked(rows.column(name), kept))

    masks = _picked(rows.column("throttle"), kept) if "throttle" in rows.names else ()
    known = [int(mask) for mask in masks if mask == mask]
    return GpuWindow(
        index=gpu.index,
        rows=len(kept) if kept is not None else len(rows),
        busy=mean("busy", 0.01),
        sm=mean("sm_active", 0.01),
        tensor=mean("tensor_active", 0.01),
        fp32=mean("fp32_active", 0.01),
        fp64=mean("fp64_active", 0.01),
        fp16=mean("fp16_active", 0.01),
        dram=mean("dram_active", 0.01),
        power_w=mean("power_w"),
        power_limit_w=_known(gpu.power_limit_w),
        clock_mhz=mean("sm_clock_mhz"),
        clock_max_mhz=_known(gpu.sm_clock_max_mhz),
        temperature_c=mean("temperature_c"),
        capped=_share(known, POWER_CAP),
        hot=_share(known, HEAT),
        braked=_share(known, BRAKE),
        memory=mean("memory_used_bytes") / (gpu.memory_total_bytes or NAN),
        # without GPM it is 20 ms of every two seconds: too little for the thresholds, which are those of GPM
        upload=mean("pcie_rx_bytes_per_s") if "gpm" not in gpu.missing_because else NAN,
        upload_limit=_pcie_bytes_per_s(gpu),
        download=mean("pcie_tx_bytes_per_s") if "gpm" not in gpu.missing_because else NAN,
        link=mean("nvlink_tx_bytes_per_s"),
        shared=shared,
        missing=missing,
    )


def mean_of(rows: Columns | None, name: str) -> float:
    """The mean of a reading, NaN where nothing is known of it."""
    return _mean(rows.column(name)) if rows is not None and name in rows.names else NAN


def _apart(seconds: Sequence[float], aside: Sequence[array[float]]) -> set[int]:
    """Which iterations did much else than train."""
    spent: dict[int, float] = {}
    for column in aside:
        for i, value in enumerate(column):
            if value > 0:
                spent[i] = spent.get(i, 0.0) + value
    return {i for i, value in spent.items() if value > MOST_ASIDE * seconds[i]}


def _outside(times: Sequence[int], apart: Sequence[tuple[int, int]]) -> list[int] | None:
    """The rows that mostly cover time outside of `apart`. A row covers the time since the previous row. None:
    all rows."""
    if not apart or not times:
        return None
    starts, ends = [a for a, _ in apart], [b for _, b in apart]
    kept = []
    before = times[0] - (times[1] - times[0] if len(times) > 1 else SECOND)
    for i, t in enumerate(times):
        low, high = bisect_right(ends, before), bisect_left(starts, t)
        within = sum(min(t, ends[k]) - max(before, starts[k]) for k in range(low, high))
        if within * 2 < t - before:
            kept.append(i)
        before = t
    return kept


def _picked(column: array[float], kept: list[int] | None) -> Sequence[float]:
    return column if kept is None else [column[i] for i in kept]


def _plain(values: Sequence[float]) -> bool:
    """Whether all are known, as nearly always: one sum instead of a look at each."""
    total = sum(values)
    return total - total == 0


def _mean(values: Sequence[float]) -> float:
    known = values if _plain(values) else [v for v in values if math.isfinite(v)]
    return sum(known) / len(known) if len(known) else NAN


def _sum(column: array[float], kept: Sequence[int]) -> float:
    """What is known of these rows; nothing is less than nothing."""
    if len(kept) == len(column) and _plain(column) and min(column) >= 0:
        return sum(column)
    return sum(value for i in kept if 0 < (value := column[i]) < math.inf)


def _share(masks: Sequence[int], bits: int) -> float:
    return sum(bool(mask & bits) for mask in masks) / len(masks) if masks else NAN


def _known(value: float | None) -> float:
    return NAN if value is None else value


def _pcie_bytes_per_s(gpu: GpuInfo) -> float:
    """What its PCIe link carries one way: 2 GB/s a lane in generation 4 (PCI-SIG), twice that in each later
    one.

    If the driver does not report the link, that of an H100 or H200 is assumed, the widest there is.
    """
    generation, width = gpu.pcie_generation or 5, gpu.pcie_width or 16
    return float(width * 2e9 * 2.0 ** (generation - 4))
