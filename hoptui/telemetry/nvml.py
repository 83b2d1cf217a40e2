"""The GPUs of the node as NVML tells of them: is there a driver, which GPUs, and what became of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from hoptui.telemetry.gpu import DRIVER_GONE, LOST, SECOND_NS, FieldValues, Gpu
from hoptui.telemetry.readings import ARCHITECTURES, FACTS, ROW, Field
from hoptui.wire.columns import Columns, pack
from hoptui.wire.devices import GpuInfo

RETRY_NS = 30 * SECOND_NS

_REASONS = {
    4: "no access to the NVIDIA driver: permission denied (are /dev/nvidia* open to this user?)",
    9: "no NVIDIA driver: its kernel module is not loaded",
    12: "no NVIDIA driver: libnvidia-ml.so.1 was not found",
    18: "no working NVIDIA driver: its library and its kernel module have different versions"
    " (reload the module or reboot)",
}
"""By NVML_ERROR_NO_PERMISSION, _DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND and _LIB_RM_VERSION_MISMATCH."""
NO_GPU = "no NVIDIA GPU found: the driver is there and lists none"
NOT_ASKED = "the NVIDIA driver has not answered yet"


class Gpus:
    """All GPUs of the node, those that cannot be read included.

    A GPU that is lost keeps its place, with the reason, and the others go on; it is tried again every 30 s, and so is
    a driver that is missing or not working.

    Args:
        nvml: the module pynvml, or what behaves like it.
        clock: monotonic ns.
        report: takes one line about a reading that fails, once for each new reason.
    """

    def __init__(self, nvml: Any, clock: Callable[[], int], report: Callable[[str], None]) -> None:
        self._nvml = nvml
        self._clock = clock
        self._report = report
        fields = [s.constant for reading in ROW for s in reading.sources if isinstance(s, Field)]
        self._fields = FieldValues(nvml, dict.fromkeys(fields))
        self._slots: list[_Slot] = []
        self._driver = ""
        self._retry_at = 0
        self.reason = NOT_ASKED

    def infos(self) -> tuple[GpuInfo, ...]:
        """The GPUs in NVML's order."""
        return tuple(slot.info(self._driver, self.reason) for slot in self._slots)

    def read(self) -> list[Columns]:
        """One row for each GPU that can be read, of the readings that are due; finds the driver first if need be."""
        if self.reason:
            if self._clock() < self._retry_at:
                return []
            self._find()
        parts = []
        for slot in self._slots:
            t = self._clock()
            try:
                row = self._read(slot, t)
            except self._nvml.NVMLError as error:
                if error.value in DRIVER_GONE:
                    self._close(error)
                    return []
                slot.lose(_lost(error), t + RETRY_NS)
                continue
            if row:
                parts.append(pack(f"gpu/{slot.uuid}", [(t, -1, row)]))
        return parts

    def _find(self) -> None:
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()  # else a later nvmlInit would answer from the list of the first
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._close(error)
            return
        try:
            self._driver = nvml.nvmlSystemGetDriverVersion()
        except nvml.NVMLError:
            self._driver = ""
        self.reason = "" if count else NO_GPU
        self._retry_at = self._clock() + RETRY_NS
        if len(self._slots) != count:
            self._slots = [_Slot(index) for index in range(count)]
        for slot in self._slots:
            slot.reopen()

    def _close(self, error: Any) -> None:
        self.reason = _REASONS.get(error.value, f"no working NVIDIA driver (NVML: {error})")
        self._retry_at = self._clock() + RETRY_NS

    def _read(self, slot: _Slot, t: int) -> dict[str, float]:
        if slot.gpu is None:
            if t < slot.retry_at:
                return {}
            handle = self._nvml.nvmlDeviceGetHandleByIndex(slot.index)
            slot.uuid = self._nvml.nvmlDeviceGetUUID(handle)
            gpu = Gpu(self._nvml, handle, self._fields, f"GPU {slot.index}", self._report)
        else:
            gpu = slot.gpu
        gpu.read_facts(FACTS, t)
        row = gpu.read(ROW, t)
        slot.keep(gpu)
        return row


class _Slot:
    """The place of one GPU in NVML's list; `gpu` is None while it cannot be read, `reason` says why."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.uuid = f"unknown-{index}"
        self.gpu: Gpu | None = None
        self.retry_at = 0
        self._reason = ""
        self._facts: dict[str, Any] = {}

    def keep(self, gpu: Gpu) -> None:
        """The GPU has been read."""
        self.gpu, self._facts, self._reason = gpu, gpu.facts, gpu.reason

    def lose(self, reason: str, retry_at: int) -> None:
        """The GPU cannot be read; what was learnt of it before stays."""
        self.gpu, self._reason, self.retry_at = None, reason, retry_at

    def reopen(self) -> None:
        """NVML has been started anew: its old handles are of no use."""
        self.gpu, self.retry_at = None, 0

    def info(self, driver: str, driver_reason: str) -> GpuInfo:
        """What to tell of the GPU."""
        facts = self._facts
        return GpuInfo(
            uuid=self.uuid,
            index=self.index,
            name=facts.get("name") or f"GPU {self.index}",
            memory_total_bytes=facts.get("memory_total_bytes"),
            power_limit_w=facts.get("power_limit_w"),
            sm_clock_max_mhz=facts.get("sm_clock_max_mhz"),
            driver=driver,
            architecture=ARCHITECTURES.get(facts.get("architecture", 0), ""),
            reason=driver_reason or self._reason,
        )


def _lost(error: Any) -> str:
    return f"{LOST.get(error.value, 'cannot be opened')} (NVML: {error})"
