"""The GPUs of the node as NVML reports them: whether there is a driver, which GPUs, and the state of each."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

from hoptui.domain.columns import Columns
from hoptui.domain.devices import GpuInfo, GpuProcess, Happened
from hoptui.domain.facts import Fact, fact
from hoptui.node.driver_probe import DRIVER, IDLE, SetProbe, no_probe
from hoptui.telemetry.gpm import GpmQuery
from hoptui.telemetry.gpu import Job, ProcessOwners, Surroundings, Troubles
from hoptui.telemetry.gpu_slot import NOT_LISTED, RETRY_NS, Bell, Slot, address
from hoptui.telemetry.nvml_errors import DRIVER_GONE, SECOND_NS, fields_of, lost

LISTEN_NS = SECOND_NS

_PROBLEMS = {4: "driver.no_access", 9: "driver.not_loaded", 12: "driver.not_found", 18: "driver.mismatched"}
"""By NVML_ERROR_NO_PERMISSION, _DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND and _LIB_RM_VERSION_MISMATCH."""
NO_GPU = fact("driver.no_gpu")
NOT_ASKED = fact("driver.not_asked")


class Gpus:
    """All GPUs of the node, those that cannot be read included.

    A GPU that is lost keeps its place, with the reason, and the others go on; it is tried again every 30 s,
    and so is a driver that is missing or not working. One that a driver started anew no longer lists keeps
    its place too.

    Args:
        nvml: the module pynvml, or what behaves like it.
        clock: monotonic ns.
        report: takes one line about a reading that fails, once for each new reason.
        probe: called with what the driver is about to be asked about.
        leave: indices of GPUs that are not touched at all.
    """

    def __init__(
        self,
        nvml: Any,
        clock: Callable[[], int],
        report: Callable[[str], None],
        probe: SetProbe = no_probe,
        leave: frozenset[int] = frozenset(),
    ) -> None:
        self._nvml = nvml
        self._clock = clock
        self._probe = probe
        self._leave = leave
        self._people = ProcessOwners()
        self._shared = Surroundings(nvml, clock, report, GpmQuery(nvml), self._people)
        self._slots: list[Slot] = []
        self._bell: Bell | None = None
        self._listen = Job(LISTEN_NS, self._listen_to_driver)
        self._happened: list[Happened] = []
        self._driver = ""
        self._retry_at = 0
        self._aside_at = 0
        self._troubles: list[Troubles | None] = []
        self.problem: Fact | None = NOT_ASKED
        self.changes = 0
        """Rises whenever `infos` or `processes` may have changed."""

    def infos(self) -> tuple[GpuInfo, ...]:
        """The GPUs in NVML's order, each before its instances."""
        infos = (slot.infos(self._driver, self.problem) for slot in self._slots)
        return tuple(info for of_slot in infos for info in of_slot)

    def read(self, period: int = SECOND_NS) -> list[Columns]:
        """One row for each GPU that can be read; finds the driver first if need be.

        Args:
            period: between two ticks, ns; used to detect a late one.
        """
        try:
            if self.problem:
                if self._clock() < self._retry_at:
                    return []
                self._probe(DRIVER)
                self._find()
            parts = []
            for slot in self._slots:
                self._probe(slot.index)
                parts += self._read(slot, period)
                if self.problem:
                    return []
            troubles = [slot.gpu.troubles if slot.gpu else None for slot in self._slots]
            if troubles != self._troubles:
                self._troubles = troubles
                self.changes += 1
            return parts
        finally:
            self._probe(IDLE)

    def aside(self, until: int) -> None:
        """Make slow readings that are due, the one that has waited longest first, and begin none after
        `until`.

        What they find is in the next rows, in `processes` and in `happened`.
        """
        try:
            while not self.problem and self._aside_at <= (t := self._clock()) < until:
                jobs = [(job, slot) for slot in self._slots for job in slot.jobs()]
                job, slot = min([(self._listen, None), *jobs], key=lambda pair: pair[0].due)
                if job.due > t:
                    self._aside_at = min(job.due, t + LISTEN_NS // 4)
                    return
                self.changes += 1
                self._probe(DRIVER if slot is None else slot.index)
                job.due = t + job.every
                try:
                    job.work(t)
                except self._nvml.NVMLError as error:
                    self._failed(slot, error, t)
        finally:
            self._probe(IDLE)

    def happened(self) -> list[Happened]:
        """The events since this was last asked."""
        found, self._happened = self._happened, []
        for slot in self._slots:
            found += slot.happened
            slot.happened = []
        return found

    def processes(self) -> tuple[GpuProcess, ...]:
        """All processes on all GPUs as last seen."""
        found = tuple(process for slot in self._slots for process in slot.processes())
        self._people.keep({process.pid for process in found})
        return found

    def _find(self) -> None:
        nvml = self._nvml
        for slot in self._slots:
            slot.reopen()
        if self._bell is not None:
            self._bell.close()
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
        self._bell = Bell(nvml)
        self._retry_at = self._clock() + RETRY_NS
        self.changes += 1
        self._place([index for index in range(count) if index not in self._leave])
        self.problem = None if count else NO_GPU

    def _place(self, indices: list[int]) -> None:
        """Give each GPU that NVML lists the place that it had before, or a new one; the other places stay,
        empty."""
        before = {slot.uuid: slot for slot in self._slots}
        uuids = {}
        for index in indices:
            self._probe(index)
            uuids[index] = self._uuid(index)
        self._probe(DRIVER)
        listed: list[Slot] = []
        for index, uuid in sorted(uuids.items(), key=lambda pair: not pair[1]):
            slot = before.get(uuid)
            if not uuid:  # unavailable now: most likely the GPU that was at this index
                slot = next((one for one in before.values() if one.index == index), None)
            if slot is None:
                slot = Slot(self._shared, index)
            before.pop(slot.uuid, None)
            slot.index = index
            listed.append(slot)
        for slot in before.values():
            if slot.known:
                slot.lose(NOT_LISTED, self._clock(), retry_at=math.inf)
                listed.append(slot)
        self._slots = sorted(listed, key=lambda slot: slot.index)

    def _uuid(self, index: int) -> str:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            return str(self._nvml.nvmlDeviceGetUUID(handle))
        except self._nvml.NVMLError:
            return ""

    def _read(self, slot: Slot, period: int) -> list[Columns]:
        t = self._clock()
        try:
            if slot.gpu is None:
                if t < slot.retry_at or self._bell is None:
                    return []
                slot.open(self._bell, t)
                t = self._clock()
            return slot.read(t, period)
        except self._nvml.NVMLError as error:
            self._failed(slot, error, t)
            return []

    def _failed(self, slot: Slot | None, error: Any, t: int) -> None:
        if error.value in DRIVER_GONE:
            self._close(error)
        elif slot is not None:
            slot.lose(lost(error), t, t + RETRY_NS)
            self.changes += 1

    def _close(self, error: Any) -> None:
        self.changes += 1
        self.problem = problem = Fact(_PROBLEMS.get(error.value, "driver.broken"), fields_of(error))
        t = self._clock()
        self._retry_at = t + RETRY_NS
        for slot in self._slots:
            if slot.gpu is not None:
                slot.lose(problem, t, 0)

    def _listen_to_driver(self, t: int) -> None:
        if self._bell is None:
            return
        slots = {address(slot.gpu.handle): slot for slot in self._slots if slot.gpu is not None}
        for at, xid in self._bell.rung(t):
            slot = slots.get(at)
            if slot is not None:
                events = slot.alarms.double_bit(t) if xid is None else slot.alarms.xid(t, xid)
                self._happened += events
