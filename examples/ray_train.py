"""Ray Train: a TorchTrainer with two workers on this machine.

python examples/ray_train.py
hoptui set ray-train lr=1e-3
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hoptui.integrations.ray import hoptui_loop  # hoptui


def train_func(config: dict) -> None:
    torch.manual_seed(0)
    x = torch.randn(3200, 64)
    data = TensorDataset(x, (x @ torch.randn(64, 8)).argmax(1))
    loader = prepare_data_loader(DataLoader(data, batch_size=config["batch_size"], shuffle=True))
    model = prepare_model(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config["epochs"] * len(loader))

    for epoch in range(config["epochs"]):
        if ray.train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save(model.module.state_dict(), Path(folder) / "model.pt")
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        hoptui_loop(train_func),  # hoptui
        train_loop_config={"lr": 3e-3, "batch_size": 32, "epochs": 16},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="ray-train", storage_path=tempfile.mkdtemp()),
    )
    print(trainer.fit().metrics)
