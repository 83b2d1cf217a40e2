"""A hand-written training loop: a small classifier, with gradient accumulation and a schedule.

python examples/plain_loop.py
hoptui set plain-loop lr=1e-3
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

import hoptui  # hoptui

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--batch-size", type=int, default=256)
parser.add_argument("--accum", type=int, default=4, help="micro-batches of one batch")
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--clip", type=float, default=1.0)
args = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
teacher = torch.randn(64, 8)


def save() -> str:
    path = Path("plain_loop.pt").absolute()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return str(path)


run = hoptui.connect("plain-loop", total=args.steps)  # hoptui
run.bind(args, clip=(0.1, 100.0, "log"), accum=hoptui.Knob(1, 64, scale="pow2", effect="speed"))  # hoptui
run.optimizer(optimizer, scheduler)  # hoptui
run.on_checkpoint(save)  # hoptui

for step in run.iterations(args.steps):  # hoptui
    x = torch.randn(args.batch_size, 64)
    y = (x @ teacher).argmax(1)
    total = 0.0
    for xs, ys in zip(x.chunk(args.accum), y.chunk(args.accum), strict=True):
        loss = nn.functional.cross_entropy(model(xs), ys, reduction="sum") / len(x)
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    run.log(loss=total, samples=len(x))  # hoptui
    if step % 100 == 0:
        print(f"step {step}: loss {total:.3f}")

save()
