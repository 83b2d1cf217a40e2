"""What an adapter costs: the time within its hooks, and the same training with and without it.

`python -m benchmarks.adapter_cost transformers`, `lightning` or `sb3`, where the framework is installed. The
daemon runs.

With `--pairs 0`, `hook_us` are microseconds of thread time in each hook of hoptui, counted in a training
without the code of the framework that a hook calls: the median of its calls, times the calls per iteration.
`adapter_us` is the sum. `least_us` has the tenth percentile instead of the median, which other work on the
machine disturbs less. `base_us` is an empty hook, the cost of counting.

Else each pair trains twice in random order. `cpu_ratio` is the ratio of the CPU seconds of the process, its
threads included, and `wall_ratio` that of wall time. 1.0 means no cost. CPU time also holds where other work
shares the cores. `--gpu` trains on a GPU: GPT-2 of 124 M in bf16 with transformers, the others as they are.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Seconds = tuple[float, float]
"""CPU and wall."""
Train = Callable[[bool], Seconds]


def timed(train: Callable[[], object]) -> Seconds:
    cpu, wall = time.process_time(), time.perf_counter()
    train()
    return time.process_time() - cpu, time.perf_counter() - wall


class Account:
    """Thread seconds in code of hoptui, by hook, without the code of others that the hook calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}  # of each call
        self._open: list[list[Any]] = []  # the hooks in progress, "" for code of others, with their seconds
        self._since = 0.0

    def clear(self) -> None:
        self.seconds = {}

    def inside(self, hook: Callable[..., Any], name: str = "") -> Callable[..., Any]:
        """Count what a hook takes."""
        return self._counted(hook, name or hook.__name__)

    def outside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Leave out what a function takes that a hook calls."""
        return self._counted(function, "")

    def hooks_of(self, kind: type, prefix: str) -> None:
        """Count all hooks that a class defines."""
        for name, hook in list(vars(kind).items()):
            if name.startswith(prefix):
                setattr(kind, name, self.inside(hook))

    def _counted(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._turn()
            self._open.append([name, 0.0])
            try:
                self._since = time.thread_time()
                return function(*args, **kwargs)
            finally:
                self._turn()
                _, seconds = self._open.pop()
                self.seconds.setdefault(name, []).append(seconds)

        return call

    def _turn(self) -> None:
        """Add the time since the last turn to the hook in progress."""
        now = time.thread_time()
        if self._open:
            self._open[-1][1] += now - self._since
        self._since = now


def transformers(steps: int, width: int, account: Account | None, gpu: bool) -> Train:
    """Train a tiny GPT-2; one step at width 128 takes about 30 ms on one core. On a GPU: the one of 124 M."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    if account is not None:
        Trainer.training_step = account.outside(Trainer.training_step)
        Trainer.get_batch_samples = account.outside(Trainer.get_batch_samples)
    from hoptui.integrations.transformers import HoptuiCallback

    if account is not None:
        account.hooks_of(HoptuiCallback, "on_")
        Trainer.training_step = account.inside(Trainer.training_step)
        begin = HoptuiCallback.on_train_begin

        def begin_counted(self: Any, *args: Any, **kwargs: Any) -> None:
            begin(self, *args, **kwargs)
            for name in self._wrapped:
                setattr(self._trainer, name, account.inside(getattr(self._trainer, name)))

        HoptuiCallback.on_train_begin = begin_counted  # type: ignore[method-assign]
    config = GPT2Config(
        vocab_size=256, n_positions=128, n_embd=width, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    if gpu:
        config = GPT2Config()
    blocks = torch.randint(0, 256, (512, config.n_positions))
    folder = tempfile.mkdtemp(prefix="trainer-", dir=os.environ["HOPTUI_STATE_DIR"])

    def train(with_hoptui: bool) -> Seconds:
        args = TrainingArguments(
            output_dir=folder,
            run_name="cost",
            max_steps=steps,
            per_device_train_batch_size=8,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=not gpu,
            bf16=gpu,
        )
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=args,
            train_dataset=[{"input_ids": block, "labels": block} for block in blocks],
            callbacks=[HoptuiCallback()] if with_hoptui else [],
        )
        return timed(trainer.train)

    return train


def lightning(steps: int, width: int, account: Account | None, gpu: bool) -> Train:
    """Train a perceptron with `lightning.pytorch`; one step at width 512 takes about 10 ms on one core."""
    import lightning as L  # noqa: N812
    from torch.utils.data import DataLoader, TensorDataset

    from hoptui.integrations.lightning import Adapter, HoptuiCallback

    if account is not None:
        account.hooks_of(Adapter, "on_")

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
            accelerator="gpu" if gpu else "cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[HoptuiCallback("cost")] if with_hoptui else [],
        )
        module = Perceptron()
        return timed(lambda: trainer.fit(module, DataLoader(data, batch_size=64)))

    return train


def sb3(steps: int, width: int, account: Account | None, gpu: bool) -> Train:
    """Train PPO on CartPole; an iteration is a rollout of 1,024 steps and its update."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    from hoptui.integrations.sb3 import HoptuiCallback

    if account is not None:
        account.hooks_of(HoptuiCallback, "_on_")

    def train(with_hoptui: bool) -> Seconds:
        envs = make_vec_env("CartPole-v1", n_envs=4, seed=0)
        model = PPO("MlpPolicy", envs, n_steps=256, seed=0, device="cuda" if gpu else "cpu")
        callback = HoptuiCallback("cost") if with_hoptui else None
        return timed(lambda: model.learn(1024 * steps, callback=callback))

    return train


ONCE = ("on_train_start", "on_train_begin", "on_train_end", "_on_training_start", "_on_training_end")
"""Hooks that a training calls once."""


def hook_costs(train: Train, account: Account, steps: int) -> dict[str, Any]:
    """Return the microseconds within hooks, per iteration."""
    train(True)
    account.clear()
    train(True)
    calls = {
        name: each
        for name, each in account.seconds.items()
        if name and name not in ONCE and len(each) >= steps // 2
    }
    base = Account()
    empty = base.inside(lambda: None, "empty")
    for _ in range(10_000):
        empty()
    shares = {name: len(each) / steps * 1e6 for name, each in calls.items()}
    found = {name: round(statistics.median(each) * shares[name], 2) for name, each in calls.items()}
    least = sum(sorted(each)[len(each) // 10] * shares[name] for name, each in calls.items())
    return {
        "adapter_us": round(sum(found.values()), 1),
        "least_us": round(least, 1),
        "hook_us": found,
        "calls": {name: round(len(each) / steps, 2) for name, each in calls.items()},
        "base_us": round(statistics.median(base.seconds["empty"]) * 1e6, 2),
    }


def ratios(train: Train, pairs: int) -> dict[str, Any]:
    """Return the throughput with the adapter relative to that without it."""
    train(True), train(False)
    found: list[dict[bool, Seconds]] = []
    for _ in range(pairs):
        order = [True, False]
        random.shuffle(order)
        found.append({with_hoptui: train(with_hoptui) for with_hoptui in order})
    medians = {
        f"{name}_ratio": round(statistics.median(pair[False][i] / pair[True][i] for pair in found), 4)
        for i, name in enumerate(("cpu", "wall"))
    }
    return {**medians, "cpu_ratios": [round(pair[False][0] / pair[True][0], 4) for pair in found]}


TRAININGS: dict[str, tuple[Callable[[int, int, Account | None, bool], Train], int, int]] = {
    "transformers": (transformers, 100, 128),
    "lightning": (lightning, 300, 512),
    "sb3": (sb3, 3, 0),
}
"""For each framework its training, and how many iterations of which width it has by default."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=list(TRAININGS))
    parser.add_argument("--pairs", type=int, default=10, help="0: count the time within the hooks")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    make, steps, width = TRAININGS[options.framework]
    options.steps, options.width = options.steps or steps, options.width or width
    with tempfile.TemporaryDirectory(prefix="hoptui-cost-", ignore_cleanup_errors=True) as folder:
        os.environ["HOPTUI_DIR"], os.environ["HOPTUI_STATE_DIR"] = f"{folder}/run", f"{folder}/state"
        os.environ["HOPTUI_IDLE_S"] = "5"
        Path(folder, "state").mkdir(mode=0o700)
        account = None if options.pairs else Account()
        train = make(options.steps, options.width, account, options.gpu)
        if account is not None:
            found = hook_costs(train, account, options.steps)
        else:
            found = ratios(train, options.pairs)
        load = [round(each, 1) for each in os.getloadavg()]
        print(json.dumps({"benchmark": "adapter_cost", **vars(options), **found, "load": load}))


if __name__ == "__main__":
    main()
