"""What the exchange over the store of a job costs training: two ranks that hoptui takes for two nodes.

    python -m benchmarks.job_store_cost [--pairs 40] [--seconds 2]

torchrun starts two gloo ranks on CPU. Each has a daemon of its own, so the two exchange records once a
second. Both ranks switch the exchange on and off at the same iterations: a pair is one block of iterations
with it and one without, in random order. Without it, each report of the daemon is answered at once, with
nothing read. So all but the client of the store goes on in both.

The rate drifts by more than an exchange costs. So an exchange is also measured by itself: by how much longer
the iterations around it take than those half a second later. The same is measured around the reports of
blocks without exchange. An iteration takes equally long on both ranks, so it has the exchanges of both.
`own_account` is exact: the CPU time of the thread by the clock of the kernel, its requests to the store, and
their bytes without TCP's own. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from benchmarks.measure import report, tell
from benchmarks.stack_cost import Window, cost_of, excess_us, interval
from hoptui.node import processes
from hoptui.node.addresses import Addresses
from hoptui.protocol.messages import JobReading, JobReport
from hoptui.sdk import daemon_link
from hoptui.sdk.job_exchange import JobExchange
from hoptui.sdk.rank_store import RankStore, TorchStore

RANKS = 2
READY_EXCHANGES, READY_EVERY = 3, 20
"""Both ranks have exchanged so often before the first block. They look after so many iterations."""
CALIBRATION = 100
"""Iterations that say how many a block has."""
SIZE, BATCH = 192, 64
WINDOW = Window(before_ns=2_000_000, after_ns=20_000_000, longest_s=0.02)
"""The iterations around an exchange: it takes some milliseconds on a busy machine."""
ASIDE_NS = 500_000_000
SEED = 11
RATE_PERCENT = 0.5
"""A wider interval shows nothing."""
TARGET_PERCENT = 0.1
LIMIT_S = 560.0
DAEMON_S = 20.0


class Block(NamedTuple):
    """Some iterations with or without the exchange. Seconds of CPU are those of the two threads."""

    on: bool
    began_ns: int
    ended_ns: int
    iterations: int
    exchange_s: float
    link_s: float


class Account(NamedTuple):
    """What a rank has measured. Times are monotonic nanoseconds. `reports` are those with an exchange and
    without."""

    ends: list[int]
    blocks: list[Block]
    reports: dict[str, list[int]]
    requests: int
    sent_bytes: int
    received_bytes: int


class CountedStore:
    """A store of torch, and the requests that go over its connections, with their bytes."""

    def __init__(self, store: Any, counts: CountedStore | None = None) -> None:
        self._store = store
        self._counts = counts or self
        self.requests = self.sent_bytes = self.received_bytes = 0

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        self._count([key], sent=len(value))
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """Return a value that is there."""
        value: bytes = self._store.get(key)
        self._count([key], received=len(value))
        return value

    def check(self, keys: list[str]) -> bool:
        """Return whether keys are there."""
        self._count(keys, received=1)
        return bool(self._store.check(keys))

    def add(self, key: str, amount: int) -> int:
        """Add to a number."""
        self._count([key], sent=8, received=8)
        return int(self._store.add(key, amount))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return values that are there."""
        values: list[bytes] = self._store.multi_get(keys)
        self._count(keys, received=sum(map(len, values)))
        return values

    def clone(self) -> CountedStore:
        """Return another connection that counts for this one."""
        return CountedStore(self._store.clone(), self._counts)

    def set_timeout(self, timeout: Any) -> None:
        """Limit the wait for a key."""
        self._store.set_timeout(timeout)

    def _count(self, keys: Sequence[str], sent: int = 0, received: int = 0) -> None:
        counts = self._counts
        counts.requests += 1
        counts.sent_bytes += sum(map(len, keys)) + sent
        counts.received_bytes += received


class SwitchedExchange(JobExchange):
    """An exchange that can be switched off. Then each report is answered at once, with nothing read."""

    on = True
    started: SwitchedExchange | None = None

    def __init__(
        self,
        store: RankStore,
        prefix: str,
        wake: Callable[[], object],
        failed: Callable[[Exception], object],
    ) -> None:
        assert isinstance(store, TorchStore)
        self.counted = CountedStore(store._store)
        self.reports: dict[str, list[int]] = {"on": [], "off": []}
        super().__init__(TorchStore(self.counted, store.rank, store.world), prefix, wake, failed)
        SwitchedExchange.started = self

    def report(self, report: JobReport) -> None:
        """See JobExchange."""
        on = SwitchedExchange.on
        self.reports["on" if on else "off"].append(time.monotonic_ns())
        if on:
            super().report(report)
        else:
            self._readings.append(JobReading(number=report.number))


def train(folder: Path, pairs: int, seconds: float) -> None:
    """Be one rank: train in blocks, and write the account of it."""
    rank = int(os.environ["RANK"])
    where = _places(folder)[rank]
    os.environ |= {"HOPTUI_DIR": str(where.directory), "HOPTUI_STATE_DIR": str(where.state)}
    vars(daemon_link)["JobExchange"] = SwitchedExchange
    import torch
    import torch.distributed as dist

    import hoptui

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [torch.nn.Linear(SIZE, SIZE) for _ in range(4)]
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    x = torch.randn(BATCH, SIZE)
    ends: list[int] = []

    def iterations() -> Iterator[None]:
        for _ in run.iterations():
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            ends.append(time.monotonic_ns())
            yield

    run = hoptui.connect("job-store-cost", ranks="auto")
    steps = iterations()

    def agree(value: float) -> float:
        """Return the least of the values of the ranks."""
        number = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(number, dist.ReduceOp.MIN)
        return float(number)

    def block(count: int, *, on: bool) -> Block:
        assert exchange is not None
        SwitchedExchange.on = on
        threads = [_thread("hoptui-job"), _thread("hoptui-link")]
        before, began = [_cpu_s(thread) for thread in threads], time.monotonic_ns()
        for _ in range(count):
            next(steps)
        ended = time.monotonic_ns()
        exchange_s, link_s = (
            _cpu_s(thread) - earlier for thread, earlier in zip(threads, before, strict=True)
        )
        return Block(on, began, ended, count, exchange_s, link_s)

    def ready() -> bool:
        started = SwitchedExchange.started
        return started is not None and len(started.reports["on"]) >= READY_EXCHANGES

    while not agree(ready()):
        for _ in range(READY_EVERY):
            next(steps)
    exchange = SwitchedExchange.started
    assert exchange is not None
    first = block(CALIBRATION, on=True)
    count = int(agree(CALIBRATION * seconds * 1e9 / (first.ended_ns - first.began_ns)))
    ends.clear()
    for times in exchange.reports.values():
        times.clear()
    counted = exchange.counted
    counted.requests = counted.sent_bytes = counted.received_bytes = 0
    order = random.Random(SEED)
    blocks = [block(count, on=on) for _ in range(pairs) for on in order.sample((True, False), 2)]
    account = Account(
        ends,
        blocks,
        {kind: list(times) for kind, times in exchange.reports.items()},
        counted.requests,
        counted.sent_bytes,
        counted.received_bytes,
    )
    (folder / f"{rank}.json").write_bytes(msgspec.json.encode(account))
    dist.barrier()
    run.close()
    dist.destroy_process_group()


def _thread(name: str) -> int:
    """Return the identifier of a thread of this process."""
    found = next(thread.ident for thread in threading.enumerate() if thread.name == name)
    assert found is not None
    return found


def _cpu_s(thread: int) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def _places(folder: Path) -> list[Addresses]:
    """Return where the daemon of each rank is."""
    return [Addresses(folder / f"run{rank}", folder / f"state{rank}") for rank in range(RANKS)]


def figures(accounts: Sequence[Account]) -> dict[str, Any]:
    """Return what the accounts of the ranks come to."""
    blocks = accounts[0].blocks
    changes = []
    for one, other in zip(blocks[::2], blocks[1::2], strict=True):
        on, off = (one, other) if one.on else (other, one)
        changes.append(100 * (_rate(on) / _rate(off) - 1))
    least, most = interval(changes)
    quartiles = statistics.quantiles(changes, n=4)
    around = {kind: _around(accounts, kind) for kind in ("on", "off")}
    nodes = ("head", "other node")
    return {
        "iteration_ms": round(1e3 / statistics.median(map(_rate, blocks)), 2),
        "pairs": len(changes),
        "change of the rate, percent": round(statistics.median(changes), 3),
        "interval": [round(least, 3), round(most, 3)],
        "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
        "around an exchange": around["on"],
        "around a report without exchange": around["off"],
        "own_account": {name: _own(account) for name, account in zip(nodes, accounts, strict=True)},
    }


def _rate(block: Block) -> float:
    """Return iterations a second."""
    return block.iterations / (block.ended_ns - block.began_ns) * 1e9


def _around(accounts: Sequence[Account], kind: str) -> dict[str, Any]:
    """Return by how much longer the iterations around the reports of both ranks take, and what that is as a
    share of the time of such blocks."""
    ends = accounts[0].ends
    stamps = [t for account in accounts for t in account.reports[kind] if ends[0] < t < ends[-1]]
    both = ((excess_us(ends, t, WINDOW), excess_us(ends, t + ASIDE_NS, WINDOW)) for t in stamps)
    found = [near - far for near, far in both if near is not None and far is not None]
    seconds = sum(_seconds(block) for block in accounts[0].blocks if block.on is (kind == "on"))
    percent = 1e-4 * len(stamps) / seconds if seconds else 0.0  # of a microsecond for each report
    return cost_of(found, percent) | {"reports": len(found)}


def _own(account: Account) -> dict[str, Any]:
    """Return what the threads of a rank took while there were exchanges, and what the store was asked."""
    on = [block for block in account.blocks if block.on]
    off = [block for block in account.blocks if not block.on]
    seconds = sum(map(_seconds, on))
    shares = [100 * block.exchange_s / _seconds(block) for block in on]
    return {
        "thread, percent of a core": round(100 * sum(block.exchange_s for block in on) / seconds, 4),
        "thread, percent, median and most of the blocks": [
            round(statistics.median(shares), 4),
            round(max(shares), 4),
        ],
        "link thread with / without, percent of a core": [
            round(100 * sum(block.link_s for block in part) / sum(map(_seconds, part)), 4)
            for part in (on, off)
        ],
        "exchanges_per_s": round(len(account.reports["on"]) / seconds, 2),
        "requests_per_s": round(account.requests / seconds, 1),
        "sent_bytes_per_s": round(account.sent_bytes / seconds),
        "received_bytes_per_s": round(account.received_bytes / seconds),
    }


def _seconds(block: Block) -> float:
    return (block.ended_ns - block.began_ns) / 1e9


def measure(pairs: int, seconds: float) -> list[Account]:
    """Run both ranks, and return their accounts."""
    with tempfile.TemporaryDirectory(prefix="hoptui-jsc-") as folder, ExitStack() as stack:
        base = Path(folder)
        for where in _places(base):
            stack.callback(_stop_daemon, where)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        command += ["-m", "benchmarks.job_store_cost", "--rank", folder]
        command += ["--pairs", str(pairs), "--seconds", str(seconds)]
        environment = {name: value for name, value in os.environ.items() if name != "HOPTUI"}
        environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        agent = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        stack.callback(agent.wait)
        stack.callback(agent.terminate)  # torchrun ends its ranks
        if agent.wait(LIMIT_S):
            raise RuntimeError(f"a rank failed: {agent.returncode}")
        return [
            msgspec.json.decode((base / f"{rank}.json").read_bytes(), type=Account) for rank in range(RANKS)
        ]


def _stop_daemon(where: Addresses) -> None:
    """End a daemon, and wait until it writes no more into the folder that is removed."""
    pid = processes.lock_holder(where)
    if pid and pid > 0:
        with suppress(psutil.NoSuchProcess):
            daemon = psutil.Process(pid)
            daemon.terminate()
            daemon.wait(DAEMON_S)


def main() -> int:
    """Measure, and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each block")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank is not None:
        train(chosen.rank, chosen.pairs, chosen.seconds)
        return 0
    found = tell("two nodes", figures(measure(chosen.pairs, chosen.seconds)))
    shares = [own["thread, percent of a core"] for own in found["own_account"].values()]
    low, high = found["interval"]
    met = {
        f"own account: at most {TARGET_PERCENT} % of a core": max(shares) <= TARGET_PERCENT,
        f"change of the rate: its interval is within ± {RATE_PERCENT} %": -RATE_PERCENT
        <= low
        <= high
        <= RATE_PERCENT,
    }
    result = report("job_store_cost", {"figures": found, "met": met})
    print(json.dumps(result["met"]), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
