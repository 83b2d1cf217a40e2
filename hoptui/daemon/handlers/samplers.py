"""The handler for samplers: what their messages mean for the node, its GPUs and its runs. No I/O.

The node's hardware is derived from what both samplers report and from what their parents find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from hoptui.daemon.state.derived_rows import GpuRow, reading
from hoptui.daemon.state.gpu_ownership import Ancestry, Contradiction, assign, together
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
    RunProcesses,
    Sample,
    Tenants,
)
from hoptui.domain.facts import Fact, fact
from hoptui.node.driver_probe import DRIVER

AGAIN = "again_s"
"""The field of a problem that another try alone changes: the seconds until the next one."""


class Hardware:
    """Facts about the GPUs, also of those that cannot be read now: these keep their place, with the problem.

    `gpus` are in the order of their indices, a MIG instance after its GPU; `problem` is why there are no
    readings at all.
    """

    def __init__(self) -> None:
        self.host = HostInfo()
        self.gpus: tuple[GpuInfo, ...] = ()
        self.problem: Fact | None = fact("sampler.not_answered", sampler="gpus")
        self._told = Devices(problem=self.problem)
        self._known: dict[str, GpuInfo] = {}
        self._left: Mapping[int, float] = {}

    def update(self, devices: Devices) -> None:
        """The sampler lists GPUs, or reports why it cannot."""
        self._told = devices
        self._known.update((gpu.uuid, gpu) for gpu in devices.gpus)
        self._merge()

    def troubled(self, problem: Fact | None) -> bool:
        """Record that the sampler died or hangs (None: it does neither). While no GPU is known, this is the
        problem until the sampler sends again.

        Returns whether the state changed.
        """
        if not problem or self._known or problem == self._told.problem:
            return False
        self._told = Devices(problem=problem)
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
            problem = self._absent(gpu)
            if problem:
                merged.append(structs.replace(gpu, problem=problem))
            else:
                del self._known[uuid]
        self.gpus = tuple(sorted(merged, key=lambda gpu: (gpu.index, bool(gpu.parent))))
        self.problem = fact("driver.hung") if DRIVER in self._left else self._told.problem

    def _told_of(self, gpu: GpuInfo) -> GpuInfo:
        """A GPU of the newest list; that may be older than the hang."""
        problem = self._hang(gpu)
        return structs.replace(gpu, problem=problem) if problem else gpu

    def _absent(self, gpu: GpuInfo) -> Fact | None:
        """Why a known GPU is not in the newest list; None for a MIG instance that was taken apart."""
        return self._hang(gpu) or self._told.problem or (None if gpu.parent else fact("gpu.not_listed"))

    def _hang(self, gpu: GpuInfo) -> Fact | None:
        if DRIVER in self._left:
            return fact("driver.hung", again_s=self._left[DRIVER])
        parent = self._known.get(gpu.parent)
        index = parent.index if parent is not None else gpu.index
        if index in self._left:
            return fact("gpu.hung", again_s=self._left[index])
        return None


def changes(before: Iterable[GpuInfo], after: Iterable[GpuInfo]) -> list[tuple[GpuInfo, Fact]]:
    """The GPUs whose `problem` came, went or changed in kind, and what has happened to each."""
    known = {gpu.uuid: gpu for gpu in before}
    found = []
    for gpu in after:
        was = known.get(gpu.uuid)
        if was is not None and _kind(gpu.problem) != _kind(was.problem):
            found.append((gpu, gpu.problem or fact("gpu.back")))
    return found


def _kind(problem: Fact | None) -> Fact | None:
    """The problem without the time of the next try: that changes with each try in vain."""
    if problem is None or AGAIN not in problem.fields:
        return problem
    return Fact(problem.code, {name: value for name, value in problem.fields.items() if name != AGAIN})


TWICE_NS = 10_000_000_000
"""The sampler and the daemon may both notice that a GPU is lost or back. Within this time it is one event."""


class SamplerDesk:
    """Handles the messages of the samplers. `ancestry` looks processes up."""

    def __init__(self, node: Node, ancestry: Ancestry) -> None:
        self._node = node
        self._hardware = Hardware()
        self._ancestry = ancestry
        self._tenants: tuple[GpuProcess, ...] = ()
        self._resolved_at = -1
        self._told: dict[tuple[str, bool], int] = {}  # (GPU, whether it is lost) -> when it was reported

    def receive(self, message: FromSampler) -> None:
        """Take in a message."""
        match message:
            case Sample(parts=parts):
                self._sample(parts)
            case Tenants(processes=processes):
                self._tenants = processes
                self._assign()
            case RunProcesses(processes=listed):
                self._node.set_tree(listed)
            case Devices():
                before = self._hardware.gpus
                self._hardware.update(message)
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

    def troubled(self, problem: Fact | None) -> None:
        """Why there are no readings, as the parent of the sampler sees it; None if there are."""
        before = self._hardware.gpus
        if self._hardware.troubled(problem):
            self._publish(before)

    def silent(self) -> None:
        """Clear the processes: without readings of the GPUs they are unknown."""
        if self._tenants:
            self._tenants = ()
            self._assign()

    def tend(self) -> None:
        """Assign GPUs to runs again if a run has started, ended or changed its description since. Record the
        processes if they are due.
        """
        if self._resolved_at != self._node.version:
            self._assign()
        self._node.record_processes()

    # readings -----------------------------------------------------------------------------------------------

    def _sample(self, parts: tuple[Columns, ...]) -> None:
        read: dict[str, GpuRow] = {}
        t = 0
        live = [run for run in self._node.registry.live() if run.state.gpus]
        for part in parts if live else ():
            kind, _, uuid = part.source.partition("/")
            if kind == "gpu" and len(part):
                read[uuid] = reading(part)
                t = max(t, part.last_t)
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
        for process in self._tenants:
            owner = node.registry.get(pids.get(process.pid, "")) if chains.get(process.pid) else None
            if owner is not None:
                owner.listed.setdefault(process.pid, set()).add(process.gpu)
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
        found = together(run.resolved(gpus), gpus)
        if found.contradiction is not None and not run.contradicted:
            run.contradicted = True
            what = _contradiction(found.contradiction, gpus)
            self._node.event("gpu-contradicted", what, run=run.id, step=run.step, level="warning")
        return run.own(found)

    # what happened ------------------------------------------------------------------------------------------

    def _publish(self, before: tuple[GpuInfo, ...]) -> None:
        hardware = self._hardware
        self._node.set_hardware(hardware.host, hardware.gpus, hardware.problem)
        self._assign()
        for gpu, what in changes(before, hardware.gpus):
            source = f"gpu/{gpu.uuid}"
            if self._news(source, gpu.problem is not None):
                self._node.event("gpu", what, source=source, level="alarm" if gpu.problem else "info")

    def _happened(self, what: Happened) -> None:
        if what.kind == "gpu" and not self._news(what.source, what.level != "info"):
            return
        self._node.event(what.kind, what.what, text=what.text, level=what.level, source=what.source, t=what.t)

    def _news(self, source: str, lost: bool) -> bool:
        now = self._node.clock.t()
        told = self._told.get((source, lost))
        self._told.pop((source, not lost), None)
        self._told[source, lost] = now
        return told is None or now - told > TWICE_NS


def _contradiction(found: Contradiction, gpus: Sequence[GpuInfo]) -> Fact:
    named, listed = (
        [gpu.index for gpu in gpus if gpu.uuid in uuids] for uuids in (found.named, found.listed)
    )
    return fact("gpu.contradicted", source=found.source, named=named, listed=listed)
