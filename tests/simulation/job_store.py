"""The store of a run on several nodes, as its processes reach it: that of torch, or one of the script."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from hoptui.sdk.rank_store import RankStore, TorchStore
from tests.simulation.kernel import Kernel, Process, Signal
from tests.simulation.ranks import Job, Member

T = TypeVar("T")
TIMEOUT_S = 300.0
"""How long a call of training's connection waits at most."""
LOOK_S = 0.5
"""How often a call that hangs looks whether the store answers again."""
RECORDS = "/job/"
"""What the keys of the records of nodes contain, and no others."""


@dataclass(frozen=True)
class StoreFault:
    """What is wrong with the store, until a time.

    `full` refuses to write. `lost` raises, and `hangs` answers nothing. `hosts` are those that notice it, all
    if None. With `records`, only the records of nodes are concerned, and not what the ranks agree on.
    """

    kind: Literal["slow", "full", "lost", "hangs"]
    until_ns: float
    hosts: frozenset[str] | None = None
    records: bool = False
    seconds: float = 0.0
    """How long an operation of a slow store takes at most."""


class NodesJob(Job):
    """The ranks of one rendezvous, and its store.

    `torch` is whether the store is that of torch, else the script has its own. `agents` is whether the agents
    of the nodes keep it, also for the next rendezvous: else it ends with the process of rank 0.
    """

    def __init__(self, kernel: Kernel, hosts: list[str], *, torch: bool, agents: bool) -> None:
        super().__init__(kernel, len(hosts))
        self.hosts, self.torch, self.agents = hosts, torch, agents
        self.faults: list[StoreFault] = []
        self.over = False
        """Whether the store has ended."""
        self.held_up: list[str] = []
        """Operations of a training thread that are not for commands."""
        self.written = Signal(kernel)

    def member(self, rank: int) -> JobMember:
        return JobMember(self, rank)

    def watch(self, process: Process) -> None:
        super().watch(process)
        if not self.agents and process.environ["RANK"] == "0":
            process.at_end.append(lambda _: setattr(self, "over", True))

    def fault(self, host: str, key: str) -> StoreFault | None:
        """Return what is wrong for an operation of this host, None if nothing is."""
        now = self.kernel.now_ns
        return next(
            (
                fault
                for fault in self.faults
                if now < fault.until_ns
                and (fault.hosts is None or host in fault.hosts)
                and (RECORDS in key or not fault.records)
            ),
            None,
        )

    def operate(self, rank: int, key: str, *, writes: bool, timeout_s: float) -> None:
        """Wait as an operation does, and raise as it does."""
        kernel, host = self.kernel, self.hosts[rank]
        kernel.process.operate()
        trains = kernel.current is kernel.process.tasks[0]
        if trains and RECORDS in key:
            self.held_up.append(f"rank {rank} asked for {key} at {kernel.seconds:.3f} s")
        until = kernel.now_ns + timeout_s * 1e9
        while (fault := self.fault(host, key)) is not None and fault.kind == "hangs":
            if kernel.now_ns >= until:
                self._raise(rank, key, "wait timeout", trains)
            kernel.sleep(min(LOOK_S, (min(fault.until_ns, until) - kernel.now_ns) / 1e9 + 1e-6))
        if self.over:
            raise RuntimeError("Connection reset by peer")
        if fault is None:
            return
        if fault.kind == "slow":
            kernel.sleep(kernel.random.uniform(0.0, fault.seconds))
        elif fault.kind == "lost":
            self._raise(rank, key, "Broken pipe", trains)
        elif fault.kind == "full" and writes:
            self._raise(rank, key, "No space left on device", trains)

    def _raise(self, rank: int, key: str, what: str, trains: bool) -> None:
        if RECORDS not in key:
            self.failed = True
            if trains:  # it uses the store in exchanges only
                self.interrupted.add(self.iterations[rank] + 1)
        raise RuntimeError(what)


class JobMember(Member):
    """One rank. As a `RankStore` it is the store of the script."""

    job: NodesJob

    @property
    def environ(self) -> dict[str, str]:
        hosts = self.job.hosts
        local = hosts[: self.rank].count(hosts[self.rank])
        return {"RANK": str(self.rank), "WORLD_SIZE": str(self.world), "LOCAL_RANK": str(local)}

    @property
    def store(self) -> RankStore:
        """What the script passes to `connect`, or what hoptui takes of torch."""
        return TorchStore(Connection(self.job, self.rank), self.rank, self.world) if self.job.torch else self

    def set(self, key: str, value: bytes) -> None:
        self.job.operate(self.rank, key, writes=True, timeout_s=math.inf)
        self.job.values[key] = value

    def get(self, key: str) -> bytes | None:
        self.job.operate(self.rank, key, writes=False, timeout_s=math.inf)
        return self.job.values.get(key)

    def delete(self, key: str) -> None:
        self.job.operate(self.rank, key, writes=True, timeout_s=math.inf)
        self.job.values.pop(key, None)


class Connection:
    """A connection to the store of torch. A call waits for that of another thread, as it holds its lock."""

    def __init__(self, job: NodesJob, rank: int) -> None:
        self._job, self._rank = job, rank
        self._timeout_s = TIMEOUT_S
        self._busy = False
        self._free = Signal(job.kernel)

    def set(self, key: str, value: bytes) -> None:
        def put() -> None:
            self._job.values[key] = bytes(value)
            self._job.written.set()

        self._call(key, put, writes=True)

    def check(self, keys: list[str]) -> bool:
        return self._call(keys[0], lambda: all(key in self._job.values for key in keys))

    def get(self, key: str) -> bytes:
        return self._call(key, lambda: self._wait([key])[0])

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._call(keys[0], lambda: self._wait(keys))

    def add(self, key: str, amount: int) -> int:
        def more() -> int:
            number = int(self._job.values.get(key, b"0")) + amount
            self._job.values[key] = str(number).encode()
            return number

        return self._call(key, more, writes=True)

    def delete_key(self, key: str) -> bool:
        return self._call(key, lambda: self._job.values.pop(key, None) is not None, writes=True)

    def clone(self) -> Connection:
        """Connect again. As in torch, it neither holds up another call of this one nor waits for it."""
        self._job.operate(self._rank, RECORDS, writes=False, timeout_s=self._timeout_s)
        return Connection(self._job, self._rank)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def _wait(self, keys: list[str]) -> list[bytes]:
        """Return the values of keys. Wait until all are there."""
        job = self._job
        if not job.kernel.wait(
            lambda: job.over or all(key in job.values for key in keys), [job.written], self._timeout_s
        ):
            raise RuntimeError("wait timeout")
        if job.over:
            raise RuntimeError("Connection reset by peer")
        return [job.values[key] for key in keys]

    def _call(self, key: str, do: Callable[[], T], *, writes: bool = False) -> T:
        job = self._job
        job.kernel.wait(lambda: not self._busy, [self._free])
        self._busy = True
        try:
            job.operate(self._rank, key, writes=writes, timeout_s=self._timeout_s)
            return do()
        finally:
            self._busy = False
            self._free.set()
