"""The desk for samplers: what their messages mean for the node, its GPUs and its runs. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from hoptui.daemon.sampling.hardware import Hardware, changes
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
                self._node.event("gpu", text, source=source, level="alarm" if gpu.reason else "info")

    def _happened(self, what: Happened) -> None:
        if what.kind == "gpu" and not self._news(what.source, what.level != "info"):
            return
        self._node.event(what.kind, what.text, level=what.level, source=what.source, t=what.t)

    def _news(self, source: str, lost: bool) -> bool:
        now = self._node.clock.t()
        told = self._told.get((source, lost))
        self._told.pop((source, not lost), None)
        self._told[source, lost] = now
        return told is None or now - told > TWICE_NS
