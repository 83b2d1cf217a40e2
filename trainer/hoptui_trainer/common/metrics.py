"""The metrics of an iteration on their way from the device to the run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor


def measured(
    metrics: Mapping[str, Tensor], device: torch.device, rare: Collection[str] = ()
) -> dict[str, Tensor | float]:
    """The metrics as the run takes them: numbers on a CPU; on a GPU the tensors, which it reads one iteration
    late.

    `rare` metrics are NaN in iterations that have none. They are left out there, if that is known at once.
    """
    if device.type != "cpu":
        return dict(metrics)
    values = zip(metrics, torch.stack(tuple(metrics.values())).tolist(), strict=True)
    return {name: value for name, value in values if name not in rare or not math.isnan(value)}


class Finished(NamedTuple):
    """An iteration that has ended: how many there are with it, the units of work in all of them, its
    metrics."""

    iteration: int
    work: int
    metrics: Mapping[str, Tensor]


class DelayedMetrics:
    """Returns iterations whose metrics can be read without waiting: on a GPU one iteration late.

    There their copy to the host is queued behind their own iteration. To read them later, from where they
    are, would wait for all that was queued since: of two times between boundaries one would be too long and
    the other too short.
    """

    def __init__(self, device: torch.device) -> None:
        self._late = device.type != "cpu"
        self._copy: tuple[Finished, torch.Event] | None = None

    def ready(self, queued: Finished, *, due: bool) -> Finished | None:
        """The iteration to report now, if any. Called at the end of each iteration, after the clock has
        waited for the one before.

        `due` is true from when a report is due until it was made. Nothing is copied before.
        """
        if not self._late:
            return queued if due else None
        if self._copy is None:
            self._copy = _copied(queued) if due else None
            return None
        (finished, arrived), self._copy = self._copy, None
        arrived.synchronize()
        return finished


def _copied(queued: Finished) -> tuple[Finished, torch.Event]:
    """The same with metrics in pinned memory, which are there once the event has happened."""
    values = torch.stack(tuple(queued.metrics.values())).detach()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
    arrived = torch.Event(values.device)
    arrived.record()
    return queued._replace(metrics=dict(zip(queued.metrics, host, strict=True))), arrived
