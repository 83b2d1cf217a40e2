"""The metrics of an iteration on their way from the device to the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


def measured(metrics: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor | float]:
    """The metrics as the run takes them: numbers on a CPU; on a GPU the tensors, which it reads one iteration late."""
    if device.type != "cpu":
        return dict(metrics)
    return dict(zip(metrics, torch.stack(tuple(metrics.values())).tolist(), strict=True))


class Finished(NamedTuple):
    """An iteration that has ended: how many there are with it, the units of work in all of them, its metrics."""

    iteration: int
    work: int
    metrics: Mapping[str, Tensor]


class Newest:
    """The newest iteration whose metrics can be read without waiting: on a GPU the one before the one just queued.

    To wait for that would drain the queue, and of two times between boundaries make one too long and one too short.
    """

    def __init__(self, device: torch.device) -> None:
        self._late = device.type != "cpu"
        self._before: Finished | None = None

    def of(self, queued: Finished) -> Finished | None:
        """Called at the end of each iteration. None as long as there is none."""
        self._before, before = queued, self._before
        return before if self._late else queued
