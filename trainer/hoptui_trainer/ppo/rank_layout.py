"""The environments of all ranks in one global order, so that a checkpoint suits any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

ENV_DIM = {"env": 0, "episodes": 0, "history": 1}
"""Where the environments are in the tensors of a collector's state."""


def joined(parts: list[dict[str, Tensor]], dim: int) -> dict[str, Tensor]:
    """The tensors of all ranks as those of one: environment i of rank r is number i · world + r along `dim`.

    0-d tensors are the same on every rank.
    """
    first = parts[0]
    return {
        name: torch.stack([part[name] for part in parts], dim + 1).flatten(dim, dim + 1)
        if first[name].ndim
        else first[name]
        for name in first
    }


def shared(whole: Mapping[str, Tensor], dim: int, rank: int, world: int) -> dict[str, Tensor]:
    """The part of one rank in tensors that were joined."""
    return {
        name: field.index_select(dim, torch.arange(rank, field.shape[dim], world)) if field.ndim else field
        for name, field in whole.items()
    }


def on_cpu(state: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """A collector's state as it travels."""
    return {part: {name: field.cpu() for name, field in fields.items()} for part, fields in state.items()}
