"""A workload of DeepSpeed's autotuning with `transformers.Trainer`, as its scripts train it, on one GPU.

GPT-2 predicts the next token, as in `run_clm.py`. The other models classify sequences, as in `run_glue.py`.
The weights are random. The micro-batch is the published one. Without a GPU the model is tiny and in fp32.
"""

from __future__ import annotations

import sys

import torch
from torch.utils.data import Dataset

from benchmarks.autotuning_catalogue import WORKLOADS, Workload
from benchmarks.loops.hf_trainer import train
from benchmarks.loops.script import Script, options

try:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        PreTrainedModel,
    )
except ImportError as error:
    sys.exit(f"this loop needs transformers and accelerate: {error}")

CLASSES = 3
EPOCH = 16
"""Optimizer steps of an epoch. It is short, since data workers change between two epochs."""


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Sequences of tokens, some of them frequent, with what is to be predicted of each."""

    def __init__(self, workload: Workload, vocabulary: int) -> None:
        count = EPOCH * workload.steps * workload.micro_batch
        self.tokens = (torch.rand(count, workload.length) ** 4 * vocabulary).long()
        self.labels = self.tokens if workload.model == "gpt2" else self.tokens[:, 0] % CLASSES

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def model_of(workload: Workload) -> PreTrainedModel:
    """Return the model of a workload with random weights."""
    if workload.model == "gpt2":
        config = AutoConfig.for_model(workload.model, use_cache=False, **workload.config)
        return AutoModelForCausalLM.from_config(config)
    config = AutoConfig.for_model(workload.model, num_labels=CLASSES, **workload.config)
    return AutoModelForSequenceClassification.from_config(config)


def main(script: Script) -> None:
    """Train until stopped."""
    workload = next(each for each in WORKLOADS if each.name == script.workload)
    workload = workload if script.device == "cuda" else workload.tiny()
    with torch.device(script.device):  # random weights of this size take long without a GPU
        model = model_of(workload)
    train(
        script,
        model,
        Sequences(workload, model.config.vocab_size),
        per_device_train_batch_size=workload.micro_batch,
        gradient_accumulation_steps=workload.steps,
        fp16=workload.fp16,
        learning_rate=2e-5,
        logging_steps=5,
    )


if __name__ == "__main__":
    options(main)
