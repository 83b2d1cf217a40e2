"""What simulated ranks share: the store of the job, and the sums of their training."""

from __future__ import annotations

from hoptui.sdk.rank_store import RankStore
from tests.simulation.kernel import Kernel, Process, Signal


class Job:
    """The ranks of one run. `broken` is set when one of them has ended: what they share is gone then."""

    def __init__(self, kernel: Kernel, world: int) -> None:
        self.kernel, self.world = kernel, world
        self.values: dict[str, bytes] = {}
        self.run = ""  # its id, as rank 0 knows it
        self.broken = False
        self.signal = Signal(kernel)
        self.iterations = [0] * world
        self.slow_until_ns, self.slow_s = 0, 0.0
        """Until when the store is slow, and how long an operation then takes at most."""
        self.failing_until_ns = 0
        self.failed = False
        """Whether the store has ever raised for ranks that live."""
        self.interrupted: set[int] = set()
        """Boundaries at which it raised while the ranks exchanged commands. They count from 1."""
        self.left: set[int] = set()
        """Ranks that go on without hoptui."""

    def member(self, rank: int) -> Member:
        return Member(self, rank)

    def watch(self, process: Process) -> None:
        """Break the job when this process ends."""

        def over(killed: bool) -> None:
            self.broken = True
            self.signal.set()

        process.at_end.append(over)


class Member:
    """One rank: its `RankStore`, and its training."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank, self.world = job, rank, job.world

    @property
    def environ(self) -> dict[str, str]:
        """What the launcher of the rank sets."""
        return {}

    @property
    def store(self) -> RankStore:
        """What the script passes to `connect`."""
        return self

    def set(self, key: str, value: bytes) -> None:
        self._operate()
        self.job.values[key] = value

    def get(self, key: str) -> bytes | None:
        self._operate()
        return self.job.values.get(key)

    def delete(self, key: str) -> None:
        self._operate()
        self.job.values.pop(key, None)

    def add_gradients(self) -> None:
        """Wait until all ranks have come here, as an all-reduce does."""
        job = self.job
        job.iterations[self.rank] += 1
        mine = job.iterations[self.rank]
        job.signal.set()
        job.kernel.wait(lambda: min(job.iterations) >= mine or job.broken, [job.signal])

    def _operate(self) -> None:
        job, kernel = self.job, self.job.kernel
        kernel.process.operate()
        if kernel.now_ns < job.slow_until_ns:
            kernel.sleep(kernel.random.uniform(0.0, job.slow_s))
        if job.broken:
            raise RuntimeError("the store is gone")
        if kernel.now_ns < job.failing_until_ns:
            job.failed = True
            if kernel.current is kernel.process.tasks[0]:  # it trains, and uses the store in exchanges only
                job.interrupted.add(job.iterations[self.rank] + 1)
            raise RuntimeError("the store does not answer")
