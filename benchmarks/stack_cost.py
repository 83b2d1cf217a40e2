"""What sampling the stack costs the training thread: by its own account, and on against off in turns.

The loops: small modules of torch, which launch kernels on a GPU if there is one; pure Python; the same beside
a thread that prepares batches; and beside two threads that compute in Python. Each pair is one block with the
sampler and one without, in random order. Run it alone, on one core:
taskset -c 1 python -m benchmarks.stack_cost --only pure modules

The rate drifts by more than a sample costs. So the cost of a sample is also measured by itself: by how much
longer the iterations around a sample take than those at a time that no sample is near.
"""

from __future__ import annotations

import argparse
import bisect
import math
import queue
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarks.measure import report, tell
from hoptui.sdk.stack_sampler import BUDGET, EVERY_S, StackSampler

TAKE_S = 1.0
"""How often the link takes the samples."""
SETTLE_S = 0.13
"""The sampler notices that it is on or off within one of its periods."""
ACCOUNT_S = 12.0
"""The time of which the sampler tells its cost, on all the time."""
CONFIDENCE = 1.96
APART_NS, CLEAR_NS = 5_000_000, 40_000_000
"""Between the samples that are counted, and between those around the time without one, at least."""
USUAL = 40
"""So many iterations on each side give the usual time of one."""
CLIPPED = 0.02
"""This share of the differences on each end counts as the one at the limit: other processes cause them."""
RESAMPLED = 1000


class Window(NamedTuple):
    """The iterations around an event: from so long before it until so long after it.

    With iterations longer than `longest_s`, too few lie between two events.
    """

    before_ns: int = 1_000_000
    after_ns: int = 3_000_000
    longest_s: float = 0.01


class Mean(NamedTuple):
    """A mean, and its interval of 95 %."""

    mean: float
    least: float
    most: float


WINDOW = Window()


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

    `costs` are the shares of the time that it tells, `stamps` the times of its samples in nanoseconds.
    """

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.stamps: list[int] = []
        self._thread, self._native = threading.get_ident(), threading.get_native_id()
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
            self.stamps.append(time.perf_counter_ns())
            return self._thread
        if self._rested:
            self._on.wait()
            return self._thread
        self._rested = True
        return 0

    def _take(self) -> None:
        while not self._over.wait(TAKE_S):
            self._sampler.follow(self._native)
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


def excess_us(ends: Sequence[int], stamp: int, window: Window = WINDOW) -> float | None:
    """Return how much longer the iterations around a time took than usual, by the times at which iterations
    ended. None at the edges, and where iterations are too long."""
    first = bisect.bisect(ends, stamp - window.before_ns)
    last = bisect.bisect(ends, stamp + window.after_ns)
    if first <= USUAL or last + USUAL >= len(ends):
        return None
    took = [b - a for a, b in pairwise(ends[first - 1 - USUAL : last + 1 + USUAL])]
    usual = statistics.median(took[:USUAL] + took[-USUAL:])
    if usual > window.longest_s * 1e9:
        return None
    around = took[USUAL:-USUAL]
    return (sum(around) - len(around) * usual) / 1e3


def of_a_sample(ends: Sequence[int], stamps: Sequence[int]) -> dict[str, Any]:
    """Return what a sample costs the loop, in microseconds and as a share of the time, with its interval."""
    both = ((excess_us(ends, stamp), excess_us(ends, clear)) for stamp, clear in beside(stamps))
    found = [near - far for near, far in both if near is not None and far is not None]
    percent = 100 * 1e3 * len(stamps) / (stamps[-1] - stamps[0])  # of a microsecond for each sample
    return cost_of(found, percent) | {"samples": len(found)}


def beside(stamps: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield samples that are apart from others, each with a time near it that no sample is near."""
    for before, stamp, after in zip(stamps, stamps[1:], stamps[2:], strict=False):
        gaps = stamp - before, after - stamp
        if min(gaps) >= APART_NS and max(gaps) >= CLEAR_NS:
            yield stamp, stamp + (gaps[1] // 2 if gaps[1] >= gaps[0] else -gaps[0] // 2)


def cost_of(differences: Sequence[float], percent: float) -> dict[str, Any]:
    """Return the mean of differences in microseconds, with its interval, and its share of the time.

    Nothing for too few. `percent` is the share that a microsecond is.
    """
    mean = mean_of(differences)
    if mean is None:
        return {}
    return {
        "microseconds": round(mean.mean, 1),
        "interval": [round(mean.least, 1), round(mean.most, 1)],
        "percent": round(mean.mean * percent, 3),
        "percent, interval": [round(mean.least * percent, 3), round(mean.most * percent, 3)],
    }


def mean_of(differences: Sequence[float]) -> Mean | None:
    """Return the mean of differences that other processes disturb, None for too few."""
    if len(differences) < USUAL:
        return None
    ordered, edge = sorted(differences), int(CLIPPED * len(differences))
    clipped = [min(max(value, ordered[edge]), ordered[-1 - edge]) for value in ordered]
    means = sorted(statistics.fmean(random.choices(clipped, k=len(clipped))) for _ in range(RESAMPLED))
    return Mean(statistics.fmean(clipped), means[int(0.025 * RESAMPLED)], means[int(0.975 * RESAMPLED)])


def measure_samples(step: Callable[[], object], seconds: float) -> dict[str, Any]:
    """Return what a sample costs by the iterations around it."""
    ends: list[int] = []
    with Switch() as switch:
        switch.turn(step, on=True)
        rate(step, 2 * TAKE_S)  # it has followed, and the first places have names
        switch.stamps.clear()
        until = time.perf_counter_ns() + int(seconds * 1e9)
        while not ends or ends[-1] < until:
            step()
            ends.append(time.perf_counter_ns())
        return of_a_sample(ends, switch.stamps.copy())


def measure(step: Callable[[], object], pairs: int, seconds: float, until: float) -> dict[str, Any]:
    """Return the cost by the sampler's account, and the change of the rate in percent with its interval.

    The speed of a machine drifts within seconds. So the blocks are short, and there are many. After `until`
    (monotonic s) no pair begins.
    """
    changes: list[float] = []
    with Switch() as switch:
        switch.turn(step, on=True)
        rate(step, ACCOUNT_S)
        costs = switch.costs[1:]  # the first names all places, once
        for _ in range(pairs):
            if time.monotonic() > until:
                break
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
        "pairs": len(changes),
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stack_cost")
    parser.add_argument("--pairs", type=int, default=800, help="0: none")
    parser.add_argument("--samples-s", type=float, default=60.0, help="seconds to measure single samples for")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each block")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of loops")
    parser.add_argument("--most-s", type=float, default=math.inf, help="of all: fewer pairs then")
    options = parser.parse_args()
    until = time.monotonic() + options.most_s
    loops = {
        "small modules of torch": torch_modules,
        "pure Python": pure_python,
        "beside a loader": beside_a_loader,
        "beside busy threads": beside_busy_threads,
    }
    figures = {}
    for name, make in loops.items():
        if options.only and not any(part in name for part in options.only):
            continue
        step = make()
        found = {"a sample": measure_samples(step, options.samples_s)}
        if options.pairs:
            found |= measure(step, options.pairs, options.seconds, until)
        figures[name] = tell(name, found)
    report(
        "stack_cost",
        {"device": device(), "every_s": EVERY_S, "budget_percent": 100 * BUDGET, "figures": figures},
    )


if __name__ == "__main__":
    main()
