"""The place of one GPU in NVML's list, and the driver's events.

A place stays when its GPU goes. Events are read from NVML's event set without waiting.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from hoptui.domain.columns import Columns
from hoptui.domain.devices import GpuInfo, GpuProcess, Happened
from hoptui.domain.facts import Fact, fact
from hoptui.telemetry.events import Alarms
from hoptui.telemetry.gpu import Gpu, Job, Surroundings, instances
from hoptui.telemetry.nvml_errors import FATAL, NOT_SUPPORTED, SECOND_NS, TIMEOUT, failed

AGAIN_NS = 60 * SECOND_NS
MOST = 32
"""Events taken at once: a program that faults in a loop must not keep the sampler here."""


class Bell:
    """Xids and double-bit ECC errors of all GPUs, as the driver reports them. Asking costs 1–2 µs.

    Args:
        nvml: the module pynvml, started.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._retry_at = 0
        self._handles: dict[int, Any] = {}
        self.missing: dict[int, Fact] = {}
        """Why a GPU's events are not heard, by its handle's address."""

    def register(self, handle: Any, t: int) -> None:
        """Listen to a GPU from now on.

        Raises:
            NVMLError: its value is in LOST or DRIVER_GONE.
        """
        nvml = self._nvml
        at = address(handle)
        self._handles[at] = handle
        try:
            if self._set is None:
                self._set = nvml.nvmlEventSetCreate()
            kinds = nvml.nvmlDeviceGetSupportedEventTypes(handle)
            kinds &= nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
            if kinds & nvml.nvmlEventTypeXidCriticalError:
                nvml.nvmlDeviceRegisterEvents(handle, kinds, self._set)
                self.missing.pop(at, None)
            else:
                self.missing[at] = NOT_SUPPORTED
        except nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            self.missing[at] = failed(error)
            self._retry_at = t + AGAIN_NS

    def rung(self, t: int) -> Iterator[tuple[int, int | None]]:
        """What has happened since the time before: (a handle's address, Xid or None for a double-bit ECC
        error)."""
        nvml = self._nvml
        for at, handle in list(self._handles.items()) if self.missing and t >= self._retry_at else ():
            if self.missing.get(at, NOT_SUPPORTED) != NOT_SUPPORTED:
                self.register(handle, t)
        for _ in range(MOST if self._set is not None else 0):
            try:
                data = nvml.nvmlEventSetWait_v2(self._set, 0)
            except nvml.NVMLError as error:
                if error.value != TIMEOUT and error.value not in FATAL:  # the set is of no use
                    self.missing = dict.fromkeys(self._handles, failed(error))
                    self._retry_at = t + AGAIN_NS
                    self.close()
                return  # a lost GPU is found by its tick
            if data.eventType & nvml.nvmlEventTypeXidCriticalError:
                yield address(data.device), int(data.eventData)
            elif data.eventType & nvml.nvmlEventTypeDoubleBitEccError:
                yield address(data.device), None

    def close(self) -> None:
        """Give the set back to NVML."""
        if self._set is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._set)
        self._set = None


def address(handle: Any) -> int:
    """What makes two handles of NVML the same."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


RETRY_NS = 30 * SECOND_NS
LAYOUT_NS = 10 * SECOND_NS
LATE = 2.5
NOT_LISTED = fact("gpu.not_listed")


class Slot:
    """One GPU and its MIG instances; `gpu` is None while it cannot be read, and its facts stay with the
    reason.

    Args:
        shared: what it has in common with the other GPUs.
        index: NVML's index of the GPU.
    """

    def __init__(self, shared: Surroundings, index: int) -> None:
        self._shared = shared
        self._problem: Fact | None = None
        self._facts: tuple[GpuInfo, ...] = ()
        self._bell: Bell | None = None
        self._instances: dict[str, Gpu] = {}
        self._read_at: int | None = None
        self._layout = Job(LAYOUT_NS, self._look_at_layout)
        self.index = index
        self.uuid = f"unknown-{index}"
        self.known = False
        """NVML has reported its UUID."""
        self.gpu: Gpu | None = None
        self.retry_at: float = 0
        self.alarms = Alarms(f"gpu/{self.uuid}")
        self.happened: list[Happened] = []

    def open(self, bell: Bell, t: int) -> None:
        """Start reading the GPU. Raises NVMLError if it cannot be had."""
        nvml = self._shared.nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(self.index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        if uuid != self.uuid:
            self.uuid, self.alarms, self.known = uuid, Alarms(f"gpu/{uuid}"), True
        gpu = Gpu(self._shared, handle, self.index, self.uuid)
        gpu.learn(t)
        bell.register(handle, t)
        self.gpu, self._bell = gpu, bell
        self._look_at_layout(t)
        self._layout.due = t + LAYOUT_NS

    def read(self, t: int, period: int) -> list[Columns]:
        """A row of the GPU and one of each instance, of what can be read at `t` (monotonic ns).

        Raises:
            NVMLError: its value is in LOST or DRIVER_GONE.
        """
        if self.gpu is None:
            return []
        late = self._read_at is None or t - self._read_at > LATE * period
        self._read_at = t
        row = self.gpu.read(t, late)
        parts = [one_row(f"gpu/{self.uuid}", t, row)] if row else []
        for instance in list(self._instances.values()):
            try:
                found = instance.read(t, late)
            except self._shared.nvml.NVMLError:  # most likely it was destroyed
                self._drop(instance)
                continue
            if found:
                parts.append(one_row(f"gpu/{instance.uuid}", t, found))
        self._problem = None
        self.happened += self.alarms.back(t)
        self.happened += self.alarms.read(t, row, period, self.gpu.clock_max_mhz)
        return parts

    def jobs(self) -> list[Job]:
        """Its slow readings; run them with `work`."""
        if self.gpu is None:
            return []
        return [self._layout, *self.gpu.jobs, *(job for i in self._instances.values() for job in i.jobs)]

    def lose(self, problem: Fact, t: int, retry_at: float) -> None:
        """Record that the GPU cannot be read. Its known facts stay."""
        self._close(retry_at)
        self._problem = problem
        self.happened += self.alarms.lost(t, problem)

    def reopen(self) -> None:
        """NVML is started anew: the old handles are of no use, which is no fault of the GPU."""
        self._close(retry_at=0)

    def infos(self, driver: str, driver_problem: Fact | None) -> tuple[GpuInfo, ...]:
        """What is known of the GPU, then of its instances."""
        self._remember()
        facts = self._facts or (GpuInfo(uuid=self.uuid, index=self.index, name=f"GPU {self.index}"),)
        problem = driver_problem or self._problem
        return tuple(
            msgspec.structs.replace(one, driver=driver, problem=problem or one.problem) for one in facts
        )

    def processes(self) -> list[GpuProcess]:
        """The processes on the GPU and its instances; in MIG mode all are on instances."""
        if self.gpu is None:
            return []
        gpus = self._instances.values() if self.gpu.in_mig_mode else (self.gpu,)
        return [process for gpu in gpus for process in gpu.processes]

    def _look_at_layout(self, t: int) -> None:
        assert self.gpu is not None
        found = instances(self._shared.nvml, self.gpu.handle)
        self.gpu.in_mig_mode = found is not None
        kept = {}
        for instance in found or ():
            gpu = self._instances.pop(instance.uuid, None)
            if gpu is None:
                gpu = Gpu(self._shared, instance.handle, self.index, instance.uuid, self.gpu, instance)
                gpu.learn(t)
            kept[instance.uuid] = gpu
        for gone in self._instances.values():
            gone.close()
        self._instances = kept

    def _drop(self, instance: Gpu) -> None:
        instance.close()
        del self._instances[instance.uuid]
        self._layout.due = 0

    def _remember(self) -> None:
        if self.gpu is not None and self._bell is not None:
            why = self._bell.missing.get(address(self.gpu.handle))
            self._facts = (self.gpu.info(why), *(gpu.info() for gpu in self._instances.values()))

    def _close(self, retry_at: float) -> None:
        self._remember()
        for gpu in (self.gpu, *self._instances.values()):
            if gpu is not None:
                gpu.close()
        self._instances = {}
        self.gpu, self.retry_at, self._read_at = None, retry_at, None


_INT64 = struct.Struct("<q")
_FLOAT64 = struct.Struct("<d")
_NO_STEP = _INT64.pack(-1)


def one_row(source: str, t: int, row: Mapping[str, float]) -> Columns:
    """What `pack` makes of a single row, at a fifth of the price: this is done at every tick."""
    return Columns(
        source=source,
        names=tuple(row),
        t=_INT64.pack(t),
        step=_NO_STEP,
        values=tuple(map(_FLOAT64.pack, row.values())),
    )
