"""The workloads of DeepSpeed's autotuning with the figures that its authors published, and their models.

The figures are those of DeepSpeedExamples, `training/autotuning/hf`, at commit 83757d9 (2025-02-11):
samples/s of 16 V100 together, transformers 4.12. The sequence lengths and precisions are those of its
scripts. Where the scripts of a model disagree, the length is that of the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

COMMIT = "83757d9c937daabd1089a08051061706cb73900d"
SOURCE = f"https://github.com/deepspeedai/DeepSpeedExamples/tree/{COMMIT}/training/autotuning/hf"
HARDWARE = "16 V100 of one node"
GPUS = 16
FEW_STEPS = 4
"""Micro-batches of a step in fp32, in which 16 of them would take several seconds."""
Model = Literal["gpt2", "bert", "distilbert", "deberta-v2"]


@dataclass(frozen=True)
class Throughput:
    """Samples/s of all GPUs with a micro-batch per GPU. `zero` is the ZeRO stage, None without DeepSpeed."""

    samples_per_s: float
    micro_batch: int
    zero: int | None = None


@dataclass(frozen=True)
class Published:
    """The published figures of a workload.

    `baseline` is Hugging Face alone with the micro-batch tuned by hand, None where it did not run. `by_hand`
    is DeepSpeed with the micro-batch tuned by hand, `tuned` its autotuning in `minutes` and `experiments`.
    """

    baseline: Throughput | None
    by_hand: Throughput
    tuned: Throughput
    minutes: float
    experiments: int

    @property
    def start(self) -> Throughput:
        """The figure that autotuning is compared with."""
        return self.baseline or self.by_hand

    @property
    def speed_up(self) -> float:
        """The throughput after autotuning to that of the start."""
        return self.tuned.samples_per_s / self.start.samples_per_s


@dataclass(frozen=True)
class Workload:
    """A workload: its model, and the tokens of a sequence.

    `config` are the values that differ from the defaults of the model in transformers. `steps` is how many
    micro-batches an optimizer step has at the start.
    """

    name: str
    model: Model
    length: int
    published: Published
    config: Mapping[str, Any] = field(default_factory=dict)
    fp16: bool = True
    steps: int = GPUS

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch at the start, as published."""
        return self.published.start.micro_batch

    def tiny(self) -> Workload:
        """Return the workload with a model for a CPU, short sequences and few micro-batches, in fp32."""
        sizes = (
            TINY_GPT if self.model == "gpt2" else TINY_DISTILBERT if self.model == "distilbert" else TINY_BERT
        )
        config = {**self.config, **sizes}
        return replace(self, length=TINY_LENGTH, config=config, fp16=False, steps=FEW_STEPS)


TINY_LENGTH = 16
TINY_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 256}
TINY_DISTILBERT = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 256}
TINY_BERT = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "attention_head_size": 8, "vocab_size": 256,
}  # fmt: skip
XXLARGE = {
    "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 24,
    "attention_head_size": 64, "relative_attention": True, "position_buckets": 256, "share_att_key": True,
    "norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p", "position_biased_input": False,
    "conv_kernel_size": 3, "conv_act": "gelu",
}  # fmt: skip
"""Of `microsoft/deberta-v2-xxlarge`."""
WORKLOADS = (
    Workload(
        "gpt2", "gpt2", 1024,
        Published(Throughput(284.142, 8), Throughput(397.827, 8, 1), Throughput(431.586, 15, 1), 24.3, 17),
    ),
    Workload(
        "gpt2-medium", "gpt2", 1024,
        Published(Throughput(71.61, 2), Throughput(142.211, 4, 1), Throughput(163.3, 6, 1), 25.3, 15),
        {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    ),
    Workload(
        "gpt2-large", "gpt2", 1024,
        Published(Throughput(27.874, 1), Throughput(56.797, 2, 1), Throughput(69.061, 3, 1), 27.6, 13),
        {"n_embd": 1280, "n_layer": 36, "n_head": 20},
    ),
    Workload(
        "gpt2-xl", "gpt2", 1024,
        Published(None, Throughput(27.462, 1, 1), Throughput(27.497, 1, 1), 20.9, 9),
        {"n_embd": 1600, "n_layer": 48, "n_head": 25},
    ),
    Workload(
        "deberta", "deberta-v2", 256,
        Published(None, Throughput(140.587, 8, 1), Throughput(162.395, 11, 1), 39.4, 12),
        XXLARGE,
    ),
    Workload(
        "distilbert", "distilbert", 128,
        Published(
            Throughput(5161.902, 256), Throughput(5305.067, 256, 0), Throughput(5305.067, 256, 0), 10.8, 11
        ),
        fp16=False, steps=FEW_STEPS,
    ),
    Workload(
        "bert-base", "bert", 128,
        Published(
            Throughput(2502.236, 128), Throughput(2523.684, 128, 0), Throughput(2736.561, 235, 0), 34.7, 34
        ),
        {"vocab_size": 28_996}, fp16=False, steps=FEW_STEPS,
    ),
    Workload(
        "bert-large", "bert", 128,
        Published(Throughput(742.692, 64), Throughput(766.929, 64, 1), Throughput(808.168, 93, 1), 36.3, 22),
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
        fp16=False, steps=FEW_STEPS,
    ),
)  # fmt: skip
