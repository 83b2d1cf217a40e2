"""An NVML that can be told what to answer and when to fail."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 1 << 30
LIMITS = {
    "power_default_w": 700.0,
    "power_min_w": 200.0,
    "power_max_w": 700.0,
    "temperature_slowdown_c": 89,
    "temperature_shutdown_c": 92,
    "temperature_max_c": 87,
    "memory_temperature_max_c": 95,
    "margin_slowdown_c": -2,
    "margin_shutdown_c": -5,
    "margin_max_c": 0,
    "memory_margin_max_c": 0,
}
"""What its boards allow, as hoptui reads it."""


@dataclass(frozen=True)
class Handle:
    """What the address in NVML's handle of a GPU or MIG instance stands for; of use until NVML is started
    anew."""

    index: int
    start: int
    instance: int | None = None

    def opaque(self) -> Any:
        address = self.start << 16 | self.index << 8 | (0 if self.instance is None else self.instance + 1)
        return ctypes.cast(address, pynvml.c_nvmlDevice_t)

    @classmethod
    def of(cls, opaque: Any) -> Handle:
        address = ctypes.cast(opaque, ctypes.c_void_p).value or 0
        instance = address & 0xFF
        return cls(address >> 8 & 0xFF, address >> 16, instance - 1 if instance else None)


@dataclass(frozen=True)
class _Fault:
    what: str
    code: int
    gpu: int | None
    reads: range


class FakeNvml:
    """pynvml's constants, structs and errors, with invented GPUs behind its functions.

    `fail` makes a function, a field (NVML_FI_…) or a GPM metric answer with an error code, for one GPU or
    all, from one read on or for some reads; `heal` ends all failures. `calls` counts the calls of each
    function; `before` is called with the name of every function that is about to be.
    """

    def __init__(self) -> None:
        self.gpus = ["GPU-0", "GPU-1"]
        self.mig: dict[int, dict[int, int]] = {}
        self.calls: Counter[str] = Counter()
        self.reads: Counter[tuple[str, int | None]] = Counter()
        self.faults: list[_Fault] = []
        self.before: Callable[[str], None] = lambda function: None
        self.nvmlLib = SimpleNamespace(
            nvmlDeviceGetFieldValues=self._field_values,
            nvmlGpmSampleGet=self._gpm_sample,
            nvmlGpmMigSampleGet=self._gpm_mig_sample,
            nvmlGpmMetricsGet=self._gpm_metrics,
        )
        self.name = "NVIDIA H100 80GB HBM3"
        self.architecture = pynvml.NVML_DEVICE_ARCH_HOPPER
        self.power_mw = 71_500
        self.power_limit_mw = 700_000
        self.energy_mj = 2_000_000
        self.fields: dict[str, tuple[str, float]] = {
            "NVML_FI_DEV_POWER_INSTANT": ("uiVal", 690_250),
            "NVML_FI_DEV_POWER_AVERAGE": ("uiVal", 655_000),
            "NVML_FI_DEV_MEMORY_TEMP": ("uiVal", 61),
            "NVML_FI_DEV_NVLINK_LINK_COUNT": ("uiVal", 18),
            "NVML_FI_DEV_ECC_SBE_VOL_TOTAL": ("ullVal", 3),
            "NVML_FI_DEV_ECC_DBE_VOL_TOTAL": ("ullVal", 0),
            "NVML_FI_DEV_PCIE_REPLAY_COUNTER": ("uiVal", 7),
            "NVML_FI_DEV_PERF_POLICY_POWER": ("ullVal", 8_000_000_000),
            "NVML_FI_DEV_PERF_POLICY_THERMAL": ("ullVal", 9_000_000_000),
            "NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT": ("siVal", -2),
            "NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT": ("siVal", -5),
            "NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT": ("siVal", 0),
            "NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT": ("siVal", 0),
        }
        self.engines = {"Encoder": 1, "Decoder": 12, "Jpg": 30, "Ofa": 4}
        self.thresholds = {
            pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: 89,
            pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: 92,
            pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX: 87,
            pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX: 95,
        }
        self.held_ns = {pynvml.NVML_PERF_POLICY_POWER: 1_500_000_000, pynvml.NVML_PERF_POLICY_THERMAL: 0}
        self.pcie_kb = {pynvml.NVML_PCIE_UTIL_RX_BYTES: 9_000, pynvml.NVML_PCIE_UTIL_TX_BYTES: 250}
        self.utilization = SimpleNamespace(gpu=98, memory=51)
        self.memory_used = 10 * GIB
        self.temperature = 54
        self.sm_clock = 1755
        self.throttle = 0x4
        self.running = [process(41, 2 * GIB), process(42, None)]
        self.shares = [SimpleNamespace(pid=41, timeStamp=1 << 60, smUtil=73)]
        self.events: list[tuple[int, int, int]] = []
        self.gpm: dict[str, float] = {
            "SM_UTIL": 96.347,
            "SM_OCCUPANCY": 14.24,
            "ANY_TENSOR_UTIL": 93.5,
            "HMMA_TENSOR_UTIL": 93.5,
            "DRAM_BW_UTIL": 25.6,
            "PCIE_RX_PER_SEC": 2.0,
            "PCIE_TX_PER_SEC": 1.0,
        }
        self._samples: dict[int, tuple[int, Handle, int | None]] = {}
        self._taken = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(pynvml, name)
        if callable(found) and name.startswith("nvml"):
            raise AttributeError(f"the fake NVML has no {name}")
        return found

    def fail(
        self, what: str, code: int, *, gpu: int | None = None, after: int = 0, times: int = 10**9
    ) -> None:
        """Let `what` answer with `code` once it has been read `after` times more, for `times` reads."""
        first = self.reads[what, gpu] + after
        self.faults.append(_Fault(what, code, gpu, range(first, first + times)))

    def heal(self) -> None:
        self.faults.clear()

    def handle(self, index: int) -> Any:
        """NVML's handle of a GPU, of use now."""
        return Handle(index, self.calls["nvmlInit"]).opaque()

    def _fault(self, what: str, gpu: Handle | None) -> int:
        if gpu is not None and gpu.start != self.calls["nvmlInit"]:
            return pynvml.NVML_ERROR_INVALID_ARGUMENT  # type: ignore[no-any-return]
        code = 0
        for key in {None if gpu is None else gpu.index, None}:
            read = self.reads[what, key]
            self.reads[what, key] += 1
            for fault in self.faults:
                if fault.what == what and fault.gpu == key and read in fault.reads:
                    code = fault.code
        return code

    def _enter(self, function: str, opaque: Any = None) -> Handle:
        self.calls[function] += 1
        self.before(function)
        gpu = None if opaque is None else Handle.of(opaque)
        code = self._fault(function, gpu)
        if code:
            raise pynvml.NVMLError(code)
        return gpu or Handle(-1, -1)

    def nvmlInit(self) -> None:  # noqa: N802
        self._enter("nvmlInit")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._enter("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        self._enter("nvmlSystemGetDriverVersion")
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        handle = self.handle(index)
        self._enter("nvmlDeviceGetHandleByIndex", handle)
        return handle

    def nvmlDeviceGetUUID(self, gpu: Any) -> str:  # noqa: N802
        which = self._enter("nvmlDeviceGetUUID", gpu)
        uuid = self.gpus[which.index]
        return uuid if which.instance is None else f"MIG-{uuid}-{which.instance}"

    def nvmlDeviceGetName(self, gpu: Any) -> str:  # noqa: N802
        which = self._enter("nvmlDeviceGetName", gpu)
        return self.name if which.instance is None else f"{self.name} MIG 1g.10gb"

    def nvmlDeviceGetArchitecture(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetArchitecture", gpu)
        return self.architecture  # type: ignore[no-any-return]

    def nvmlDeviceGetMaxClockInfo(self, gpu: Any, kind: int) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetMaxClockInfo", gpu)
        return {pynvml.NVML_CLOCK_SM: 1980}[kind]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetMaxPcieLinkGeneration", gpu)
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetMaxPcieLinkWidth", gpu)
        return 16

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetEnforcedPowerLimit", gpu)
        return self.power_limit_mw

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetPowerManagementDefaultLimit", gpu)
        return 700_000

    def nvmlDeviceGetPowerManagementLimitConstraints(self, gpu: Any) -> list[int]:  # noqa: N802
        self._enter("nvmlDeviceGetPowerManagementLimitConstraints", gpu)
        return [200_000, 700_000]

    def nvmlDeviceGetTemperatureThreshold(self, gpu: Any, threshold: int) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetTemperatureThreshold", gpu)
        return self.thresholds[threshold]

    def nvmlDeviceGetMarginTemperature(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetMarginTemperature", gpu)
        return 33

    def nvmlDeviceGetEncoderUtilization(self, gpu: Any) -> list[int]:  # noqa: N802
        self._enter("nvmlDeviceGetEncoderUtilization", gpu)
        return [self.engines["Encoder"], 167_000]

    def nvmlDeviceGetDecoderUtilization(self, gpu: Any) -> list[int]:  # noqa: N802
        self._enter("nvmlDeviceGetDecoderUtilization", gpu)
        return [self.engines["Decoder"], 167_000]

    def nvmlDeviceGetJpgUtilization(self, gpu: Any) -> list[int]:  # noqa: N802
        self._enter("nvmlDeviceGetJpgUtilization", gpu)
        return [self.engines["Jpg"], 167_000]

    def nvmlDeviceGetOfaUtilization(self, gpu: Any) -> list[int]:  # noqa: N802
        self._enter("nvmlDeviceGetOfaUtilization", gpu)
        return [self.engines["Ofa"], 167_000]

    def nvmlDeviceGetBAR1MemoryInfo(self, gpu: Any) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlDeviceGetBAR1MemoryInfo", gpu)
        return SimpleNamespace(bar1Total=128 * GIB, bar1Free=127 * GIB, bar1Used=5 << 20)

    def nvmlDeviceGetConfComputeProtectedMemoryUsage(self, gpu: Any) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlDeviceGetConfComputeProtectedMemoryUsage", gpu)
        return SimpleNamespace(total=0, free=0, used=0)

    def nvmlDeviceGetViolationStatus(self, gpu: Any, policy: int) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlDeviceGetViolationStatus", gpu)
        return SimpleNamespace(referenceTime=0, violationTime=self.held_ns[policy])

    def nvmlDeviceGetPcieThroughput(self, gpu: Any, counter: int) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetPcieThroughput", gpu)
        return self.pcie_kb[counter]

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetTotalEnergyConsumption", gpu)
        return self.energy_mj

    def nvmlDeviceGetUtilizationRates(self, gpu: Any) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlDeviceGetUtilizationRates", gpu)
        return self.utilization

    def nvmlDeviceGetMemoryInfo(self, gpu: Any, version: int | None = None) -> SimpleNamespace:  # noqa: N802
        which = self._enter("nvmlDeviceGetMemoryInfo", gpu)
        if which.instance is not None:
            return SimpleNamespace(total=10 * GIB, used=GIB)
        reserve = 0 if version == pynvml.nvmlMemory_v2 else GIB // 2
        return SimpleNamespace(total=80 * GIB, used=self.memory_used + reserve)

    def nvmlDeviceGetPowerUsage(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetPowerUsage", gpu)
        return self.power_mw

    def nvmlDeviceGetTemperatureV(self, gpu: Any, sensor: int) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetTemperatureV", gpu)
        return {pynvml.NVML_TEMPERATURE_GPU: self.temperature}[sensor]

    def nvmlDeviceGetTemperature(self, gpu: Any, sensor: int) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetTemperature", gpu)
        return {pynvml.NVML_TEMPERATURE_GPU: self.temperature}[sensor]

    def nvmlDeviceGetClockInfo(self, gpu: Any, kind: int) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetClockInfo", gpu)
        return {pynvml.NVML_CLOCK_SM: self.sm_clock, pynvml.NVML_CLOCK_MEM: 2619}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetCurrentClocksEventReasons", gpu)
        return self.throttle

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        return self.throttle

    def nvmlDeviceGetRemappedRows(self, gpu: Any) -> tuple[int, int, int, int]:  # noqa: N802
        self._enter("nvmlDeviceGetRemappedRows", gpu)
        return 1, 2, 0, 0

    def nvmlDeviceGetNvLinkErrorCounter(self, gpu: Any, link: int, counter: int) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetNvLinkErrorCounter", gpu)
        return link if counter == pynvml.NVML_NVLINK_ERROR_DL_REPLAY else 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: Any) -> list[SimpleNamespace]:  # noqa: N802
        self._enter("nvmlDeviceGetComputeRunningProcesses_v3", gpu)
        return self.running

    def nvmlDeviceGetProcessUtilization(self, gpu: Any, since: int) -> list[SimpleNamespace]:  # noqa: N802
        self._enter("nvmlDeviceGetProcessUtilization", gpu)
        if not self.shares:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.shares

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        self._enter("nvmlEventSetCreate")
        return object()

    def nvmlEventSetFree(self, events: object) -> None:  # noqa: N802
        self._enter("nvmlEventSetFree")

    def nvmlDeviceGetSupportedEventTypes(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetSupportedEventTypes", gpu)
        return pynvml.nvmlEventTypeAll  # type: ignore[no-any-return]

    def nvmlDeviceRegisterEvents(self, gpu: Any, kinds: int, events: object) -> None:  # noqa: N802
        self._enter("nvmlDeviceRegisterEvents", gpu)

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlEventSetWait_v2")
        assert timeout_ms == 0, "the sampler never waits"
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        index, kind, data = self.events.pop(0)
        return SimpleNamespace(device=self.handle(index), eventType=kind, eventData=data)

    def nvmlDeviceGetMigMode(self, gpu: Any) -> list[int]:  # noqa: N802
        which = self._enter("nvmlDeviceGetMigMode", gpu)
        return [int(which.index in self.mig), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Any) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetMaxMigDeviceCount", gpu)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Any, index: int) -> Any:  # noqa: N802
        which = self._enter("nvmlDeviceGetMigDeviceHandleByIndex", gpu)
        if index not in self.mig[which.index]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return Handle(which.index, which.start, index).opaque()

    def nvmlDeviceGetGpuInstanceId(self, gpu: Any) -> int:  # noqa: N802
        which = self._enter("nvmlDeviceGetGpuInstanceId", gpu)
        assert which.instance is not None
        return self.mig[which.index][which.instance]

    def nvmlGpmQueryDeviceSupport(self, gpu: Any) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlGpmQueryDeviceSupport", gpu)
        return SimpleNamespace(isSupportedDevice=int(self.architecture >= pynvml.NVML_DEVICE_ARCH_HOPPER))

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        self._enter("nvmlGpmSampleAlloc")
        address = 0x1000 + 16 * self.calls["nvmlGpmSampleAlloc"]
        return ctypes.cast(address, pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:  # noqa: N802
        self._enter("nvmlGpmSampleFree")

    def _gpm_sample(self, gpu: Any, sample: Any, instance: int | None = None) -> int:
        function = "nvmlGpmSampleGet" if instance is None else "nvmlGpmMigSampleGet"
        try:
            which = self._enter(function, gpu)
        except pynvml.NVMLError as error:
            return int(error.value)
        self._taken += 1
        self._samples[_address(sample)] = (self._taken, which, instance)
        return 0

    def _gpm_mig_sample(self, gpu: Any, instance: int, sample: Any) -> int:
        return self._gpm_sample(gpu, sample, instance)

    def _gpm_metrics(self, reference: Any) -> int:
        try:
            self._enter("nvmlGpmMetricsGet")
        except pynvml.NVMLError as error:
            return int(error.value)
        query = reference._obj
        assert query.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        before, after = (self._samples[_address(sample)] for sample in (query.sample1, query.sample2))
        assert before[0] < after[0]
        assert before[1:] == after[1:], "two samples of different GPUs"
        names = {
            number: name.removeprefix("NVML_GPM_METRIC_")
            for name, number in vars(pynvml).items()
            if name.startswith("NVML_GPM_METRIC_") and name != "NVML_GPM_METRIC_MAX"
        }
        for entry in query.metrics[: query.numMetrics]:
            entry.nvmlReturn = self._fault(names[entry.metricId], after[1])
            entry.value = math.nan if entry.nvmlReturn else self.gpm.get(names[entry.metricId], 0.0)
        return 0

    def _field_values(self, gpu: Any, count: int, array: Any) -> int:
        try:
            which = self._enter("nvmlDeviceGetFieldValues", gpu)
        except pynvml.NVMLError as error:
            return int(error.value)
        assert len(array) > count, "NVML may write one entry past the end"
        types = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
        for entry in array[:count]:
            [(name, (member, value))] = [
                (n, v) for n, v in self.fields.items() if getattr(pynvml, n) == entry.fieldId
            ]
            entry.nvmlReturn = self._fault(name, which)
            if not entry.nvmlReturn:
                entry.valueType = types.index(member)
                setattr(entry.value, member, value)
        return 0


def process(pid: int, used: int | None) -> SimpleNamespace:
    """A process as NVML lists it."""
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0
