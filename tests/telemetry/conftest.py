"""An NVML that can be told what to answer and when to fail, and a clock that stands still."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

GIB = 1 << 30
SECOND = 1_000_000_000


class FakeClock:
    """Monotonic ns that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_000 * SECOND

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


@dataclass(frozen=True)
class Handle:
    """NVML's handle of a GPU, of use until NVML is started anew."""

    index: int
    start: int


@dataclass(frozen=True)
class _Fault:
    what: str
    code: int
    gpu: int | None
    reads: range


class FakeNvml:
    """pynvml's constants, structs and errors, with invented GPUs behind its functions.

    `fail` makes a function or a field (NVML_FI_…) answer with an error code, for one GPU
    or all, from one read on or for some reads; `heal` ends all failures. `calls` counts the calls of each function.
    """

    def __init__(self) -> None:
        self.count = 2
        self.calls: Counter[str] = Counter()
        self.reads: Counter[tuple[str, int | None]] = Counter()
        self.faults: list[_Fault] = []
        self.nvmlLib = SimpleNamespace(nvmlDeviceGetFieldValues=self._field_values)
        self.power_mw = 71_500
        self.fields: dict[str, tuple[str, float]] = {
            "NVML_FI_DEV_POWER_INSTANT": ("uiVal", 690_250),
            "NVML_FI_DEV_POWER_AVERAGE": ("uiVal", 655_000),
            "NVML_FI_DEV_MEMORY_TEMP": ("uiVal", 61),
        }
        self.power_limit_mw = 700_000
        self.running = [SimpleNamespace(pid=41), SimpleNamespace(pid=42)]
        self.utilization = SimpleNamespace(gpu=98, memory=51)

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

    def _enter(self, function: str, gpu: Handle | None = None) -> None:
        self.calls[function] += 1
        code = self._fault(function, gpu)
        if code:
            raise pynvml.NVMLError(code)

    def nvmlInit(self) -> None:  # noqa: N802
        self._enter("nvmlInit")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._enter("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        self._enter("nvmlSystemGetDriverVersion")
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetCount")
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:  # noqa: N802
        handle = Handle(index, self.calls["nvmlInit"])
        self._enter("nvmlDeviceGetHandleByIndex", handle)
        return handle

    def nvmlDeviceGetUUID(self, gpu: Handle) -> str:  # noqa: N802
        self._enter("nvmlDeviceGetUUID", gpu)
        return f"GPU-{gpu.index}"

    def nvmlDeviceGetName(self, gpu: Handle) -> str:  # noqa: N802
        self._enter("nvmlDeviceGetName", gpu)
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetArchitecture(self, gpu: Handle) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetArchitecture", gpu)
        return pynvml.NVML_DEVICE_ARCH_HOPPER  # type: ignore[no-any-return]

    def nvmlDeviceGetMaxClockInfo(self, gpu: Handle, kind: int) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetMaxClockInfo", gpu)
        return {pynvml.NVML_CLOCK_SM: 1980}[kind]

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: Handle) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetEnforcedPowerLimit", gpu)
        return self.power_limit_mw

    def nvmlDeviceGetUtilizationRates(self, gpu: Handle) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlDeviceGetUtilizationRates", gpu)
        return self.utilization

    def nvmlDeviceGetMemoryInfo(self, gpu: Handle, version: int | None = None) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlDeviceGetMemoryInfo", gpu)
        reserve = 0 if version == pynvml.nvmlMemory_v2 else GIB // 2
        return SimpleNamespace(total=80 * GIB, used=10 * GIB + reserve)

    def nvmlDeviceGetPowerUsage(self, gpu: Handle) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetPowerUsage", gpu)
        return self.power_mw

    def nvmlDeviceGetTemperatureV(self, gpu: Handle, sensor: int) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetTemperatureV", gpu)
        return {pynvml.NVML_TEMPERATURE_GPU: 54}[sensor]

    def nvmlDeviceGetTemperature(self, gpu: Handle, sensor: int) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetTemperature", gpu)
        return {pynvml.NVML_TEMPERATURE_GPU: 54}[sensor]

    def nvmlDeviceGetClockInfo(self, gpu: Handle, kind: int) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetClockInfo", gpu)
        return {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 2619}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: Handle) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetCurrentClocksEventReasons", gpu)
        return 0x4

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: Handle) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        return 0x4

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: Handle) -> list[SimpleNamespace]:  # noqa: N802
        self._enter("nvmlDeviceGetComputeRunningProcesses_v3", gpu)
        return self.running

    def _field_values(self, gpu: Handle, count: int, array: Any) -> int:
        self.calls["nvmlDeviceGetFieldValues"] += 1
        code = self._fault("nvmlDeviceGetFieldValues", gpu)
        if code:
            return code
        assert len(array) > count, "NVML may write one entry past the end"
        types = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
        for entry in array[:count]:
            [(name, (member, value))] = [
                (n, v) for n, v in self.fields.items() if getattr(pynvml, n) == entry.fieldId
            ]
            entry.nvmlReturn = self._fault(name, gpu)
            if not entry.nvmlReturn:
                entry.valueType = types.index(member)
                setattr(entry.value, member, value)
        return 0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


@pytest.fixture
def reports() -> list[str]:
    """What was reported, line by line: pass its `append`."""
    return []
