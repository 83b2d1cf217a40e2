"""What sampling the stack costs the training thread: by its own account, and on against off in turns.

The loops: small modules of torch, which launch kernels on a GPU if there is one; pure Python; the same beside
a thread that prepares batches; and beside two threads that compute in Python. Each pair is one block with the
sampler and one without, in random order. python -m benchmarks.stack_cost --pairs 40
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.measure import report, tell
from hoptui.sdk.stack_sampler import BUDGET, EVERY_S, StackSampler

TAKE_S = 1.0
"""How often the link takes the samples."""
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


@contextlib.contextmanager
def sampled(costs: list[float]) -> Iterator[None]:
    """Sample this thread, and take the samples as the link does. Adds the cost that the sampler tells.

    The first samples are left out: their places are new, and to name them may cost more, once.
    """
    thread, over = threading.get_ident(), threading.Event()

    def failed(error: Exception) -> None:
        raise error

    sampler = StackSampler(lambda: thread, failed)

    def take() -> None:
        first = True
        while not over.wait(TAKE_S):
            if (samples := sampler.take()) is not None and not first:
                costs.append(samples.cost)
            first = False

    link = threading.Thread(target=take, daemon=True)
    sampler.start()
    link.start()
    try:
        yield
    finally:
        sampler.stop()
        over.set()
        link.join()


def rate(step: Callable[[], object], seconds: float) -> float:
    """Return iterations a second."""
    done, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        step()
        done += 1
    return done / passed


def measure(step: Callable[[], object], pairs: int, seconds: float) -> dict[str, Any]:
    """Return the cost by the sampler's account, and the change of the rate in percent with its interval."""
    for _ in range(50):
        step()
    changes: list[float] = []
    costs: list[float] = []
    for _ in range(pairs):
        found: dict[bool, float] = {}
        for on in random.sample((True, False), 2):
            with sampled(costs) if on else contextlib.nullcontext():
                found[on] = rate(step, seconds)
        changes.append(100 * (found[True] / found[False] - 1))
    half = CONFIDENCE * statistics.stdev(changes) / len(changes) ** 0.5
    return {
        "own account, percent": round(100 * statistics.median(costs), 4),
        "own account, most": round(100 * max(costs), 4),
        "change of the rate, percent": round(statistics.mean(changes), 3),
        "interval": [round(statistics.mean(changes) - half, 3), round(statistics.mean(changes) + half, 3)],
        "pairs": pairs,
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stack_cost")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each block")
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
