"""A rank that trains in a loop with `accelerate`, one training after the other, so that torch starts once.

Its arguments are a folder and a JSON list of trainings. Each writes `{folder}/{name}.{rank}.json` at its end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, tracking
from torch.utils.data import DataLoader, TensorDataset

from hoptui.integrations import compilation
from hoptui.integrations.accelerate import HoptuiTracker
from tests.integrations.plain_changes import PlainChanges, change_optimizer

ROWS, BATCHES = 8, 24
"""Rows of a micro-batch of one rank, and micro-batches of an epoch of one rank."""
TRACKER = "hoptui" if hasattr(tracking, "register_tracker_class") else None
PACE_S, LIMIT_S = 0.05, 60.0


def change(accelerator: Any, optimizer: Any, schedule: Any, knob: str, value: Any) -> None:
    """Make a change by plain code."""
    if knob == "gradient_accumulation_steps":
        accelerator.gradient_accumulation_steps = value
    elif knob == "lr":  # the schedule computes each rate from the one before
        (base,) = schedule.scheduler.base_lrs
        schedule.scheduler.base_lrs = [value]
        (group,) = optimizer.param_groups
        group["lr"] = value * (group["lr"] / base)
    else:
        change_optimizer(optimizer, knob, value)


def train(training: dict[str, Any], folder: Path, rank: int) -> None:
    name, epochs = training["name"], training["epochs"]
    gate = folder / f"{name}.gate"
    torch.manual_seed(0)
    inputs = torch.randn(2 * ROWS * BATCHES, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 4000)

    plain = PlainChanges(training, folder) if "repeats" in training else None
    accelerator = Accelerator(
        gradient_accumulation_steps=2,
        log_with=None if plain else TRACKER or HoptuiTracker(name),
        project_dir=str(folder / name),
    )
    loader = DataLoader(data, batch_size=ROWS)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    if plain is None:
        accelerator.init_trackers(name, {"epochs": epochs})
    rows, steps, micro = 0, 0, 0
    begun = -1
    for epoch in range(epochs):
        for x, y in loader:
            last = epoch == epochs - 1 and micro >= (epochs - 1) * BATCHES + BATCHES // 2
            end = time.monotonic() + (LIMIT_S if last else PACE_S)
            if plain is not None and steps > begun:
                begun = steps
                for knob, value in plain.due(steps):
                    change(accelerator, optimizer, scheduler, knob, value)
            while plain is None and not gate.exists() and time.monotonic() < end:
                time.sleep(0.002)
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            rows, micro = rows + len(x), micro + 1
            if accelerator.sync_gradients:
                steps += 1
                accelerator.log({"loss": loss.item()}, step=steps)
    for tracker in accelerator.trackers:  # end_training would also end the process group
        tracker.finish()
    found = {
        "weights": [weight for each in model.parameters() for weight in each.flatten().tolist()],
        "rows": rows,
        "steps": steps,
        "lr": scheduler.get_last_lr()[0],
    }
    new = folder / f"{name}.{rank}.new"
    new.write_text(json.dumps(found))
    new.rename(folder / f"{name}.{rank}.json")


if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    compilation.BACKEND = "aot_eager"  # it makes no code
    for training in json.loads(sys.argv[2]):
        train(training, folder, rank)
    torch.distributed.destroy_process_group()
