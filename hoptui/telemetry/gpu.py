"""One GPU, or one MIG instance of a GPU, that can be read: its rows, its facts and its processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.domain.facts import Fact, fact
from hoptui.node.processes import whose_pids
from hoptui.telemetry.gpm import IN_MIG_MODE, Gpm, GpmQuery
from hoptui.telemetry.gpu_specs import Peaks, estimated_mfu, peaks_of
from hoptui.telemetry.metrics_table import (
    ARCHITECTURES,
    EACH_SECOND,
    ENERGY,
    FACTS,
    HEALTH,
    INSTANCE_FACTS,
    LIMITS,
    MEMORY,
    PCIE,
    ROW,
)
from hoptui.telemetry.nvml_errors import (
    FATAL,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    REFUSED,
    SECOND_NS,
    UNSUPPORTED,
    failed,
)
from hoptui.telemetry.poller import Reader

LONGEST_COMMAND = 200
_MIB = 1 << 20


class ProcessOwners:
    """Who runs a process, and what: from /proc, once for each process.

    The driver counts pids as the whole machine does. In a container the same number may be another process of
    ours, so there a process is only named if it has a device of a GPU open. What cannot be seen is "".

    Args:
        proc: where the kernel lists its processes.
        devices: how the paths of the GPUs' devices begin.
    """

    def __init__(self, proc: Path = Path("/proc"), devices: tuple[str, ...] = ("/dev/nvidia",)) -> None:
        self._proc = proc
        self._devices = devices
        self._known: dict[int, tuple[float, str, str]] = {}
        self._whole_machine = whose_pids(proc) == "machine"

    def of(self, pid: int) -> tuple[str, str]:
        """The user and the command line of a process."""
        try:
            process = psutil.Process(pid)
            started = process.create_time()
            known = self._known.get(pid)
            if known is None or known[0] != started:
                known = self._known[pid] = (started, *self._look(process))
        except (psutil.Error, OSError, ValueError):
            self._known.pop(pid, None)
            return "", ""
        return known[1:]

    def keep(self, pids: set[int]) -> None:
        """Forget all others."""
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}

    def _look(self, process: psutil.Process) -> tuple[str, str]:
        if not self._whole_machine and not self._uses_gpu(process.pid):
            return "", ""
        with process.oneshot():
            command = " ".join(process.cmdline()) or process.name()
            return process.username(), command[:LONGEST_COMMAND]

    def _uses_gpu(self, pid: int) -> bool:
        for entry in (self._proc / str(pid) / "fd").iterdir():
            try:
                if str(entry.readlink()).startswith(self._devices):
                    return True
            except OSError:  # closed meanwhile
                continue
        return False


def running(
    nvml: Any, handle: Any, gpu: str, people: ProcessOwners, shares: Mapping[int, float]
) -> list[GpuProcess]:
    """The processes that compute on a GPU or MIG instance, by pid. 25–200 µs under load, 4.5 ms were reported
    elsewhere.

    Args:
        shares: % of the SMs' time by pid, as far as known.

    Raises:
        NVMLError: the GPU does not report them.
    """
    found = []
    for process in nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle):
        user, command = people.of(process.pid)
        used = process.usedGpuMemory
        found.append(
            GpuProcess(
                gpu=gpu,
                pid=process.pid,
                memory_used_bytes=None if used is None else used // _MIB * _MIB,
                sm_percent=shares.get(process.pid),
                user=user,
                command=command,
            )
        )
    return sorted(found, key=lambda process: process.pid)


class SmShares:
    """Each process's share of the SMs' time since the reading before, in %. 1.4–2.4 ms a reading.

    Args:
        nvml: the module pynvml.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._newest = 0

    def read(self, wall: float) -> dict[int, float]:
        """Percent by pid; a process without samples, as on an idle GPU, is not in it.

        Args:
            wall: s since 1970; the first reading looks one second back.

        Raises:
            NVMLError: the GPU does not report them.
        """
        since = self._newest or int(wall * 1e6 - SECOND_NS / 1e3)
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, since)
        except self._nvml.NVMLError as error:
            if error.value == NOT_FOUND:
                return {}
            raise
        shares: dict[int, float] = {}
        for sample in samples:
            if sample.timeStamp > since and sample.smUtil <= 100:
                shares[sample.pid] = float(sample.smUtil)
                self._newest = max(self._newest, sample.timeStamp)
        return shares


@dataclass(frozen=True)
class Instance:
    """`gpu_instance` is the id that GPM knows it by."""

    uuid: str
    handle: Any
    gpu_instance: int


def instances(nvml: Any, handle: Any) -> tuple[Instance, ...] | None:
    """The instances of a GPU, None if it is not in MIG mode. 0.12–0.16 ms where it is not.

    Raises:
        NVMLError: its value is in LOST or DRIVER_GONE.
    """
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if error.value in FATAL:
            raise
        return None  # before Ampere
    if current != nvml.NVML_DEVICE_MIG_ENABLE:
        return None
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            found.append(
                Instance(
                    nvml.nvmlDeviceGetUUID(instance), instance, nvml.nvmlDeviceGetGpuInstanceId(instance)
                )
            )
        except nvml.NVMLError as error:  # no instance at this index, or gone meanwhile
            if error.value in FATAL and error.value != nvml.NVML_ERROR_GPU_NOT_FOUND:
                raise
    return tuple(found)


_COUNTERS = ("NVML_NVLINK_ERROR_DL_REPLAY", "NVML_NVLINK_ERROR_DL_RECOVERY", "NVML_NVLINK_ERROR_DL_CRC_FLIT")


class NvLinks:
    """Packets sent again, links trained again and flits with a bad checksum, since the driver began.

    Args:
        nvml: the module pynvml.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.why: Fact | None = None
        """Why the errors are unknown, None when they are known."""

    def errors(self, links: int) -> int | None:
        """The sum over all counters that answer; None where none does.

        Raises:
            NVMLError: its value is in LOST or DRIVER_GONE.
        """
        if self.why == NOT_SUPPORTED:
            return None
        total: int | None = None
        why = fact("nvlink.none_up")
        for link in range(min(links, self._nvml.NVML_NVLINK_MAX_LINKS)):
            for counter in _COUNTERS:
                try:
                    count = self._nvml.nvmlDeviceGetNvLinkErrorCounter(
                        self._handle, link, getattr(self._nvml, counter)
                    )
                except self._nvml.NVMLError as error:
                    if error.value in FATAL:
                        raise
                    why = NOT_SUPPORTED if error.value in UNSUPPORTED else failed(error)
                else:
                    total = count + (total or 0)
        self.why = why if total is None else None
        return total


class EnergyCounter:
    """Joules since the driver's counter began: the counter when it was read, the power integrated since.

    Reading the counter takes milliseconds, so it is not done in a tick. What lies between two readings is the
    average power of each tick times its length: at 2 and 10 Hz under full load it met the counter of an H100
    within 0.2 % (the instantaneous power, which a slow tick catches at random, within 1 %). It never goes
    back, also where the counter shows that too much was added: then it waits.
    """

    def __init__(self) -> None:
        self._joules: float | None = None
        self._at = 0
        self._counter = 0.0
        self._told = 0.0

    def count(self, t: int, joules: float | None) -> None:
        """The counter was read at `t` (monotonic ns), None where that failed."""
        if joules is None:
            return
        if joules < self._counter:  # it began anew
            self._told = 0.0
        self._joules, self._counter, self._at = joules, joules, t

    def add(self, t: int, watts: float | None, late: bool) -> float | None:
        """The joules at `t`; unknown from a gap in the power on until the counter is read again."""
        if self._joules is None or watts is None or late:
            self._joules = None
            return None
        self._joules += watts * (t - self._at) / 1e9
        self._at = t
        self._told = max(self._told, self._joules)
        return round(self._told, 1)


_NVLINK_TRAFFIC = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")
NOT_IN_MIG_MODE = fact("reading.not_in_mig_mode")
Troubles = tuple[int, Fact | None, Fact | None]
TENANTS_NS = SECOND_NS
PCIE_NS = 2 * SECOND_NS
SLOW_NS = 5 * SECOND_NS
ENERGY_NS = 10 * SECOND_NS
"""The power integrated between keeps within 0.2 % for longer than that, and the counter is dear."""


@dataclass
class Job:
    """A slow reading, made apart from the tick: `work` takes the time (monotonic ns), `due` is when it comes
    next."""

    every: int
    work: Callable[[int], None]
    due: int = 0


@dataclass(frozen=True)
class Surroundings:
    """What the GPUs of one sampler share: pynvml, clocks, where reports go, GPM's question, who runs what."""

    nvml: Any
    clock: Callable[[], int]
    report: Callable[[str], None]
    query: GpmQuery
    people: ProcessOwners
    wall: Callable[[], float] = time.time


class Gpu:
    """Readings of a GPU, those of every tick and, as jobs, those that would make a tick late.

    Errors of the whole GPU or of the driver are raised by everything that asks the driver: NVMLError with a
    value in LOST or DRIVER_GONE.

    Args:
        shared: what it has in common with the other GPUs.
        handle: NVML's handle, of an instance its own.
        index: NVML's index of the GPU.
        uuid: NVML's.
        parent: for an instance, the GPU that it is a part of.
        instance: for an instance, what it is.
    """

    def __init__(
        self,
        shared: Surroundings,
        handle: Any,
        index: int,
        uuid: str,
        parent: Gpu | None = None,
        instance: Instance | None = None,
    ) -> None:
        nvml = shared.nvml
        label = f"GPU {index}" if instance is None else f"GPU {index} {uuid}"
        whole = instance is None
        self._shared = shared
        self.handle = handle
        self.index = index
        self.uuid = uuid
        self._parent = parent
        self._row = Reader(nvml, handle, ROW if whole else MEMORY, label, shared.report)
        self._facts = Reader(nvml, handle, FACTS if whole else INSTANCE_FACTS, label, shared.report)
        self._health = Reader(nvml, handle, HEALTH, label, shared.report)
        self._each_second = Reader(nvml, handle, EACH_SECOND, label, shared.report)
        self._pcie = [Reader(nvml, handle, (reading,), label, shared.report) for reading in PCIE]
        self._counter = Reader(nvml, handle, ENERGY, label, shared.report)
        if parent is None or instance is None:
            self._gpm = Gpm(nvml, handle, shared.query)
        else:
            self._gpm = Gpm(nvml, parent.handle, shared.query, instance.gpu_instance)
        self._energy = EnergyCounter()
        self._nvlinks = NvLinks(nvml, handle)
        self._shares = SmShares(nvml, handle)
        self._shares_now: dict[int, float] = {}
        self._why_no_shares = None if whole else fact("reading.whole_gpus_only")
        self._why_no_processes: Fact | None = None
        self._known: dict[str, Any] = {}
        self._peaks: Peaks | None = None
        self._results: dict[str, float] = {}
        self.in_mig_mode = False
        self.processes: list[GpuProcess] = []
        self._count = Job(ENERGY_NS, self._count_energy)
        self.jobs = [Job(TENANTS_NS, self._look_at_processes)]
        if whole:
            self.jobs += [
                self._count,
                Job(SLOW_NS, self.learn),
                Job(SLOW_NS, self._look_at_health),
                Job(SLOW_NS, self._look_at_shares),
                Job(SECOND_NS, self._look_each_second),
                *(Job(PCIE_NS, partial(self._look_at_pcie, reader)) for reader in self._pcie),
            ]

    def read(self, t: int, late: bool) -> dict[str, float]:
        """One row at `t` (monotonic ns), with the results of the jobs since the previous row.

        Args:
            late: the previous row is too old to describe the time between.
        """
        row = self._row.read(t)
        if not self.in_mig_mode:
            row |= self._gpm.read(t, late)
            if not (self._parent or self)._known.get("nvlinks"):  # GPM counts 0 on links that are not there
                for name in _NVLINK_TRAFFIC:
                    row.pop(name, None)
        energy = self._energy.add(t, row.get("power_average_w", row.get("power_w")), late)
        if energy is None:
            self._count.due = 0
        else:
            row["energy_j"] = energy
        if self._peaks and self._peaks.clock_mhz and "tensor_active" in row and "sm_clock_mhz" in row:
            row["mfu_estimated"] = estimated_mfu(
                row["tensor_active"], row["sm_clock_mhz"], self._peaks.clock_mhz
            )
        for name, value in self._results.items():
            row.setdefault(name, value)  # GPM may have begun to count PCIe meanwhile
        self._results = {}
        return row

    def learn(self, t: int) -> None:
        """Bring the facts up to date."""
        self._known.update(self._facts.ask(t))
        self._peaks = None if self._parent else peaks_of(self._known.get("name") or "")
        self._gpm.architecture = ARCHITECTURES.get(self._known.get("architecture") or 0, "")

    def info(self, bell: Fact | None = None) -> GpuInfo:
        """What is known of the GPU, its driver left out; `bell` is why its Xids are not heard."""
        known = self._known
        peaks = self._peaks
        return GpuInfo(
            uuid=self.uuid,
            index=self.index,
            name=known.get("name") or f"GPU {self.index}",
            memory_total_bytes=known.get("memory_total_bytes"),
            power_limit_w=known.get("power_limit_w"),
            sm_clock_max_mhz=known.get("sm_clock_max_mhz"),
            architecture=ARCHITECTURES.get(known.get("architecture") or 0, ""),
            problem=self._row.problem,
            parent=self._parent.uuid if self._parent else "",
            missing_because=self._missing(bell),
            memory_bandwidth_bytes_per_s=peaks.bandwidth_bytes_per_s if peaks else None,
            peak_flops=dict(peaks.flops) if peaks else {},
            peak_clock_mhz=peaks.clock_mhz if peaks else None,
            peaks_source=peaks.source if peaks else "",
            pcie_generation=known.get("pcie_generation"),
            pcie_width=known.get("pcie_width"),
            nvlinks=known.get("nvlinks"),
            limits={limit.name: known[limit.name] for limit in LIMITS if known.get(limit.name) is not None},
        )

    @property
    def troubles(self) -> Troubles:
        """What a tick may change in `info`: jobs change the rest."""
        return self._row.changes, self._row.problem, self._gpm.problem

    @property
    def clock_max_mhz(self) -> float | None:
        """The greatest SM clock, None while unknown."""
        return self._known.get("sm_clock_max_mhz")

    def close(self) -> None:
        """Give back what NVML has lent."""
        self._gpm.close()

    def _missing(self, bell: Fact | None) -> dict[str, Fact]:
        single = self._row.reasons() | self._health.reasons() | self._each_second.reasons()
        for reader in self._pcie if self._counts_pcie() else ():
            single |= reader.reasons()
        ecc = [single.pop(name, None) for name in ("ecc_corrected", "ecc_uncorrected")]
        if self.in_mig_mode:
            single = {name: NOT_IN_MIG_MODE if why == NOT_SUPPORTED else why for name, why in single.items()}
        reasons: dict[str, Fact | None] = {
            "gpm": IN_MIG_MODE if self.in_mig_mode else self._gpm.problem,
            "energy": self._counter.why_not("energy_j"),
            "ecc": next(filter(None, ecc), None),
            "xid": bell,
            "processes": None if self.in_mig_mode else self._why_no_processes,  # its instances have them
            "process_utilization": self._why_no_shares,
            "nvlink": self._facts.why_not("nvlinks") or self._nvlinks.why,
            **single,
        }
        return {name: why for name, why in reasons.items() if why}

    def _count_energy(self, t: int) -> None:
        joules = self._counter.read(t).get("energy_j")
        self._energy.count(self._shared.clock(), joules)

    def _look_at_health(self, t: int) -> None:
        self._results |= self._health.read(t)
        links = self._known.get("nvlinks")
        errors = self._nvlinks.errors(links) if links else None
        if errors is not None:
            self._results["nvlink_errors"] = errors

    def _look_each_second(self, t: int) -> None:
        self._results |= self._each_second.read(t)

    def _counts_pcie(self) -> bool:
        """Whether NVML counts PCIe traffic, because GPM does not."""
        return self._gpm.problem is not None and not self.in_mig_mode

    def _look_at_pcie(self, reader: Reader, t: int) -> None:
        if self._counts_pcie():
            self._results |= reader.read(t)

    def _look_at_processes(self, t: int) -> None:
        try:
            self.processes = running(
                self._shared.nvml, self.handle, self.uuid, self._shared.people, self._shares_now
            )
        except self._shared.nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            self.processes = []
            self._why_no_processes = _why(error)
            return
        self._why_no_processes = None
        self._results["processes"] = len(self.processes)

    def _look_at_shares(self, t: int) -> None:
        self._shares_now = {}
        if not self.processes or self.in_mig_mode:
            return
        try:
            self._shares_now = self._shares.read(self._shared.wall())
            self._why_no_shares = None
        except self._shared.nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            self._why_no_shares = failed(error)


def _why(error: Any) -> Fact:
    """Return why a reading is unknown that fails with this NVMLError."""
    if error.value == NO_PERMISSION:
        return REFUSED
    return NOT_SUPPORTED if error.value in UNSUPPORTED else failed(error)
