"""The knobs of a language-model run, declared once, and presets by model size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from hoptui import Knob
from hoptui_trainer.common import knobs
from hoptui_trainer.common.modes import PRECISIONS

VOCABULARY_MULTIPLE = 128
"""The table of embeddings has a multiple of so many rows: tensor cores want even tiles (nanoGPT's 50,304)."""
LONGEST = 8_192
"""Tokens of the longest sequence that the table of rotations is made for."""


@dataclass(kw_only=True)
class LMConfig:
    """The values of one run. Fields with a `Knob` are command-line options and can change while the run goes
    on.

    `batch_tokens` decides what is learned, `micro_batch` and `grad_accum` only how it is computed: one
    follows from the other, and the gradient is that of the whole batch. A `micro_batch` of 0 and `auto` are
    chosen when training starts.
    """

    batch_tokens: Annotated[
        int,
        Knob(
            0,
            1 << 24,
            scale="log",
            cost="shape",
            unit="tokens",
            description="tokens of one step, on all GPUs together; 0 chooses by text and memory",
        ),
    ] = 524_288
    micro_batch: Annotated[int, knobs.micro_batch("sequences", most=4_096)] = 0
    grad_accum: knobs.GradAccum = 0
    seq_len: Annotated[
        int, Knob(8, LONGEST, scale="log", cost="shape", unit="tokens", description="tokens of a sequence")
    ] = 1024

    lr: knobs.LearningRate = 6e-4
    schedule: knobs.Schedule = "cosine"
    warmup: knobs.WarmUp = 0.02
    warmup_steps: knobs.WarmUpSteps = 0
    cooldown: knobs.CoolDown = 0.2
    final_lr: knobs.FinalRate = 0.1
    weight_decay: Annotated[float, Knob(0.0, 1.0, description="weight decay of AdamW")] = 0.1
    grad_clip: knobs.GradientClip = 1.0
    optimizer: knobs.Optimizer = "adamw"

    precision: Annotated[str, knobs.precision(*PRECISIONS)] = "auto"
    compile: knobs.Compile = "auto"
    checkpointing: knobs.Checkpointing = False

    d_model: knobs.Width = 768
    layers: knobs.Layers = 12
    heads: knobs.Heads = 6

    tokenizer: str = "bpe"
    vocab_size: int = 50_304
    corpus_mb: float = 0.0
    eval_tokens: int = 1 << 20

    @property
    def samples(self) -> int:
        """Sequences of one step, of all ranks together."""
        return max(1, self.batch_tokens // self.seq_len)

    @property
    def step_tokens(self) -> int:
        """Tokens of one step as it is computed: `batch_tokens` in whole sequences."""
        return self.samples * self.seq_len

    def share(self, rank: int, world: int) -> range:
        """The sequences of a step that a rank computes; shares differ by one at most."""
        return range(rank * self.samples // world, (rank + 1) * self.samples // world)

    def check(self, world: int) -> None:
        """Refuse sizes that do not fit together.

        Raises:
            ValueError: one sentence that begins with the name of a knob.
        """
        if self.d_model % (2 * self.heads):
            raise ValueError(
                f"d_model = {self.d_model} must be an even multiple of heads = {self.heads}: positions "
                "turn pairs"
            )
        if 0 < self.batch_tokens < world * self.seq_len and world > 1:
            raise ValueError(
                f"batch_tokens = {self.batch_tokens} is less than one sequence of {self.seq_len} for each "
                f"of {world} ranks"
            )


def check_sharded(config: LMConfig, world: int) -> None:
    """Refuse a batch that ranks with shards of a model cannot share: they compute as many pieces.

    Raises:
        ValueError: one sentence that begins with the name of a knob.
    """
    if config.batch_tokens and config.samples % world:  # an automatic batch is chosen to fit
        raise ValueError(
            f"batch_tokens = {config.batch_tokens}: with --shard its {config.samples} sequences must be a "
            f"multiple of the {world} ranks"
        )


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {
        "batch_tokens": 512,
        "micro_batch": 8,
        "seq_len": 64,
        "lr": 3e-3,
        "d_model": 64,
        "layers": 2,
        "heads": 2,
        "tokenizer": "bytes",
        "vocab_size": 384,
        "corpus_mb": 2.0,
        "eval_tokens": 16_384,
    },
    "124m": {},
    "350m": {"lr": 3e-4, "d_model": 1024, "layers": 24, "heads": 8},
    "760m": {"lr": 2.5e-4, "d_model": 1536, "layers": 24, "heads": 12, "seq_len": 2048},
}
"""Where a preset differs from the defaults of `LMConfig`, which are those of `124m`.

Heads are 128 wide, not GPT-2's 64: as many FLOPs, and the attention kernels of Hopper are faster with them.
"""


def preset_config(name: str) -> LMConfig:
    """The config of a preset."""
    return LMConfig(**PRESETS[name])
