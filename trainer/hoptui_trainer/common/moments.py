"""Moments of an optimizer in float32 or in 8 bits, and copies from one format to the other.

Torchao keeps a moment in 8 bits as `codes` (uint8, the shape of the weights), a `scale` for each block of
numbers, and `qmap` (256,), what each code stands for. Checkpoints hold these three as plain tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

PARTS = ("codes", "scale", "qmap")


def packed(moments: Mapping[str, Tensor]) -> dict[str, Any]:
    """The state of one parameter in plain tensors."""
    return {name: _parts(value) if _in_8_bits(value) else value for name, value in moments.items()}


def copy_moment(own: Tensor, theirs: Tensor | Mapping[str, Tensor]) -> None:
    """Copy a moment into `own`, from a tensor or from what `packed` made of it. In one format every bit stays
    the same."""
    if isinstance(theirs, Tensor) and not _in_8_bits(theirs):
        own.copy_(theirs.to(own.device))
        return
    parts = theirs if isinstance(theirs, Mapping) else _parts(theirs)
    if _in_8_bits(own):
        for name, part in _parts(own).items():
            part.copy_(parts[name])
    else:
        blocks = parts["qmap"][parts["codes"].int()].view(len(parts["scale"]), -1)
        own.copy_((blocks * parts["scale"][:, None]).view(own.shape))


def _in_8_bits(value: Tensor) -> bool:
    return hasattr(value, "codes")


def _parts(value: Any) -> dict[str, Tensor]:
    return {name: getattr(value, name) for name in PARTS}
