"""A hand-written loop on several ranks, as docs/frameworks/own_loop.md shows it, for the proofs of its knobs.

It trains until the knob `last_step`. Each rank writes what it has at the end. In double precision rounding
of sums in another order is far below what a lost or repeated sample would make.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import hoptui

SAMPLES, BATCH, CLIP = 256, 16, 1.0
TRACED = ("lr", "weight_decay", "beta1", "beta2", "clip", "dropout", "micro_batch")


class Samples(Dataset[torch.Tensor]):
    """The numbers of the samples: the loop makes inputs and targets from them."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def batches(rank: int, world: int) -> tuple[DataLoader[torch.Tensor], DistributedSampler[torch.Tensor]]:
    """The loader of a rank, and its sampler."""
    data = Samples()
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(data, world, rank, seed=3, drop_last=True)
    return DataLoader(data, batch_size=BATCH, sampler=sampler, drop_last=True), sampler


def problem(dropout: float) -> tuple[torch.Tensor, torch.Tensor, nn.Sequential]:
    """Inputs and targets by the number of the sample, and the model as it begins."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    inputs, targets = torch.randn(SAMPLES, 8), torch.randn(SAMPLES, 4)
    return inputs, targets, nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 4))


def optimization(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """The optimizer and its schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 1000))


def unchanged(seen: list[list[int]], steps: int) -> list[float]:
    """The weights after so many steps without a change, in one process, from the samples of each rank."""
    before = torch.get_default_dtype()
    try:
        with torch.random.fork_rng():
            inputs, targets, model = problem(0.0)
    finally:
        torch.set_default_dtype(before)
    optimizer, scheduler = optimization(model)
    for step in range(steps):
        ids = [number for rank in seen for number in rank[step * BATCH : (step + 1) * BATCH]]
        (model(inputs[ids]) - targets[ids]).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("ddp", "fsdp2"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--last-step", type=int, default=10**9)
    parser.add_argument("--micro-batch", type=int, default=BATCH)
    parser.add_argument("--clip", type=float, default=CLIP)
    parser.add_argument("--dropout", type=float, default=0.0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    loader, sampler = batches(rank, world)

    model: Any
    inputs, targets, model = problem(args.dropout)
    drop = model[2]
    if args.mode == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (world,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer, scheduler = optimization(model)
    torch.manual_seed(10 + rank)  # dropout differs from rank to rank

    def weights() -> dict[str, torch.Tensor]:
        whole = {name: getattr(p, "full_tensor", lambda p=p: p)() for name, p in model.named_parameters()}
        return {name: tensor.detach().clone() for name, tensor in whole.items()}

    def save() -> str:
        state = weights()  # a collective under FSDP2
        path = args.folder / f"checkpoint-{rank}.pt"
        torch.save(state, path)
        return str(path)

    def set_workers(_: int) -> object:
        loader.prefetch_factor = 2 if loader.num_workers else None
        return hoptui.LATER

    run = hoptui.connect(f"own-{args.mode}")
    knobs = run.bind(
        args,
        last_step=hoptui.Knob(1, 10**9, effect="speed"),
        micro_batch=hoptui.Knob(1, BATCH, effect="speed", scale="pow2"),
        clip=(0.01, 100.0),
        dropout=(0.0, 0.9),
        apply={"dropout": lambda p: setattr(drop, "p", p)},
    )
    knobs |= run.bind(
        loader,
        num_workers=hoptui.Knob(0, 4, effect="speed", cost="rebuild"),
        apply={"num_workers": set_workers},
    )
    knobs |= run.optimizer(optimizer, scheduler)
    run.on_checkpoint(save)

    step, epoch, going = 0, 0, True
    seen: list[int] = []
    trace: list[tuple[int, str, float]] = []
    before = {name: knobs[name].value for name in TRACED}
    workers: list[int] = []
    while going:
        sampler.set_epoch(epoch)
        knobs["num_workers"].holds()
        workers.append(loader.num_workers)
        for ids in loader:
            going = step < args.last_step and run.boundary(step)
            if not going:
                break
            now = {name: knobs[name].value for name in TRACED}
            trace += [(step, name, now[name]) for name in TRACED if now[name] != before[name]]
            before = now
            parts = ids.split(args.micro_batch)
            for i, part in enumerate(parts):
                if args.mode == "ddp":
                    model.require_backward_grad_sync = i == len(parts) - 1
                else:
                    model.set_requires_gradient_sync(i == len(parts) - 1)
                loss = (model(inputs[part]) - targets[part]).square().mean() * len(part) / len(ids)
                loss.backward()
                seen += part.tolist()
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1
            run.log(loss=loss, samples=len(ids) * world)
        epoch += 1

    flat = [value for tensor in weights().values() for value in tensor.flatten().tolist()]
    rates = [group["lr"] for group in optimizer.param_groups]
    found = {"weights": flat, "steps": step, "seen": seen, "trace": trace, "workers": workers, "rates": rates}
    (args.folder / f"rank-{rank}.json").write_text(json.dumps(found))
    run.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
