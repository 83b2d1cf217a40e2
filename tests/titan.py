"""A stand-in for torchtitan 0.3, which `make test` does not install: what the adapter uses of its trainer.

The names are those of torchtitan/trainer.py, components/metrics.py and components/checkpointer. The adapter
meets TorchTitan itself in tests/integrations/test_torchtitan.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


class Schedules:
    """LRSchedulersContainer: a LambdaLR for each optimizer."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.schedulers = [
            torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1.0 / (1 + step)) for one in optimizers
        ]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.schedulers)


class Metrics:
    """MetricsProcessor."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(log_freq=10)
        self.num_flops_per_token = 6
        self.has_quantization = False
        self.logged: list[int] = []

    def should_log(self, step: int) -> bool:
        return step == 1 or step % int(self.config.log_freq) == 0

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        self.logged.append(step)


class Checkpointer:
    """CheckpointManager: `save` returns whether the step is one to save, `load` whether one was loaded."""

    def __init__(self, folder: Path, trainer: Trainer) -> None:
        self.enable, self.interval, self.folder = True, 10**6, folder
        self.saved: list[int] = []
        self._trainer = trainer

    def load(self, step: int = -1) -> bool:
        if step < 0:
            return False
        self._trainer.step, self._trainer.ntokens_seen = step, 100 * step
        for optimizer in self._trainer.optimizers:
            optimizer.load_state_dict(optimizer.state_dict())  # new parameter groups
        return True

    def save(self, curr_step: int, last_step: bool = False) -> bool:
        if curr_step % self.interval and not last_step:
            return False
        self.saved.append(curr_step)
        return True

    def maybe_wait_for_saving(self) -> None:
        pass

    def _create_checkpoint_id(self, step: int) -> str:
        return str(self.folder / f"step-{step}")


class Trainer:
    """Trainer: its `train` is the loop of 0.3 without profiler, validation and tracing."""

    def __init__(self, folder: Path, steps: int = 40, load_step: int = -1, **degrees: int) -> None:
        self.config = SimpleNamespace(
            training=SimpleNamespace(steps=steps, max_norm=1.0),
            checkpoint=SimpleNamespace(load_step=load_step),
            model_spec=SimpleNamespace(name="llama3"),
        )
        parts = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(part.parameters(), lr=0.01) for part in parts
        ]
        self.lr_schedulers = Schedules(self.optimizers)
        self.metrics_processor = Metrics()
        self.checkpointer = Checkpointer(folder, self)
        degrees = {"dp_replicate": 1, "dp_shard": 1, "cp": 1, "pp_enabled": 0} | degrees
        self.parallel_dims = SimpleNamespace(**degrees)
        self.step = self.ntokens_seen = 0

    def train(self) -> None:
        self.checkpointer.load(step=self.config.checkpoint.load_step)
        while self.should_continue_training():
            self.step += 1
            self.train_step()
            self.checkpointer.save(self.step, last_step=self.step == self.config.training.steps)

    def train_step(self) -> None:
        should_log = self.metrics_processor.should_log(self.step)
        self.ntokens_seen += 100
        for optimizer in self.optimizers:
            optimizer.step()
        for scheduler in self.lr_schedulers:
            scheduler.step()
        if should_log:
            self.metrics_processor.log(self.step, 2.0, 2.5, 0.1, extra_metrics={"lr/AdamW": 0.01})

    def should_continue_training(self) -> bool:
        return bool(self.step < self.config.training.steps)


def stand_in() -> None:
    """Let `import torchtitan.trainer` find this."""
    package, module = ModuleType("torchtitan"), ModuleType("torchtitan.trainer")
    module.Trainer = Trainer  # type: ignore[attr-defined]
    sys.modules |= {"torchtitan": package, "torchtitan.trainer": module}
