"""A training loop that changes what holds it back: `python -m benchmarks.onset_loop NAME DEVICE ITERATION_S
DWELL_S CAUSE…`.

It trains for about `DWELL_S` with each cause, and prints each cause and the monotonic time of its first
iteration. A cause takes `SHARE` of an iteration, training the rest.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import hoptui
from benchmarks.labelled.models import mlp, synchronize, trainer

SHARE = 0.8
WIDTH, LARGE = 256, 4096
READ_S = 0.002
"""The time of an item that is read slowly."""


class Items(Dataset[torch.Tensor]):
    """Items that take as long as `left_s` says, in steps of `READ_S`."""

    def __init__(self) -> None:
        self.left_s = 0.0

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.monotonic() + self.left_s
        while time.monotonic() < until:
            time.sleep(READ_S)
        return torch.full((WIDTH,), float(index % 7))


class Loop:
    """The parts of an iteration. Each takes the given seconds."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._items = Items()
        self._batches: Iterator[torch.Tensor] = iter(DataLoader(self._items, batch_size=1))
        self._model = mlp(device, 1024 if device == "cuda" else WIDTH)
        self._step = trainer(self._model)
        self._x = torch.randn(64, 1024 if device == "cuda" else WIDTH, device=device)
        self._large = torch.randn(LARGE, LARGE, device=device, dtype=torch.bfloat16) if self._gpu else self._x
        self._small = torch.randn(64, device=device)
        self._path = Path(tempfile.mkdtemp()) / "last.pt"

    @property
    def _gpu(self) -> bool:
        return self._device == "cuda"

    def good(self, seconds: float) -> None:
        """Train. On a GPU, multiply matrices that fill it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._gpu:
                for _ in range(8):
                    self._large = (self._large @ self._large).clamp(-1, 1)
                synchronize(self._device)
            else:
                self._step(self._x)

    def input(self, seconds: float) -> None:
        """Wait for a DataLoader without workers."""
        self._items.left_s = seconds
        next(self._batches).to(self._device)

    def python(self, seconds: float) -> None:
        """Run plain Python."""
        until, total = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            for i in range(1000):
                total += i ^ 3

    def item(self, seconds: float) -> None:
        """Run small kernels, and read the result of each."""
        until, x = time.monotonic() + seconds, self._small
        while time.monotonic() < until:
            x = x * 0.5
            if x.sum().item() == 0.0:
                x = torch.ones_like(x)

    def save(self, seconds: float) -> None:
        """Save checkpoints."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            torch.save(self._model.state_dict(), self._path)


CAUSES: Mapping[str, Callable[[Loop, float], None]] = {
    "good": Loop.good,
    "input": Loop.input,
    "python": Loop.python,
    "item": Loop.item,
    "save": Loop.save,
}


def main() -> None:
    """Train with one cause after the other."""
    name, device, iteration_s, dwell_s, *causes = sys.argv[1:]
    torch.set_num_threads(1)
    loop, each_s = Loop(device), float(iteration_s)
    run = hoptui.connect(name)
    iterations = run.iterations()
    for cause in causes:
        end = 0.0
        for _ in iterations:
            if not end:
                began = time.monotonic()
                end = began + float(dwell_s) + random.uniform(0.0, 2.0)
                print(cause, began, flush=True)
            iteration_end = time.monotonic() + each_s
            CAUSES[cause](loop, SHARE * each_s)
            loop.good(iteration_end - time.monotonic())
            run.log(samples=64)
            if time.monotonic() > end or run.stopping:
                break
    print("end", time.monotonic(), flush=True)
    run.close()


if __name__ == "__main__":
    main()
