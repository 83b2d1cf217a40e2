"""What the adapter of Lightning has to know of its `Trainer` and of its batches."""

from __future__ import annotations

import math
from typing import Any

PACKAGES = ("lightning", "pytorch_lightning")


def strategy_name(kind: type) -> str:
    """Return the name of a strategy, or of the one that a script made its own of.

    DeepSpeed's inherits from that of DDP, so the nearest class of Lightning counts.
    """
    own = (each.__name__ for each in kind.__mro__ if each.__module__.partition(".")[0] in PACKAGES)
    return next(own, "")


def batches_begun(trainer: Any) -> int:
    """Return the number of batches that this epoch has begun."""
    return int(trainer.fit_loop.epoch_loop.batch_progress.current.ready)


def stored_metrics(trainer: Any) -> dict[str, Any]:
    """Return the metrics that Lightning has computed. Its property computes more, with collectives."""
    stored: dict[str, Any] = getattr(trainer._logger_connector, "_callback_metrics", {})
    return stored


def train_loaders(trainer: Any) -> Any:
    """Return the loader that the script gave, or its list or dict of loaders."""
    loaders = trainer.train_dataloader
    return getattr(loaders, "iterables", loaders)  # of a CombinedLoader


def planned_steps(trainer: Any) -> int | None:
    """Return the planned number of optimizer steps, None if there is none or Lightning cannot know it."""
    try:
        total = trainer.estimated_stepping_batches
    except Exception:  # accumulation that differs from epoch to epoch
        total = trainer.max_steps
    return int(total) if 0 < total < math.inf else None


def planned_from_here(trainer: Any) -> int | None:
    """Return the planned number of steps after a change of the accumulation in the middle."""
    batches, each, epochs = trainer.num_training_batches, trainer.accumulate_grad_batches, trainer.max_epochs
    most = int(trainer.max_steps)
    if batches == math.inf or epochs is None or epochs < 0:
        return most if most > 0 else None
    in_epoch = math.ceil(batches / each)
    left = 0 if trainer.is_last_batch else in_epoch - batches_begun(trainer) // each
    total = int(trainer.global_step + left + max(0, epochs - trainer.current_epoch - 1) * in_epoch)
    return min(total, most) if most > 0 else total


def compiled_parts(module: Any) -> tuple[list[Any], Any]:
    """Return what can be compiled of a LightningModule, and the module if it has a `forward`, else None.

    A strategy calls the training step through the `forward` of the module, which it replaces meanwhile.
    """
    import torch

    parts: list[Any] = []
    containers = [module]
    while containers:
        for part in containers.pop().children():
            if isinstance(part, (torch.nn.ModuleList, torch.nn.ModuleDict)):
                containers.append(part)
            elif any(True for _ in part.parameters()):
                parts.append(part)
    own = type(module).forward
    if own.__module__.partition(".")[0] in PACKAGES:  # the module does not define it
        return parts, None
    return [module, *parts], module
