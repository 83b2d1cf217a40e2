"""A causal language model with `transformers.Trainer`: 32 sequences a step, 2 at a time.

The knobs are those of the adapter. Gradient checkpointing is on, and one worker makes the sequences.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.loops.script import Script, options

try:
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        PreTrainedModel,
        PrinterCallback,
        Trainer,
        TrainingArguments,
    )

    from hoptui.integrations.transformers import HoptuiCallback
except ImportError as error:
    sys.exit(f"this loop needs transformers and accelerate: {error}")


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random sequences. An epoch is short, since data workers change between two epochs."""

    def __init__(self, vocabulary: int, length: int, count: int) -> None:
        self.vocabulary, self.length, self.count = vocabulary, length, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocabulary, (self.length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def train(script: Script, model: PreTrainedModel, rows: Dataset[Any], **arguments: Any) -> None:
    """Train a model with Trainer until stopped, with one data worker. `arguments` are those of Trainer."""
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            num_train_epochs=1_000_000,
            dataloader_num_workers=1,
            use_cpu=script.device == "cpu",
            seed=script.seed,
            save_strategy="no",
            disable_tqdm=True,
            report_to=[],
            **arguments,
        )
        callback = HoptuiCallback(script.name, merge_accumulation=True)
        trainer = Trainer(model=model, args=settings, train_dataset=rows, callbacks=[callback])
        trainer.remove_callback(PrinterCallback)  # it would fill the pipe, which is read at the end
        trainer.train()


def main(script: Script) -> None:
    """Train until stopped."""
    large = script.device == "cuda"
    vocabulary, length = (50_257, 512) if large else (256, 32)
    width, layers, heads = (768, 12, 12) if large else (64, 2, 4)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    train(
        script,
        GPT2LMHeadModel(config),
        Tokens(vocabulary, length, 960),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=16,
        gradient_checkpointing=True,
        learning_rate=3e-4,
        bf16=large,
    )


if __name__ == "__main__":
    options(main)
