"""What `HoptuiCallback` costs: a tiny GPT-2 on the CPU with and without it, in turns in one process.

python -m benchmarks.transformers_callback_cost [--rounds 10] [--steps 60]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from hoptui.integrations.transformers import HoptuiCallback


def seconds(steps: int, with_callback: bool, folder: str) -> float:
    """The time of a training."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=128, n_embd=128, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    blocks = torch.randint(0, 256, (512, 128))
    args = TrainingArguments(
        output_dir=folder,
        run_name="cost",
        max_steps=steps,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=args,
        train_dataset=[{"input_ids": block, "labels": block} for block in blocks],
        callbacks=[HoptuiCallback()] if with_callback else [],
    )
    began = time.process_time()
    trainer.train()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        seconds(options.steps, True, folder)  # everything is imported, and there is a daemon
        ratios = []
        for number in range(options.rounds):
            order = (False, True) if number % 2 else (True, False)
            found = {each: seconds(options.steps, each, folder) for each in order}
            ratios.append(found[False] / found[True])
    print(
        json.dumps(
            {
                "benchmark": "transformers_callback_cost",
                "throughput_ratio_median": round(statistics.median(ratios), 4),
                "lowest": round(min(ratios), 4),
                "highest": round(max(ratios), 4),
                "rounds": options.rounds,
            }
        )
    )


if __name__ == "__main__":
    main()
