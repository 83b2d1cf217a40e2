"""FP8 matrix products in the blocks, by torchao: tensorwise scaling, weights and optimizer as before."""

from __future__ import annotations

import dataclasses
from typing import TypeGuard

from torch import nn

from hoptui_trainer.common.torchao_library import torchao

MULTIPLE = 16
"""`torch._scaled_mm` takes matrices whose sizes are multiples of it."""


def fits(module: nn.Module, _: str = "") -> bool:
    """Whether a layer's products can be computed in FP8."""
    if not isinstance(module, nn.Linear):
        return False
    return module.in_features % MULTIPLE == 0 and module.out_features % MULTIPLE == 0


def to_float8(blocks: nn.Module, *, emulate: bool = False) -> None:
    """Let the linear layers of `blocks` compute in FP8; parameters stay the same objects.

    `emulate` does it with rounded float32 numbers, on any device, for tests.

    Raises:
        UsageError: torchao is not installed, or fits another torch.
    """
    library = torchao("float8", "--precision fp8", "--precision bf16")
    recipe = library.Float8LinearConfig.from_recipe_name("tensorwise")
    config = dataclasses.replace(recipe, emulate=emulate)
    library.convert_to_float8_training(blocks, config=config, module_filter_fn=fits)


def from_float8(blocks: nn.Module) -> None:
    """Undo `to_float8`."""
    for parent in list(blocks.modules()):
        for name, child in list(parent.named_children()):
            if _converted(child):
                plain = nn.Linear(child.in_features, child.out_features, bias=False, device="meta")
                plain.weight = child.weight
                setattr(parent, name, plain)


def float8_flops(blocks: nn.Module) -> float:
    """FLOPs for a token in layers that compute in FP8: two for a weight in each of three products, the one
    forward and the two backward. Tensorwise scaling has all three in FP8."""
    return 6.0 * sum(layer.weight.numel() for layer in blocks.modules() if _converted(layer))


def _converted(module: nn.Module) -> TypeGuard[nn.Linear]:
    return isinstance(module, nn.Linear) and type(module) is not nn.Linear
