"""What a checkpoint, or a state that becomes one, holds in tensors: all of them by path, to be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def tensors(state: Any, path: str = "") -> dict[str, Tensor]:
    """All tensors of a nested state, by path."""
    if isinstance(state, Tensor):
        return {path: state}
    children = (
        state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    )
    return {name: t for key, child in children for name, t in tensors(child, f"{path}/{key}").items()}


def assert_equal(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Two states have the same tensors, bit for bit."""
    ours, theirs = tensors(found), tensors(wanted)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 40
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
