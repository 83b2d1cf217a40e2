"""The workloads that cut their batches into pieces, as the tests here that are the same for both see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import hoptui
from hoptui_trainer.common.phases import phase_clock
from hoptui_trainer.lm.update import update as update_lm
from hoptui_trainer.vision.update import update as update_vision
from tests.trainer.gpu.small import lm_state, vision_state

CURVE = 1e-4
"""Nats a sample that two losses of a curve may be apart in fp32 where sums are made in another order."""


class Workload(NamedTuple):
    """How to make a state, to learn from a batch, and the name of what a state computes its forward passes
    with.

    `half` is how far losses in bf16, whose numbers have 8 bits, may be from those in fp32.
    """

    state: Callable[..., Any]
    update: Callable[..., dict[str, Tensor]]
    forward: str
    half: float

    def losses(self, state: Any, times: int = 4) -> Tensor:
        """The losses (times,) of as many steps."""
        clock = phase_clock(hoptui.connect("gpu"), state.device)
        return torch.stack([self.update(state, 1e-3, clock)["loss"] for _ in range(times)]).cpu()


WORKLOADS = {
    "lm": Workload(lm_state, update_lm, "forward", 0.02),
    "vision": Workload(vision_state, update_vision, "_losses", 0.05),
}
