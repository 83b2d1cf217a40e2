"""What a language-model run can be told: its knobs, declared once, and presets by model size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from hoptui import Knob
from trainer.common.modes import COMPILE_MODES, PRECISIONS

SCHEDULES = ("cosine", "onecycle", "wsd", "constant")
VOCABULARY_MULTIPLE = 128
"""The table of embeddings has a multiple of so many rows: tensor cores want even tiles (nanoGPT's 50,304)."""
LONGEST = 8_192
"""Tokens of the longest sequence that the table of rotations is made for."""


@dataclass(kw_only=True)
class LMConfig:
    """The values of one run. Fields with a `Knob` are command-line options and can change while the run goes on.

    `batch_tokens` decides what is learned, `micro_batch` and `grad_accum` only how it is computed: one follows from the
    other, and the gradient is that of the whole batch. A `micro_batch` of 0 and `auto` are settled when training starts.
    """

    batch_tokens: Annotated[
        int,
        Knob(1, 1 << 24, scale="log", unit="tokens", description="tokens of one step, on all GPUs together"),
    ] = 524_288
    micro_batch: Annotated[
        int,
        Knob(
            0,
            4_096,
            scale="log",
            effect="speed",
            cost="shape",
            keeps="grad_accum × micro_batch",
            description="sequences that a GPU computes at once; 0 chooses by measurement",
        ),
    ] = 0
    grad_accum: Annotated[
        int,
        Knob(
            0,
            1 << 16,
            scale="log",
            effect="speed",
            cost="shape",
            keeps="grad_accum × micro_batch",
            description="pieces that a GPU computes its part of a step in; 0 follows from micro_batch",
        ),
    ] = 0
    seq_len: Annotated[
        int, Knob(8, LONGEST, scale="log", cost="shape", unit="tokens", description="tokens of a sequence")
    ] = 1024

    lr: Annotated[float, Knob(1e-6, 1e-1, scale="log", description="highest learning rate of AdamW")] = 6e-4
    schedule: Annotated[str, Knob(choices=SCHEDULES, description="course of the learning rate")] = "cosine"
    warmup: Annotated[
        float, Knob(0.0, 0.9, description="part of the iterations in which the learning rate rises")
    ] = 0.02
    cooldown: Annotated[
        float, Knob(0.01, 1.0, description="part of the iterations in which it falls at the end, with wsd")
    ] = 0.2
    final_lr: Annotated[
        float, Knob(0.0, 1.0, description="learning rate at the end, as a part of the highest")
    ] = 0.1
    weight_decay: Annotated[float, Knob(0.0, 1.0, description="weight decay of AdamW")] = 0.1
    grad_clip: Annotated[
        float, Knob(0.0, 100.0, description="greatest norm of a step's gradient; 0 does not clip")
    ] = 1.0

    precision: Annotated[
        str,
        Knob(
            choices=("auto", *PRECISIONS),
            effect="speed",
            cost="rebuild",
            description="of the matrix products",
        ),
    ] = "auto"
    compile: Annotated[
        str,
        Knob(choices=("auto", *COMPILE_MODES), effect="speed", cost="rebuild", description="torch.compile"),
    ] = "auto"
    checkpointing: Annotated[
        bool,
        Knob(
            effect="speed",
            cost="rebuild",
            description="compute activations twice instead of keeping them: less memory, a third more work",
        ),
    ] = False

    d_model: Annotated[
        int, Knob(16, 8_192, scale="log", cost="restart", description="width; weights start anew")
    ] = 768
    layers: Annotated[
        int, Knob(1, 128, scale="log", cost="restart", description="blocks; weights start anew")
    ] = 12
    heads: Annotated[
        int, Knob(1, 128, scale="log", cost="restart", description="attention heads; weights start anew")
    ] = 6

    tokenizer: str = "bpe"
    vocab_size: int = 50_304
    corpus_mb: float = 0.0
    eval_tokens: int = 1 << 20

    @property
    def sequences(self) -> int:
        """Sequences of one step, of all ranks together."""
        return max(1, self.batch_tokens // self.seq_len)

    @property
    def step_tokens(self) -> int:
        """Tokens of one step as it is computed: `batch_tokens` in whole sequences."""
        return self.sequences * self.seq_len

    def share(self, rank: int, world: int) -> range:
        """The sequences of a step that a rank computes; shares differ by one at most."""
        return range(rank * self.sequences // world, (rank + 1) * self.sequences // world)

    def largest_share(self, world: int) -> int:
        """The sequences of the rank that has most."""
        return -(-self.sequences // world)

    def pieces(self, world: int) -> int:
        """Pieces that the largest share is computed in."""
        return -(-self.largest_share(world) // max(1, self.micro_batch))

    def piece_for(self, grad_accum: int, world: int) -> int:
        """The micro-batch with which the largest share takes `grad_accum` pieces."""
        return -(-self.largest_share(world) // max(1, grad_accum))

    def check(self, world: int) -> None:
        """Refuse sizes that do not fit together.

        Raises:
            ValueError: one sentence that begins with the name of a knob.
        """
        if self.d_model % (2 * self.heads):
            raise ValueError(
                f"d_model = {self.d_model} must be an even multiple of heads = {self.heads}: positions turn pairs"
            )
        if self.batch_tokens < world * self.seq_len and world > 1:
            raise ValueError(
                f"batch_tokens = {self.batch_tokens} is less than one sequence of {self.seq_len} for each of {world} ranks"
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
