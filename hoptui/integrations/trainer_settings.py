"""The settings of `transformers.Trainer` that are safe to change while it trains, and why others are not."""

from __future__ import annotations

import math
import os
from typing import Any

from transformers import TrainerState, TrainingArguments

import hoptui
from hoptui.integrations import compilation
from hoptui.integrations.compilation import Compilation
from hoptui.integrations.data_loaders import LoaderKnobs
from hoptui.integrations.trainer_internals import DecayGroups, size_of

ACCUMULATION_REASON = (
    "Trainer reads it at several places, so the ranks would train different weights, and a smaller value "
    "would cut the epoch; set micro_batch_split instead"
)
ENGINE_REASON = "DeepSpeed's engine has the value of its configuration"
INTERVALS = {
    "logging_steps": "steps between two rows in Trainer's loggers; only costs time, so no tuner turns it",
    "save_steps": "steps between two checkpoints; only costs time, so no tuner turns it",
    "eval_steps": "steps between two evaluations; only costs time, so no tuner turns it",
}
"""What happens every so many steps besides training, with the description of its knob."""


def offer_settings(
    run: hoptui.Run,
    trainer: Any,
    args: TrainingArguments,
    state: TrainerState,
    optimizer: Any,
    scheduler: Any,
) -> None:
    """Declare the knobs that are safe, and the reasons of those that are not."""
    deepspeed = bool(getattr(trainer, "is_deepspeed_enabled", False))
    if optimizer is not None:
        run.optimizer(DecayGroups(getattr(optimizer, "optimizer", optimizer)), scheduler)
    if deepspeed:
        run.decline("max_grad_norm", "DeepSpeed's engine clips with the value of its configuration")
    else:
        run.bind(args, max_grad_norm=hoptui.Knob(0.0, 1e6, description="0 does not clip"))
    best = getattr(args, "load_best_model_at_end", False)
    for name, strategy in (
        ("logging_steps", args.logging_strategy),
        ("save_steps", args.save_strategy),
        ("eval_steps", getattr(args, "eval_strategy", "no")),
    ):
        if str(getattr(strategy, "value", strategy)) != "steps":
            run.decline(name, f"{name.removesuffix('_steps')}_strategy is not steps")
        elif best and name != "logging_steps":
            run.decline(name, "load_best_model_at_end needs the values that training began with")
        else:
            bounds: dict[str, Any] = {
                name: hoptui.Knob(
                    1, 10**6, scale="log", effect="speed", unit="steps", description=INTERVALS[name]
                )
            }
            run.bind(state, **bounds)
    run.decline("gradient_accumulation_steps", ENGINE_REASON if deepspeed else ACCUMULATION_REASON)
    for name in ("per_device_train_batch_size", "max_steps"):
        run.decline(name, "Trainer reads it once, before the first step")
    run.decline("torch_compile", "Trainer compiles the model once, before the first step: set compile")


def offer_loader(run: hoptui.Run, loader: Any, args: TrainingArguments, state: TrainerState) -> LoaderKnobs:
    """Declare the knobs of the DataLoader, or the reasons why there are none."""
    kind = type(loader).__name__
    return LoaderKnobs(
        run,
        loader.base_dataloader if kind == "DataLoaderShard" else loader,
        prefix="dataloader_",
        local_ranks=int(os.environ.get("LOCAL_WORLD_SIZE") or args.world_size),
        next_epoch=lambda: math.ceil(state.epoch or 0) < state.num_train_epochs,
    )


def offer_compilation(run: hoptui.Run, trainer: Any) -> Compilation:
    """Declare the knob `compile`, or the reason why there is none."""
    found = Compilation([trainer.model])
    found.offer(run, compilation_obstacle(trainer))
    return found


def compilation_obstacle(trainer: Any) -> str:
    """Return why a way of training excludes a compiled model, "" if it does not."""
    if getattr(trainer, "is_deepspeed_enabled", False):
        return "it is not tested with DeepSpeed"
    if trainer.args.torch_compile:
        return "the script compiles already"
    if trainer.args.n_gpu > 1:
        return "it is not tested with DataParallel"
    if getattr(trainer, "is_fsdp_xla_enabled", False):
        return "XLA compiles each step as a whole"
    if any(size_of(trainer, name) > 1 for name in ("get_tp_size", "get_cp_size", "get_sp_size")):
        return "it is not tested with a model or sequences that are spread over ranks"
    if getattr(trainer.accelerator, "mixed_precision", "") == "fp8":
        return "it is not tested with fp8"
    return compilation.wrapper_obstacle(trainer.model_wrapped)
