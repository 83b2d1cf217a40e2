"""What an adapter costs: the same training with and without its callback, in pairs, in one process.

`python -m benchmarks.adapter_cost lightning` or `sb3`, where the framework is installed. The daemon runs.
Each pair trains twice in random order. The ratios are those of the CPU seconds of the process, its threads
included, and of wall time: 1.0 means no cost. CPU time also holds where other work shares the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

Seconds = tuple[float, float]
"""CPU and wall."""


def timed(train: Callable[[], object]) -> Seconds:
    cpu, wall = time.process_time(), time.perf_counter()
    train()
    return time.process_time() - cpu, time.perf_counter() - wall


def lightning(steps: int, width: int) -> Callable[[bool], Seconds]:
    """Train a perceptron with `lightning.pytorch`; one step at width 512 takes about 10 ms on one core."""
    import lightning as L  # noqa: N812
    from torch.utils.data import DataLoader, TensorDataset

    from hoptui.integrations.lightning import HoptuiCallback

    class Perceptron(L.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            layers = [layer for _ in range(3) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
            self.model = torch.nn.Sequential(*layers)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss: torch.Tensor = (self.model(batch[0]) - batch[0]).square().mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    data = TensorDataset(torch.randn(64 * steps, width))

    def train(with_hoptui: bool) -> Seconds:
        trainer = L.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[HoptuiCallback("cost")] if with_hoptui else [],
        )
        module = Perceptron()
        return timed(lambda: trainer.fit(module, DataLoader(data, batch_size=64)))

    return train


def sb3(steps: int, width: int) -> Callable[[bool], Seconds]:
    """Train PPO on CartPole; an iteration is a rollout of 1,024 steps and its update."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    from hoptui.integrations.sb3 import HoptuiCallback

    def train(with_hoptui: bool) -> Seconds:
        model = PPO(
            "MlpPolicy", make_vec_env("CartPole-v1", n_envs=4, seed=0), n_steps=256, seed=0, device="cpu"
        )
        callback = HoptuiCallback("cost") if with_hoptui else None
        return timed(lambda: model.learn(1024 * max(1, steps // 100), callback=callback))

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=["lightning", "sb3"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hoptui-cost-") as folder:
        os.environ["HOPTUI_DIR"], os.environ["HOPTUI_STATE_DIR"] = f"{folder}/run", f"{folder}/state"
        os.environ["HOPTUI_IDLE_S"] = "5"
        train = {"lightning": lightning, "sb3": sb3}[options.framework](options.steps, options.width)
        train(True), train(False)
        pairs: list[dict[bool, Seconds]] = []
        for _ in range(options.pairs):
            order = [True, False]
            random.shuffle(order)
            pairs.append({with_hoptui: train(with_hoptui) for with_hoptui in order})
        found = {
            f"{name}_ratio": statistics.median(pair[False][i] / pair[True][i] for pair in pairs)
            for i, name in enumerate(("cpu", "wall"))
        }
        each = [round(pair[False][0] / pair[True][0], 4) for pair in pairs]
        print(json.dumps({"framework": options.framework, **found, "cpu_ratios": each, **vars(options)}))


if __name__ == "__main__":
    main()
