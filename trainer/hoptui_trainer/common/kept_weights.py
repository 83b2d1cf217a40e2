"""Weights that a model of another shape takes over from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn


class KeptWeights(NamedTuple):
    """How many of the `total` parameters of a model have the values of the checkpoint."""

    kept: int
    total: int

    def __str__(self) -> str:
        if not self.kept:
            return f"all {self.total:,} parameters start anew"
        if self.kept == self.total:
            return f"all {self.total:,} parameters are kept; the optimizer starts anew"
        return f"{self.kept:,} of {self.total:,} parameters are kept, the others start anew"


def keep_fitting(
    model: nn.Module,
    saved: Mapping[str, Tensor],
    copy: Callable[[str, nn.Parameter, Tensor], None] | None = None,
) -> KeptWeights:
    """Copy the parameters and buffers of `saved` whose name and shape `model` has. The others stay new.

    Args:
        model: it is changed in place.
        saved: the state of another model.
        copy: copies a parameter, given its name and the whole saved tensor; None for a plain copy.
    """
    kept = total = 0
    with torch.no_grad():
        for name, own in model.named_parameters():
            total += own.numel()
            theirs = saved.get(name)
            if theirs is None or theirs.shape != own.shape:
                continue
            kept += own.numel()
            if copy is None:
                own.copy_(theirs)
            else:
                copy(name, own, theirs)
        for name, buffer in model.named_buffers():
            theirs = saved.get(name)
            if theirs is not None and theirs.shape == buffer.shape:
                buffer.copy_(theirs)
    return KeptWeights(kept, total)
