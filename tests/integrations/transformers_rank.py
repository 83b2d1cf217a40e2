"""A rank that trains with `transformers.Trainer`, one training after the other, so that torch starts once.

Its argument is a JSON list of trainings. Each writes `{folder}/{name}.{rank}.json` when it is over.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from hoptui.integrations import compilation
from hoptui.integrations.transformers import HoptuiCallback
from tests.integrations.plain_changes import PlainChanges, change_optimizer

ROWS, LENGTH, WORDS = 12, 16, 64
SEQUENCES = ROWS * 18 + ROWS + 10
"""Of two ranks with 12 rows each, one has 10 rows in the last step of an epoch."""
PACE_S, LIMIT_S = 0.1, 60.0


class Gate(TrainerCallback):  # type: ignore[misc]
    """Holds the training back until the file `gate` is there: there is time to give commands."""

    def __init__(self, gate: Path, steps: int) -> None:
        self._gate, self._steps = gate, steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        last = state.global_step >= self._steps - 2
        end = time.monotonic() + (LIMIT_S if last else PACE_S)
        while not self._gate.exists() and time.monotonic() < end:
            time.sleep(0.002)


class Repeated(TrainerCallback):  # type: ignore[misc]
    """Makes the changes of another training by plain code."""

    def __init__(self, changes: PlainChanges) -> None:
        self._changes = changes

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer, schedule = kwargs["optimizer"], kwargs["lr_scheduler"]
        for knob, value in self._changes.due(state.global_step):
            if knob == "max_grad_norm":
                args.max_grad_norm = value
            elif knob == "lr":
                schedule.base_lrs = [value for _ in schedule.base_lrs]
                for group, factor in zip(optimizer.param_groups, schedule.lr_lambdas, strict=True):
                    group["lr"] = value * factor(schedule.last_epoch)
            else:
                change_optimizer(optimizer, knob, value)


class OwnTrainer(Trainer):  # type: ignore[misc]
    """Counts the rows that it trains on. Overrides a method as libraries on top of Trainer do."""

    rows = 0

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.rows += len(inputs["input_ids"])
        return super().training_step(model, inputs, *args, **kwargs)


def sequences(count: int = SEQUENCES) -> list[dict[str, torch.Tensor]]:
    """Texts of one length, with labels for a different number of words each."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for index in range(count):
        words = torch.randint(0, WORDS, (LENGTH,), generator=generator)
        labels = words.clone()
        labels[LENGTH - index % 9 :] = -100
        found.append({"input_ids": words, "labels": labels})
    return found


def small_model() -> GPT2LMHeadModel:
    """A model of 5,000 parameters, always the same, without dropout."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=1, n_head=2, n_embd=16, vocab_size=WORDS, n_positions=LENGTH, bos_token_id=0,
            eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip


def train(training: dict[str, Any], folder: Path, rank: int) -> None:
    name, steps = training["name"], training["steps"]
    options: dict[str, Any] = {
        "output_dir": str(folder / name),
        "run_name": name,
        "per_device_train_batch_size": ROWS,
        "max_steps": steps,
        "learning_rate": 0.3,
        "optim": "sgd",  # Adam makes much of the rounding of gradients that are almost 0
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 50,
        "disable_tqdm": True,
        "accelerator_config": {"even_batches": False},
        "remove_unused_columns": False,
    }
    args = TrainingArguments(**(options | training.get("options", {})))
    callbacks = (
        [Repeated(PlainChanges(training, folder))]
        if "repeats" in training
        else [HoptuiCallback(**training.get("callback", {})), Gate(folder / f"{name}.gate", steps)]
    )
    model: Any = small_model()
    if training.get("wrap") == "fsdp1":
        model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    elif training.get("wrap") == "fsdp2":
        fully_shard(model.transformer.h[0])
        fully_shard(model)
    trainer = OwnTrainer(
        model=model,
        args=args,
        train_dataset=sequences(),
        eval_dataset=sequences(16),
        callbacks=callbacks,
    )
    if training.get("wrap"):  # on a CPU accelerate knows DDP alone
        trainer.accelerator.prepare_model = lambda model, **_: model
    trainer.train()
    found = {
        "weights": weights(trainer.model_wrapped),
        "rows": trainer.rows,
        "steps": trainer.state.global_step,
        "pins": trainer.callback_handler.train_dataloader.base_dataloader.pin_memory,
        "log": [entry for entry in trainer.state.log_history if "loss" in entry],
        "evals": sum("eval_loss" in entry for entry in trainer.state.log_history),
        "saved": sorted(path.name for path in Path(args.output_dir).glob("checkpoint-*")),
    }
    new = folder / f"{name}.{rank}.new"
    new.write_text(json.dumps(found))
    new.rename(folder / f"{name}.{rank}.json")


def weights(model: Any) -> list[float]:
    """All parameters of the whole model."""
    found: list[float] = []
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model):
            for parameter in model.parameters():
                found += parameter.detach().flatten().tolist()
        return found
    for parameter in model.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        found += whole.detach().flatten().tolist()
    return found


if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    compilation.BACKEND = "aot_eager"  # it makes no code
    for training in json.loads(sys.argv[2]):
        train(training, folder, rank)
