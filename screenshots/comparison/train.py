"""A small network that learns on the CPU. It logs the same to hoptui and to wandb, and waits for its data on
purpose."""

from __future__ import annotations

import sys
import time

import torch
import wandb

import hoptui

WIDTH, CLASSES, BATCH = 256, 10, 512
LOAD_S = 0.04
"""What a batch takes to load."""

torch.manual_seed(0)
torch.set_num_threads(1)
logged = wandb.init(
    project="comparison",
    name="classifier",
    mode="offline",
    dir=sys.argv[1],
    settings=wandb.Settings(disable_git=True),
)
run = hoptui.connect("classifier")
true = torch.randn(WIDTH, CLASSES)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, CLASSES))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
batch = run.knob("batch", BATCH, min=32, max=8192, effect="speed")
lr = run.knob("lr", 1e-4, min=1e-6, max=1e-1, scale="log")
for _ in run.iterations():
    with run.phase("data"):
        time.sleep(LOAD_S)
        inputs = torch.randn(batch.value, WIDTH)
        labels = (inputs @ true + 4 * torch.randn(batch.value, CLASSES)).argmax(1)
    with run.phase("forward_backward"):
        outputs = model(inputs)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
    with run.phase("optimizer"):
        optimizer.param_groups[0]["lr"] = lr.value
        optimizer.step()
    figures = {"loss": loss.item(), "accuracy": (outputs.argmax(1) == labels).float().mean().item()}
    run.log(samples=len(labels), **figures)
    logged.log(figures)
