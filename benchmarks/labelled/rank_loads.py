"""Loads of two ranks on the CPU, under gloo."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hoptui
from benchmarks.labelled.catalogue import labelled
from benchmarks.labelled.models import mlp, trainer

WIDTH = 256


@labelled(cpu="communication-bound", ranks=2)
def exchanges_much(run: hoptui.Run, device: str) -> None:
    gradient = torch.randn(1 << 22)
    while not run.stopping:
        for _ in range(3):
            dist.all_reduce(gradient)  # here
        gradient /= 8
        run.log(samples=1)


@labelled(cpu="straggler", ranks=2)
def one_rank_sleeps(run: hoptui.Run, device: str) -> None:
    step, x = trainer(mlp(device)), torch.randn(64, WIDTH)
    while not run.stopping:
        loss = step(x)
        if dist.get_rank() == 1:
            time.sleep(0.03)  # here
        dist.all_reduce(loss)
        run.log(loss=loss, samples=64)


@labelled(cpu="straggler", ranks=2)
def one_rank_reads_slowly(run: hoptui.Run, device: str) -> None:
    step = trainer(mlp(device))

    def read_batch() -> torch.Tensor:
        rows = [[i / 7 for i in range(WIDTH)] for _ in range(512 if dist.get_rank() == 1 else 16)]  # here
        return torch.tensor(rows[:16])

    while not run.stopping:
        loss = step(read_batch())
        dist.all_reduce(loss)
        run.log(loss=loss, samples=64)


@labelled(cpu="healthy", ranks=2)
def even_ranks(run: hoptui.Run, device: str) -> None:
    torch.set_num_threads(1)
    model = DistributedDataParallel(mlp(device, 512, 3))
    step, x = trainer(model), torch.randn(256, 512)
    while not run.stopping:
        run.log(loss=step(x), samples=256)
