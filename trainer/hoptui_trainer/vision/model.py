"""The vision transformer of Dosovitskiy et al. 2021 with the mean pooling of Beyer et al. 2022: one size of
every matmul.

Without a class token, a 224 × 224 image in patches of 16 is 196 tokens and not 197, and every row of every
product is one token of one image.

A patch of a clip spans some frames: a tubelet, and all tubelets attend to each other (Arnab et al. 2021,
arXiv:2103.15691, sections 3.2 and 3.3). Patches are cut by reshaping and embedded by a matmul, so no
convolution runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hoptui_trainer.common.flops import transformer_flops
from hoptui_trainer.common.init_rng import stream


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What decides the sizes of the weights: images of `channels` × `image_size`², or clips of `frames` of
    them, and the transformer on their patches.

    A patch spans `tubelet` frames. `mlp_width` is the width between the two layers of each MLP.
    """

    image_size: int
    channels: int
    classes: int
    patch_size: int
    d_model: int
    layers: int
    heads: int
    mlp_width: int
    frames: int = 1
    tubelet: int = 1

    def __post_init__(self) -> None:
        if self.image_size % self.patch_size:
            raise ValueError(
                f"images of {self.image_size} pixels cannot be cut into patches of {self.patch_size}"
            )
        if self.frames % self.tubelet:
            raise ValueError(f"clips of {self.frames} frames cannot be cut into tubelets of {self.tubelet}")
        if self.d_model % self.heads:
            raise ValueError(f"a width of {self.d_model} cannot be shared by {self.heads} heads")

    @property
    def tokens(self) -> int:
        """Patches of one image or clip."""
        return self.steps * self.places

    @property
    def steps(self) -> int:
        """Patches one after another in time: 1 in an image."""
        return self.frames // self.tubelet

    @property
    def places(self) -> int:
        """Patches side by side."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def patch_values(self) -> int:
        """Numbers in one patch."""
        return self.tubelet * self.channels * self.patch_size**2


class ViTBlock(nn.Module):
    """Pre-norm attention and MLP, (N, T, d) → (N, T, d)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.d_model)
        self.qkv = nn.Linear(shape.d_model, 3 * shape.d_model)
        self.attention_out = nn.Linear(shape.d_model, shape.d_model)
        self.mlp_norm = nn.LayerNorm(shape.d_model)
        self.mlp_in = nn.Linear(shape.d_model, shape.mlp_width)
        self.mlp_out = nn.Linear(shape.mlp_width, shape.d_model)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.attention_norm(x))
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.attention_out(attended.transpose(1, 2).flatten(2))
        widened: Tensor = self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh"))
        return x + widened


class ViT(nn.Module):
    """Classifies uint8 images (N, C, H, W), or clips (N, F·C, H, W) with one frame after another: logits
    (N, classes), float32.

    With `checkpointing`, the backward pass computes the blocks again instead of keeping their activations.
    """

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.checkpointing = False
        with torch.device("meta"):  # torch's own initialisation would draw from its global generator
            self.patches_in = nn.Linear(shape.patch_values, shape.d_model)
            self.position = nn.Parameter(torch.empty(shape.places, shape.d_model))
            moments = nn.Parameter(torch.empty(shape.steps, shape.d_model))
            self.time_position = moments if shape.steps > 1 else None
            self.blocks = nn.ModuleList(ViTBlock(shape) for _ in range(shape.layers))
            self.norm = nn.LayerNorm(shape.d_model)
            self.head = nn.Linear(shape.d_model, shape.classes)
        self.to_empty(device="cpu")
        self._initialise(stream(seed, "vision weights"))
        # Counted once: each iteration asks for the FLOPs of a sample.
        matrices = (weight for name, weight in self.named_parameters() if is_matrix(name, weight))
        self._matrix_weights = sum(weight.numel() for weight in matrices)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches_in(patches(images, self.shape.patch_size, self.shape.steps))
        # In half precision the sum of all blocks stays in it: half the traffic.
        x = x + self.positions().to(x.dtype)
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits.float()  # softmax in half precision would cost accuracy

    def positions(self) -> Tensor:
        """What is added to the patches (T, d): one vector for the place, and in clips another for the
        time."""
        if self.time_position is None:
            return self.position
        return (self.time_position[:, None] + self.position).flatten(0, 1)

    def flops_per_sample(self) -> float:
        """FLOPs of training on one image or clip: 6·N for each of its tokens plus attention; the head sees
        one vector for all of them."""
        shape = self.shape
        head = shape.d_model * shape.classes
        each = self._matrix_weights - head
        return shape.tokens * transformer_flops(each, shape.layers, shape.d_model, shape.tokens) + 6 * head

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Normal weights of variance 1/inputs, residual branches smaller by √(2·layers), a head of zeros."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                deviation = module.in_features**-0.5
                if name.endswith("_out"):
                    deviation /= math.sqrt(2 * self.shape.layers)
                module.weight.normal_(0, deviation, generator=generator)
                module.bias.zero_()
            elif isinstance(module, nn.LayerNorm):
                module.weight.fill_(1)
                module.bias.zero_()
        # As large as the patches: the pooled sum knows no order.
        self.position.normal_(0, 1, generator=generator)
        self.head.weight.zero_()
        if self.time_position is not None:
            self.time_position.normal_(0, 1, generator=generator)


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter of a `ViT` is the matrix of a product, and not a position, a norm or a bias."""
    return parameter.ndim == 2 and not name.endswith("position")


def patches(images: Tensor, size: int, steps: int = 1) -> Tensor:
    """uint8 images (N, C, H, W) as patches (N, T, C·size²) with values from −1 to 1.

    Clips (N, F·C, H, W) are cut into as many `steps` in time: patches (N, T, F·C/steps·size²), those of the
    first step first.
    """
    count, channels, height, width = images.shape
    deep = channels // steps
    cut = images.view(count, steps, deep, height // size, size, width // size, size)
    flat = cut.permute(0, 1, 3, 5, 2, 4, 6).reshape(count, -1, deep * size * size)
    return flat.float() / 127.5 - 1
