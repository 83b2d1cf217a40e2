"""The knobs of a vision run, declared once, and presets by model size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from hoptui import Knob
from hoptui_trainer.common import knobs
from hoptui_trainer.common.options import option_name

DIGIT_SIZE = 8
"""Pixels of a digit's side."""
IN_MEMORY = ("digits", "synthetic")
"""Images that are made and not read."""
TUBELET = 2
"""Frames that a patch of a clip spans if nothing else is asked for."""
LOADING = ("num_workers", "prefetch_factor", "pin_memory")
"""Knobs of how images are read from a folder."""


@dataclass(kw_only=True)
class VisionConfig:
    """The values of one run. Fields with a `Knob` are command-line options and can change while the run goes
    on.

    `batch_size` decides what is learned, `micro_batch` and `grad_accum` only how it is computed: one follows
    from the other, and the gradient is that of the whole batch. A `micro_batch` of 0 and `auto` are chosen
    when training starts.
    """

    batch_size: Annotated[
        int,
        Knob(
            0,
            1 << 20,
            scale="log",
            cost="shape",
            unit="samples",
            description="images or clips of one step, on all GPUs together; 0 chooses by data and memory",
        ),
    ] = 1024
    micro_batch: Annotated[int, knobs.micro_batch("images or clips", most=1 << 16)] = 0
    grad_accum: knobs.GradAccum = 0

    lr: knobs.LearningRate = 1e-3
    schedule: knobs.Schedule = "cosine"
    warmup: knobs.WarmUp = 0.05
    warmup_steps: knobs.WarmUpSteps = 0
    cooldown: knobs.CoolDown = 0.2
    final_lr: knobs.FinalRate = 0.0
    weight_decay: Annotated[float, Knob(0.0, 1.0, description="weight decay of the matrices")] = 0.05
    grad_clip: knobs.GradientClip = 1.0
    optimizer: knobs.Optimizer = "adamw"

    num_workers: Annotated[
        int,
        Knob(0, 256, effect="speed", cost="rebuild", description="processes that read files from a folder"),
    ] = 8
    prefetch_factor: Annotated[
        int,
        Knob(
            1,
            64,
            effect="speed",
            cost="rebuild",
            description="chunks of 32 images or frames that each process is ahead",
        ),
    ] = 4
    pin_memory: Annotated[
        bool,
        Knob(
            effect="speed",
            cost="rebuild",
            description="page-locked memory, which a GPU copies from by itself",
        ),
    ] = True

    precision: Annotated[str, knobs.precision("fp32", "tf32", "bf16", "fp16")] = "auto"
    compile: knobs.Compile = "auto"
    checkpointing: knobs.Checkpointing = False

    d_model: knobs.Width = 768
    layers: knobs.Layers = 12
    heads: knobs.Heads = 12

    mlp_ratio: float = 4.0
    image_size: int = 224
    patch_size: int = 16
    frames: int = 1
    tubelet: int = 1

    @property
    def unit(self) -> str:
        """What a batch has, in the plural: images or clips."""
        return "clips" if self.frames > 1 else "images"

    @property
    def one(self) -> str:
        """One of them, with its article."""
        return "a clip" if self.frames > 1 else "an image"

    @property
    def patches(self) -> int:
        """Patches of an image or a clip: the tokens of the transformer."""
        return self.frames // self.tubelet * (self.image_size // self.patch_size) ** 2

    @property
    def attention_share(self) -> float:
        """The part of the FLOPs of the blocks that grows with the square of the patches: 12·d·T of 12·d·T +
        6·N, with N = (4 + 2 · mlp_ratio)·d² weights in a block."""
        return self.patches / (self.patches + (2 + self.mlp_ratio) * self.d_model)

    @property
    def samples(self) -> int:
        """Images or clips of one step, of all ranks together."""
        return self.batch_size

    def check(self, world: int) -> None:
        """Refuse sizes that do not fit together.

        Raises:
            ValueError: one sentence that begins with the name of a knob.
        """
        if 0 < self.batch_size < world:
            raise ValueError(f"batch_size = {self.batch_size}: {world} ranks need {self.one} each")
        if self.d_model % self.heads:
            raise ValueError(f"d_model = {self.d_model} must be a multiple of heads = {self.heads}")
        if self.frames % self.tubelet:
            raise ValueError(f"frames = {self.frames} must be a multiple of tubelet = {self.tubelet}")
        if self.image_size % self.patch_size:
            nearest = sorted(divisors(self.image_size), key=lambda size: abs(size - self.patch_size))[:2]
            raise ValueError(
                f"patch_size = {self.patch_size} does not divide image_size = {self.image_size}; "
                f"{' and '.join(map(str, sorted(nearest)))} do"
            )


def divisors(number: int) -> list[int]:
    """The positive whole numbers that divide `number`, from 1 on."""
    return [size for size in range(1, number + 1) if number % size == 0]


def many_patches(config: VisionConfig) -> str:
    """A sentence on images or clips of so many patches that attention takes more work than all else, with
    the options that help; empty for others."""
    if config.attention_share <= 0.5:
        return ""
    wider = (replace(config, patch_size=size) for size in divisors(config.image_size))
    deeper = (replace(config, tubelet=frames) for frames in divisors(config.frames))
    remedies = []
    for name, cuts in (("patch_size", wider), ("tubelet", deeper)):
        if cut := next((cut for cut in cuts if cut.attention_share <= 0.5), None):
            size, share = getattr(cut, name), cut.attention_share
            remedies.append(f"{option_name(name)} {size} makes {cut.patches:,} and {share:.0%}")
    much = f"attention takes {config.attention_share:.0%} of the FLOPs"
    return "; ".join((f"{config.patches:,} patches {config.one}: {much}", *remedies))


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {
        "batch_size": 128,
        "lr": 2e-3,
        "num_workers": 1,
        "image_size": 8,
        "patch_size": 4,
        "d_model": 64,
        "layers": 3,
        "heads": 4,
    },
    "vit-s": {"d_model": 384, "heads": 6},
    "vit-b": {},
    "vit-l": {"d_model": 1024, "layers": 24, "heads": 16, "batch_size": 512},
    "vit-g": {
        "d_model": 1408,
        "layers": 40,
        "heads": 16,
        "mlp_ratio": 6144 / 1408,
        "patch_size": 14,
        "batch_size": 256,
        "lr": 5e-4,
    },
}
"""Where a preset differs from the defaults of `VisionConfig`, which are those of `vit-b`.

`vit-b` and `vit-l` are those of Dosovitskiy et al. (arXiv:2010.11929, table 1). `vit-g` is g/14 of Zhai et
al. (arXiv:2106.04560, table 2), with 1.0 billion parameters.
"""


def preset_config(name: str) -> VisionConfig:
    """The config of a preset."""
    return VisionConfig(**PRESETS[name])
