"""Loops under DistributedDataParallel with a late rank, for `python -m benchmarks.stragglers --ddp`.

    python -m benchmarks.straggler_loops LOOP CAUSE RANK WORLD LATE STORE

Thresholds of `hoptui.domain.stragglers` may be made with the loops of the development lot alone. Those of the
test lot were written before any of them was run. The ranks wait for each other inside of torch, in C++. Those
of the lot nccl have a GPU for each rank, and their late rank takes 20 % longer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import hoptui

STEP_S, LATE_S = 0.1, 0.03
"""What an iteration takes, and what a late rank takes longer."""
NCCL_LATE_S = 0.02
"""What a late rank takes longer in loops of the lot nccl."""
CAUSES = ("sleep", "input", "python", "core", "backward")
"""It sleeps; its data come late; it runs Python; all that it does in Python takes longer; its gradients take
longer in C++."""
NCCL_CAUSES = ("sleep", "input", "python", "core", "kernels")
"""The last: its GPU has more to compute."""
LAYERS = 6
COLUMNS, TRIED_ROWS = 1000, 2000
"""The size of a gradient that takes time."""


@dataclass(frozen=True)
class Late:
    """What is slow on this rank: "" if nothing is."""

    cause: str
    late_s: float = LATE_S

    def pause(self) -> None:
        """Sleep, on a rank that does."""
        if self.cause == "sleep":
            time.sleep(self.late_s)  # late: sleep

    def run_python(self) -> None:
        """Run Python, on a rank that does."""
        if self.cause == "python":
            until = time.monotonic() + self.late_s
            while time.monotonic() < until:  # late: python
                sum(range(100))  # late: python

    def on_gpu(self) -> float:
        """Return the seconds that the GPU of this rank takes longer."""
        return self.late_s if self.cause == "kernels" else 0.0

    def spread(self, parts: int) -> None:
        """Take longer at one of so many places, on a rank with a slow core."""
        time.sleep(self.late_s / parts if self.cause == "core" else 0.0)

    def slow_gradient(self, x: torch.Tensor, parts: int) -> torch.Tensor:
        """Return a tensor whose gradient takes longer, at one of so many places, on a rank that does so."""
        if self.cause != "backward":
            return x
        late: torch.Tensor = x + _late_zero(max(1, int(self.late_s / parts / _row_s())))
        return late


def _late_zero(rows: int) -> Any:
    """Return a zero. It comes from views alone, and its gradient from the sum of so many rows."""
    return torch.zeros(COLUMNS, requires_grad=True).expand(rows, COLUMNS)[0, 0]


@lru_cache(maxsize=1)
def _row_s() -> float:
    """Return the seconds that a row takes in the backward pass."""
    zero = _late_zero(TRIED_ROWS)
    zero.backward()
    zero = _late_zero(TRIED_ROWS)
    began = time.process_time()
    zero.backward()
    return (time.process_time() - began) / TRIED_ROWS


class Rows(Dataset[torch.Tensor]):
    """Rows that a late rank reads slowly."""

    def __init__(self, late: Late, shape: tuple[int, ...]) -> None:
        self._late, self._shape = late, shape

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)  # late: input
        if self._late.cause == "input":
            time.sleep(self._late.late_s)  # late: input
        return torch.full(self._shape, float(index % 7) / 7)


class Slowed(nn.Module):
    """A layer at whose place a slow core takes longer."""

    def __init__(self, layer: nn.Module, late: Late) -> None:
        super().__init__()
        self.layer, self._late = layer, late

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._late.spread(LAYERS)
        found: torch.Tensor = self.layer(x)
        return self._late.slow_gradient(found, LAYERS)


def stacked(late: Late, *layers: nn.Module) -> nn.Module:
    """Return the layers in sequence."""
    return nn.Sequential(*(Slowed(layer, late) for layer in layers))


def plain(run: hoptui.Run, late: Late) -> None:
    """One forward and one backward pass in each iteration."""
    model = DistributedDataParallel(stacked(late, *(nn.Linear(32, 32) for _ in range(LAYERS))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(Rows(late, (32,)), batch_size=1))
    for _ in run.iterations():
        time.sleep(STEP_S / 2)
        batch = next(batches)
        late.pause()
        late.run_python()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()  # late: backward
        optimizer.step()


def accumulation(run: hoptui.Run, late: Late) -> None:
    """Four micro-batches in each iteration. Only the last backward pass waits for the other ranks."""
    model = DistributedDataParallel(stacked(late, *(nn.Linear(32, 32) for _ in range(LAYERS))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(Rows(late, (32,)), batch_size=1))
    for _ in run.iterations():
        batch = next(batches)
        for micro in range(4):
            with nullcontext() if micro == 3 else model.no_sync():
                time.sleep(STEP_S / 8)
                (model(batch) if micro == 3 else model.module(batch)).mean().backward()  # late: backward
        late.pause()
        late.run_python()
        optimizer.step()
        optimizer.zero_grad()


def buffers(run: hoptui.Run, late: Late) -> None:
    """Statistics of batches are sent from rank 0 before each forward pass."""
    layers = [nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)) for _ in range(LAYERS)]
    model = DistributedDataParallel(stacked(late, *layers))
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in DataLoader(Rows(late, (3, 8, 8)), batch_size=1):
        late.pause()
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()  # late: backward
        optimizer.step()
        late.run_python()
        time.sleep(STEP_S / 2)
        if not run.boundary():
            break


def shared_loss(run: hoptui.Run, late: Late) -> None:
    """The loss is averaged over the ranks in each iteration, after the step."""
    layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(LAYERS)]
    model = DistributedDataParallel(stacked(late, *layers))
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(DataLoader(Rows(late, (4, 16)), batch_size=2))
    for _ in run.iterations():
        x = next(batches)
        loss = model(x).square().mean()
        loss.backward()  # late: backward
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        run.log(loss=float(total))
        late.run_python()
        late.pause()
        time.sleep(STEP_S / 2)


def two_models(run: hoptui.Run, late: Late) -> None:
    """Two models take turns, each with a backward pass at its own line."""
    first = DistributedDataParallel(stacked(late, *(nn.Linear(16, 16) for _ in range(LAYERS // 2))))
    second = DistributedDataParallel(stacked(late, *(nn.Linear(16, 16) for _ in range(LAYERS // 2))))
    steps = [torch.optim.Adam(each.parameters()) for each in (first, second)]
    data = iter(DataLoader(Rows(late, (16,)), batch_size=1))
    while run.boundary():
        noise = next(data)
        time.sleep(STEP_S / 4)
        second(first(noise).detach()).mean().backward()  # late: backward
        steps[1].step()
        steps[1].zero_grad()
        late.pause()
        late.run_python()
        time.sleep(STEP_S / 4)
        first(noise).square().mean().backward()  # late: backward
        steps[0].step()
        steps[0].zero_grad()


def logged(run: hoptui.Run, late: Late) -> None:
    """Each iteration reads its loss from the GPU."""
    kernels, gpu = Kernels(), torch.device("cuda", torch.cuda.current_device())
    model = DistributedDataParallel(stacked(late, *(nn.Linear(1024, 1024) for _ in range(LAYERS))).to(gpu))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(Rows(late, (1024,)), batch_size=1))
    for _ in run.iterations():
        x = next(batches).to(gpu)
        kernels.compute(STEP_S / 2 + late.on_gpu())
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        late.pause()
        late.run_python()
        run.log(loss=loss.item())


def scaled(run: hoptui.Run, late: Late) -> None:
    """In half precision: the scaler of gradients looks at them before each step."""
    kernels, gpu = Kernels(), torch.device("cuda", torch.cuda.current_device())
    layers = [nn.TransformerEncoderLayer(256, 4, 512, batch_first=True) for _ in range(LAYERS)]
    model = DistributedDataParallel(stacked(late, *layers).to(gpu))
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x in DataLoader(Rows(late, (64, 256)), batch_size=1):
        late.pause()
        late.run_python()
        with torch.autocast("cuda", torch.float16):
            loss = model(x.to(gpu)).square().mean()
        kernels.compute(STEP_S / 2 + late.on_gpu())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if not run.boundary():
            break


class Kernels:
    """Products of matrices that keep the current GPU busy for so many seconds."""

    def __init__(self) -> None:
        self._matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self._launch(20)
        torch.cuda.synchronize()
        began = time.monotonic()
        self._launch(100)
        torch.cuda.synchronize()
        self._each_s = (time.monotonic() - began) / 100

    def compute(self, seconds: float) -> None:
        """Launch them."""
        self._launch(round(seconds / self._each_s))

    def _launch(self, count: int) -> None:
        for _ in range(count):
            self._matrix @ self._matrix


DEVELOPMENT: Mapping[str, Callable[[hoptui.Run, Late], None]] = {"plain": plain, "accumulation": accumulation}
TEST: Mapping[str, Callable[[hoptui.Run, Late], None]] = {
    "buffers": buffers,
    "shared_loss": shared_loss,
    "two_models": two_models,
}
NCCL: Mapping[str, Callable[[hoptui.Run, Late], None]] = {"logged": logged, "scaled": scaled}
LOTS: Mapping[str, Mapping[str, Any]] = {"development": DEVELOPMENT, "test": TEST, "nccl": NCCL}


def main() -> None:
    """Train as one rank."""
    loop, cause, rank, world, late, store = sys.argv[1:]
    torch.set_num_threads(1)
    if loop in NCCL:
        torch.cuda.set_device(int(rank))
    dist.init_process_group(
        "nccl" if loop in NCCL else "gloo",
        init_method=f"file://{store}",
        rank=int(rank),
        world_size=int(world),
    )
    run = hoptui.connect("stragglers", ranks="auto")
    late_s = NCCL_LATE_S if loop in NCCL else LATE_S
    {**DEVELOPMENT, **TEST, **NCCL}[loop](run, Late(cause if rank == late else "", late_s))


if __name__ == "__main__":
    main()
