"""What a vision run can be told: its knobs, declared once, and presets by model size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from hoptui import Knob
from trainer.common.modes import COMPILE_MODES, PRECISIONS


@dataclass(kw_only=True)
class VisionConfig:
    """The values of one run. Fields with a `Knob` are command-line options and can change while the run goes on.

    `batch_size` decides what is learned, `micro_batch` and `grad_accum` only how it is computed: one follows from the
    other, and the gradient is that of the whole batch. A `micro_batch` of 0 and `auto` are settled when training starts.
    """

    batch_size: Annotated[
        int,
        Knob(1, 1 << 20, scale="log", unit="images", description="images of one step, on all GPUs together"),
    ] = 1024
    micro_batch: Annotated[
        int,
        Knob(
            0,
            1 << 16,
            scale="log",
            effect="speed",
            cost="shape",
            keeps="grad_accum × micro_batch",
            description="images that a GPU computes at once; 0 chooses by measurement",
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

    lr: Annotated[float, Knob(1e-6, 1e-1, scale="log", description="highest learning rate of AdamW")] = 1e-3
    warmup: Annotated[
        float, Knob(0.0, 0.9, description="part of the iterations in which the learning rate rises")
    ] = 0.05
    final_lr: Annotated[
        float, Knob(0.0, 1.0, description="learning rate at the end, as a part of the highest")
    ] = 0.0
    weight_decay: Annotated[float, Knob(0.0, 1.0, description="weight decay of the matrices")] = 0.05
    grad_clip: Annotated[
        float, Knob(0.0, 100.0, description="greatest norm of a step's gradient; 0 does not clip")
    ] = 1.0

    num_workers: Annotated[
        int,
        Knob(0, 256, effect="speed", cost="rebuild", description="processes that read images from a folder"),
    ] = 8
    prefetch_factor: Annotated[
        int,
        Knob(
            1,
            64,
            effect="speed",
            cost="rebuild",
            description="chunks of 32 images that each process is ahead",
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

    precision: Annotated[
        str,
        Knob(
            choices=("auto", *(p for p in PRECISIONS if p != "fp8")),
            effect="speed",
            cost="rebuild",
            description="of the matrix products",
        ),
    ] = "auto"
    compile: Annotated[
        str,
        Knob(choices=("auto", *COMPILE_MODES), effect="speed", cost="rebuild", description="torch.compile"),
    ] = "auto"

    image_size: int = 224
    patch_size: int = 16
    d_model: int = 768
    layers: int = 12
    heads: int = 12

    def pieces(self, largest_share: int) -> int:
        """Pieces that so many images are computed in."""
        return -(-largest_share // max(1, self.micro_batch))

    def largest_share(self, world: int) -> int:
        """The images of a step that fall to the rank that has most."""
        return -(-self.batch_size // world)


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
}
"""Where a preset differs from the defaults of `VisionConfig`, which are those of `vit-b`; names of Dosovitskiy et al."""


def preset_config(name: str) -> VisionConfig:
    """The config of a preset."""
    return VisionConfig(**PRESETS[name])
