"""What sampling the stack costs the training thread: by its own account, and on against off in turns.

The loops: small modules of torch, which launch kernels on a GPU if there is one; pure Python; the same beside
a thread that prepares batches; and beside two threads that compute in Python. Each pair is one block with the
sampler and one without, in random order. Run it alone, on one core:
taskset -c 1 python -m benchmarks.stack_cost --only pure modules
"""

from __future__ import annotations

import argparse
import math
import queue
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.measure import report, tell
from hoptui.sdk.stack_sampler import BUDGET, EVERY_S, StackSampler

TAKE_S = 1.0
"""How often the link takes the samples."""
SETTLE_S = 0.13
"""The sampler notices that it is on or off within one of its periods."""
ACCOUNT_S = 12.0
"""The time of which the sampler tells its cost, on all the time."""
CONFIDENCE = 1.96


def pure_python() -> Callable[[], object]:
    """Return one iteration that does not leave the interpreter."""
    return lambda: sum(i * i for i in range(20_000))


def beside_a_loader() -> Callable[[], object]:
    """Return an iteration that takes a batch from a thread, as from a DataLoader that pins memory."""
    batches: queue.Queue[list[int]] = queue.Queue(2)

    def load() -> None:
        while True:
            batches.put([n * n for n in range(5_000)])

    threading.Thread(target=load, daemon=True).start()
    return lambda: sum(i * i for i in range(20_000)) + len(batches.get())


def beside_busy_threads() -> Callable[[], object]:
    """Return an iteration that competes for the interpreter with two threads, as of environments."""

    def simulate() -> None:
        while True:
            sum(i * i for i in range(1_000))

    for _ in range(2):
        threading.Thread(target=simulate, daemon=True).start()
    return lambda: sum(i * i for i in range(20_000))


def device() -> str:
    """Return the device of modules."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def torch_modules() -> Callable[[], object]:
    """Return one step of a small model, bound by its launches on a GPU."""
    import torch

    torch.set_num_threads(1)
    layers = [torch.nn.Linear(64, 64) for _ in range(8)]
    net = torch.nn.Sequential(*layers).to(device())
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(16, 64, device=device())

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return step


class Switch:
    """A sampler of this thread that can be switched off. Its samples are taken as the link takes them.

    `costs` are the shares of the time that it tells.
    """

    def __init__(self) -> None:
        self.costs: list[float] = []
        self._thread = threading.get_ident()
        self._on = threading.Event()
        self._rested = False
        self._over = threading.Event()
        self._link = threading.Thread(target=self._take, daemon=True)

    def __enter__(self) -> Switch:
        self._sampler = StackSampler(self._sampled, lambda: "", self._failed)
        self._sampler.start()
        self._link.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._on.set()
        self._sampler.stop()
        self._over.set()
        self._link.join()

    def turn(self, step: Callable[[], object], *, on: bool) -> None:
        """Switch, and run until the sampler has noticed."""
        self._rested = False
        (self._on.set if on else self._on.clear)()
        rate(step, SETTLE_S)

    def _sampled(self) -> int:
        """Return the thread to sample. Off: none at first, which restores the switch interval; then wait."""
        if self._on.is_set():
            return self._thread
        if self._rested:
            self._on.wait()
            return self._thread
        self._rested = True
        return 0

    def _take(self) -> None:
        while not self._over.wait(TAKE_S):
            if (samples := self._sampler.take()) is not None:
                self.costs.append(samples.cost)

    @staticmethod
    def _failed(error: Exception) -> None:
        raise error


def rate(step: Callable[[], object], seconds: float) -> float:
    """Return iterations a second."""
    done, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        step()
        done += 1
    return done / passed


def interval(changes: Sequence[float]) -> tuple[float, float]:
    """Return the interval of 95 % of the median, from the order of the values. It assumes no distribution."""
    ordered = sorted(changes)
    half = CONFIDENCE * len(ordered) ** 0.5 / 2
    middle = (len(ordered) - 1) / 2
    return ordered[max(0, math.floor(middle - half))], ordered[
        min(len(ordered) - 1, math.ceil(middle + half))
    ]


def measure(step: Callable[[], object], pairs: int, seconds: float) -> dict[str, Any]:
    """Return the cost by the sampler's account, and the change of the rate in percent with its interval.

    The speed of a machine drifts within seconds. So the blocks are short, and there are many.
    """
    changes: list[float] = []
    with Switch() as switch:
        switch.turn(step, on=True)
        rate(step, ACCOUNT_S)
        costs = switch.costs[1:]  # the first names all places, once
        for _ in range(pairs):
            found: dict[bool, float] = {}
            for on in random.sample((True, False), 2):
                switch.turn(step, on=on)
                found[on] = rate(step, seconds)
            changes.append(100 * (found[True] / found[False] - 1))
    least, most = interval(changes)
    return {
        "own account, percent": round(100 * statistics.median(costs), 4),
        "own account, most": round(100 * max(costs), 4),
        "change of the rate, percent": round(statistics.median(changes), 3),
        "interval": [round(least, 3), round(most, 3)],
        "pairs": pairs,
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stack_cost")
    parser.add_argument("--pairs", type=int, default=800)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each block")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of loops")
    options = parser.parse_args()
    loops = {
        "small modules of torch": torch_modules,
        "pure Python": pure_python,
        "beside a loader": beside_a_loader,
        "beside busy threads": beside_busy_threads,
    }
    figures = {
        name: tell(name, measure(make(), options.pairs, options.seconds))
        for name, make in loops.items()
        if not options.only or any(part in name for part in options.only)
    }
    report(
        "stack_cost",
        {"device": device(), "every_s": EVERY_S, "budget_percent": 100 * BUDGET, "figures": figures},
    )


if __name__ == "__main__":
    main()
