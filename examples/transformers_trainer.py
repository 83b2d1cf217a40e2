"""A small GPT-2 with `transformers.Trainer`: it learns to write Python, byte by byte.

torchrun --nproc-per-node 2 examples/transformers_trainer.py
hoptui set gpt2-bytes micro_batch_split=2
"""

from __future__ import annotations

import argparse
import inspect
import json

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from hoptui.integrations.transformers import HoptuiCallback  # hoptui

CONTEXT = 64


class Blocks(Dataset[dict[str, torch.Tensor]]):
    """Blocks of bytes of a text, as `run_clm.py` makes blocks of tokens."""

    def __init__(self, text: str) -> None:
        data = torch.tensor(list(text.encode()))
        self.blocks = data[: len(data) // CONTEXT * CONTEXT].view(-1, CONTEXT)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.blocks[index], "labels": self.blocks[index]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    config = GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    args = TrainingArguments(
        output_dir="gpt2-bytes",
        max_steps=options.steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=100,
        save_steps=200,
        save_total_limit=1,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=args,
        train_dataset=Blocks(inspect.getsource(argparse)),
        eval_dataset=Blocks(inspect.getsource(json)),
        callbacks=[HoptuiCallback()],  # hoptui
    )
    trainer.train()
    print(f"loss on other text: {trainer.evaluate()['eval_loss']:.3f}")


if __name__ == "__main__":
    main()
