"""A run of Ray Train, for the proofs of what is safe."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import own_loop  # type: ignore[import-not-found]  # beside this file
import ray
import ray.train
import torch
from ray.cluster_utils import Cluster
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from hoptui.integrations.ray import current_run, hoptui_loop


def train_func(config: dict[str, Any]) -> None:
    context = ray.train.get_context()
    rank = context.get_world_rank()
    inputs, targets, plain = own_loop.problem(0.0)
    loader = prepare_data_loader(DataLoader(own_loop.Samples(), batch_size=own_loop.BATCH, shuffle=True))
    model = prepare_model(plain)
    optimizer, scheduler = own_loop.optimization(model)
    current_run().bind(config, clip=(0.01, 100.0), last_step=(1, 10**9))
    seen: list[int] = []
    step = epoch = 0
    try:
        while step < config["last_step"]:
            loader.sampler.set_epoch(epoch)
            for ids in loader:
                if step >= config["last_step"]:
                    break
                optimizer.zero_grad()
                (model(inputs[ids]) - targets[ids]).square().mean().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), config["clip"])
                seen += ids.tolist()
                step += 1
                scheduled = step
                optimizer.step()
                scheduler.step()
            epoch += 1
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "weights.txt").write_text(str(scheduled))
                checkpoint = Checkpoint.from_directory(folder) if rank == 0 else None
                ray.train.report({"epoch": epoch}, checkpoint=checkpoint)
    finally:
        found = {
            "weights": [value for p in plain.parameters() for value in p.flatten().tolist()],
            "seen": seen,
            "steps": step,
            "clip": config["clip"],
            "groups": [
                {k: group[k] for k in ("lr", "weight_decay", "betas")} for group in optimizer.param_groups
            ],
        }
        (Path(config["folder"]) / f"{context.get_experiment_name()}-{rank}.json").write_text(
            json.dumps(found)
        )


def two_nodes(directories: Sequence[str]) -> Cluster:
    """Start a cluster of two raylets with a CPU each.

    Args:
        directories: `HOPTUI_DIR` and `HOPTUI_STATE_DIR` of each raylet, which its workers have too.
    """
    cluster = Cluster()
    for directory, state in zip(directories[::2], directories[1::2], strict=True):
        places = {"HOPTUI_DIR": directory, "HOPTUI_STATE_DIR": state}
        cluster.add_node(num_cpus=1, include_dashboard=False, env_vars=places)
    return cluster


def main(name: str, folder: str, *directories: str) -> None:
    cluster = two_nodes(directories) if directories else None
    if cluster is not None:
        ray.init(address=cluster.address, log_to_driver=False)
    else:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    TorchTrainer(
        hoptui_loop(train_func),
        train_loop_config={"folder": folder, "clip": own_loop.CLIP, "last_step": 10**9},
        scaling_config=ScalingConfig(
            num_workers=2, placement_strategy="STRICT_SPREAD" if directories else "PACK"
        ),
        run_config=RunConfig(name=name, storage_path=f"{folder}/storage"),
    ).fit()
    print("fit has returned")
    if cluster is not None:  # it must not end before its driver
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
