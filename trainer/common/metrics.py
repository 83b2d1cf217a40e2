"""The metrics of an iteration on their way from the device to the run."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def measured(metrics: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor | float]:
    """The metrics as the run takes them: numbers on a CPU; on a GPU the tensors, which it reads one iteration late."""
    if device.type != "cpu":
        return dict(metrics)
    return dict(zip(metrics, torch.stack(tuple(metrics.values())).tolist(), strict=True))
