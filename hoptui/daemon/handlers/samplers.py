"""The handler for samplers: what their messages mean for the node, its GPUs and its runs. No I/O.

The node's hardware is derived from what both samplers report and from what their parents find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import structs

from hoptui.daemon.state.derived_rows import GpuRow, reading
from hoptui.daemon.state.gpu_ownership import Ancestry, assign, resolve, together
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import (
    Devices,
    FromSampler,
    GpuInfo,
    GpuProcess,
    Happened,
    HostInfo,
    Sample,
    Tenants,
)
from hoptui.node.driver_probe import DRIVER

NO_ANSWER = "does not answer: a driver call hung"
DRIVER_HANGS = "the driver does not answer: a call into it hung"
NOT_LISTED = "no longer listed by the driver"


class Hardware:
    """Facts about the GPUs, also of those that cannot be read now: these keep their place, with the reason.

    `gpus` are in the order of their indices, a MIG instance after its GPU; `reason` says in one line why
    there are no readings at all.
    """

    def __init__(self) -> None:
        self.host = HostInfo()
        self.gpus: tuple[GpuInfo, ...] = ()
        self.reason = "the GPU sampler has not answered yet"
        self._told = Devices(reason=self.reason)
        self._known: dict[str, GpuInfo] = {}
        self._left: Mapping[int, float] = {}

    def told(self, devices: Devices) -> None:
        """The sampler lists GPUs, or says why it cannot."""
        self._told = devices
        self._known.update((gpu.uuid, gpu) for gpu in devices.gpus)
        self._merge()

    def troubled(self, problem: str) -> bool:
        """The sampler died or hangs ("": it does not): the reason as long as no GPU is known, until it speaks
        again.

        Returns whether that is news.
        """
        if not problem or self._known or problem == self._told.reason:
            return False
        self._told = Devices(reason=problem)
        self._merge()
        return True

    def leave(self, left: Mapping[int, float]) -> bool:
        """These GPUs (by index, or `DRIVER` for all) are left alone, each tried again after so many seconds.

        Returns whether that is news.
        """
        if dict(left) == dict(self._left):
            return False
        self._left = dict(left)
        self._merge()
        return True

    def _merge(self) -> None:
        there = {gpu.uuid for gpu in self._told.gpus}
        merged = [self._told_of(gpu) for gpu in self._told.gpus]
        for uuid in [uuid for uuid in self._known if uuid not in there]:
            gpu = self._known[uuid]
            reason = self._absent(gpu)
            if reason:
                merged.append(structs.replace(gpu, reason=reason))
            else:
                del self._known[uuid]
        self.gpus = tuple(sorted(merged, key=lambda gpu: (gpu.index, bool(gpu.parent))))
        self.reason = DRIVER_HANGS if DRIVER in self._left else self._told.reason

    def _told_of(self, gpu: GpuInfo) -> GpuInfo:
        """A GPU of the newest list; that may be older than the hang."""
        reason = self._hang(gpu)
        return structs.replace(gpu, reason=reason) if reason else gpu

    def _absent(self, gpu: GpuInfo) -> str:
        """Why a known GPU is not in the newest list; "" for a MIG instance that was taken apart."""
        return self._hang(gpu) or self._told.reason or ("" if gpu.parent else NOT_LISTED)

    def _hang(self, gpu: GpuInfo) -> str:
        if DRIVER in self._left:
            return f"{DRIVER_HANGS}; it is asked again after {self._left[DRIVER]:.0f} s"
        parent = self._known.get(gpu.parent)
        index = parent.index if parent is not None else gpu.index
        if index in self._left:
            return f"{NO_ANSWER}; it is tried again after {self._left[index]:.0f} s"
        return ""


def changes(before: Iterable[GpuInfo], after: Iterable[GpuInfo]) -> list[tuple[GpuInfo, str]]:
    """The GPUs whose `reason` came, went or changed in kind, with what to tell of each in a few words."""
    known = {gpu.uuid: gpu for gpu in before}
    found = []
    for gpu in after:
        was = known.get(gpu.uuid)
        if was is None or gpu.reason == was.reason:
            continue
        if gpu.reason and was.reason and gpu.reason.partition(";")[0] == was.reason.partition(";")[0]:
            continue  # tried again in vain: the pause alone is another
        found.append((gpu, gpu.reason or "back: it can be read again"))
    return found


TWICE_NS = 10_000_000_000
"""The sampler and the daemon may both notice that a GPU is lost or back: within so long it is told once."""


class SamplerDesk:
    """Takes in what the samplers say. `ancestry` looks processes up."""

    def __init__(self, node: Node, ancestry: Ancestry) -> None:
        self._node = node
        self._hardware = Hardware()
        self._ancestry = ancestry
        self._tenants: tuple[GpuProcess, ...] = ()
        self._resolved_at = -1
        self._told: dict[tuple[str, bool], int] = {}  # (GPU, whether it is lost) -> when that was told

    def receive(self, message: FromSampler) -> None:
        """Take in a message."""
        match message:
            case Sample(parts=parts):
                self._sample(parts)
            case Tenants(processes=processes):
                self._tenants = processes
                self._assign()
            case Devices():
                before = self._hardware.gpus
                self._hardware.told(message)
                self._publish(before)
            case HostInfo():
                self._hardware.host = message
                self._publish(self._hardware.gpus)
            case Happened():
                self._happened(message)

    def leave(self, left: Mapping[int, float]) -> None:
        """GPUs that are left alone because a call hung in them, and after how long each is tried again,
        seconds."""
        before = self._hardware.gpus
        if self._hardware.leave(left):
            self._publish(before)

    def troubled(self, problem: str) -> None:
        """Why there are no readings, as the parent of the sampler sees it; "" if there are."""
        before = self._hardware.gpus
        if self._hardware.troubled(problem):
            self._publish(before)

    def silent(self) -> None:
        """Nobody reads the GPUs: who is on them is unknown."""
        if self._tenants:
            self._tenants = ()
            self._assign()

    def tend(self) -> None:
        """Look whose GPUs are whose, if a run has come, gone or said something new of itself since."""
        if self._resolved_at != self._node.version:
            self._assign()

    # readings -----------------------------------------------------------------------------------------------

    def _sample(self, parts: tuple[Columns, ...]) -> None:
        read: dict[str, GpuRow] = {}
        t = 0
        live = [run for run in self._node.registry.live() if run.state.gpus]
        for part in parts if live else ():
            kind, _, uuid = part.source.partition("/")
            if kind == "gpu" and len(part):
                read[uuid] = reading(part)
                t = max(t, part.times()[-1])
        derived = []
        for run in live if read else ():
            row = self._node.faults.attempt(f"the account of {run.id}", self._derived, run, t, read)
            if row:
                derived.append(pack(f"derived/{run.id}", [(t, run.last_step if run.last_t else -1, row)]))
        self._node.rows((*parts, *derived))

    def _derived(self, run: TrackedRun, t: int, read: dict[str, GpuRow]) -> dict[str, float]:
        gpus = [gpu for gpu in self._hardware.gpus if gpu.uuid in run.state.gpus]
        processes = (process for process in self._node.processes if process.run == run.id)
        return run.account.tick(t, read, run.state, gpus, processes)

    # whose --------------------------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Which GPUs are a run's, and which run a process on a GPU is of."""
        node, gpus = self._node, self._hardware.gpus
        live = node.registry.live()
        # The sampler names only those whose pid is surely one of this namespace.
        chains = self._ancestry.of({process.pid for process in self._tenants if process.user})
        pids = {pid: run.id for run in live for pid in run.pids}
        seen = [(p.run, p.gpu) for p in assign(self._tenants, chains, pids, {})]
        news = False
        for run in live:
            run.seen.update(gpu for run_id, gpu in seen if run_id == run.id)
            if node.faults.attempt(f"telling the GPUs of {run.id}", self._own, run):
                news = True
                node.remember(run)
        said: dict[str, list[str]] = {}
        if self._ancestry.contained:
            said = {g.uuid: [run.id for run in live if run.said and g.uuid in run.state.gpus] for g in gpus}
        node.set_processes(assign(self._tenants, chains, pids, said))
        if news:
            node.touch()
        self._resolved_at = node.version

    def _own(self, run: TrackedRun) -> bool:
        gpus = self._hardware.gpus
        return run.own(together([resolve(claim, gpus, run.seen) for claim in run.claims], gpus))

    # what happened ------------------------------------------------------------------------------------------

    def _publish(self, before: tuple[GpuInfo, ...]) -> None:
        hardware = self._hardware
        self._node.set_hardware(hardware.host, hardware.gpus, hardware.reason)
        self._assign()
        for gpu, text in changes(before, hardware.gpus):
            source = f"gpu/{gpu.uuid}"
            if self._news(source, bool(gpu.reason)):
                self._node.event("gpu", text=text, source=source, level="alarm" if gpu.reason else "info")

    def _happened(self, what: Happened) -> None:
        if what.kind == "gpu" and not self._news(what.source, what.level != "info"):
            return
        self._node.event(what.kind, text=what.text, level=what.level, source=what.source, t=what.t)

    def _news(self, source: str, lost: bool) -> bool:
        now = self._node.clock.t()
        told = self._told.get((source, lost))
        self._told.pop((source, not lost), None)
        self._told[source, lost] = now
        return told is None or now - told > TWICE_NS
