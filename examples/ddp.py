"""DistributedDataParallel on two processes, with a DataLoader and gradient accumulation.

torchrun --nproc_per_node 2 examples/ddp.py
hoptui set ddp micro_batch=16
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hoptui  # hoptui

config = {"batch": 64, "micro_batch": 64, "clip": 1.0, "epochs": 8}

dist.init_process_group("gloo")  # "nccl" on GPUs
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(6400, 64)
data = TensorDataset(x, (x @ torch.randn(64, 8)).argmax(1))
sampler = DistributedSampler(data, drop_last=True)
loader = DataLoader(data, batch_size=config["batch"], sampler=sampler, drop_last=True)

model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config["epochs"] * len(loader))


def save() -> str:
    path = "ddp.pt"
    if rank == 0:
        torch.save(model.module.state_dict(), path)
    dist.barrier()
    return path


run = hoptui.connect("ddp", total=config["epochs"] * len(loader))  # hoptui
run.bind(  # hoptui
    config,  # hoptui
    micro_batch=hoptui.Knob(1, 64, scale="pow2", effect="speed", keeps="batch"),  # hoptui
    clip=(0.1, 100.0, "log"),  # hoptui
)  # hoptui
run.optimizer(optimizer, scheduler)  # hoptui
run.on_checkpoint(save)  # hoptui

step = 0
for epoch in range(config["epochs"]):
    sampler.set_epoch(epoch)
    for xs, ys in loader:
        if not run.boundary(step):  # hoptui
            break  # hoptui
        loss = torch.zeros(())
        parts = list(zip(xs.split(config["micro_batch"]), ys.split(config["micro_batch"]), strict=True))
        for i, (part, labels) in enumerate(parts):
            model.require_backward_grad_sync = i == len(parts) - 1  # reduce the gradients once
            part_loss = nn.functional.cross_entropy(model(part), labels, reduction="sum") / len(xs)
            part_loss.backward()
            loss += part_loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), config["clip"])
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        step += 1
        run.log(loss=loss, samples=len(xs) * world)  # hoptui
    if run.stopping:  # hoptui
        break  # hoptui
    if rank == 0:
        print(f"epoch {epoch}: loss {loss:.3f}")

save()
run.close()  # hoptui
dist.destroy_process_group()
