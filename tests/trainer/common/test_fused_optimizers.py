"""AdamW takes a step in one fused kernel in every workload."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from hoptui_trainer.common.optimizer import make_optimizer as of_lm_and_vision
from hoptui_trainer.ppo.optimizer import make_optimizer as of_ppo

CPU = torch.device("cpu")
MAKERS: dict[str, Callable[[nn.Linear], torch.optim.Optimizer]] = {
    "lm and vision": lambda layer: of_lm_and_vision("adamw", [{"params": [*layer.parameters()]}], CPU),
    "ppo": lambda layer: of_ppo(layer, 1e-3, CPU),
}


@pytest.mark.parametrize("workload", MAKERS)
def test_every_workload_takes_its_steps_in_one_fused_kernel(workload: str) -> None:
    layer = nn.Linear(3, 2)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = MAKERS[workload](layer)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
        optimizer.step()
    calls = {event.key: event.count for event in found.key_averages()}
    assert calls.get("aten::_fused_adamw_") == 1
    assert "aten::addcdiv_" not in calls
