"""Environments in a graph: many replayed steps are, bit for bit, as many eager ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.cuda_graphs import CudaRecorder
from hoptui_trainer.ppo.envs.physics import Discrete
from hoptui_trainer.ppo.envs.registry import PHYSICS
from hoptui_trainer.ppo.envs.vector import VectorEnv
from hoptui_trainer.ppo.episodes import Episodes
from tests.trainer.gpu.small import assert_near

KEY = counter_rng.key(0, "actions")
COUNT = 1024
STEPS = 1200
"""More than the longest episode takes twice."""
CPU = torch.device("cpu")


def actions(env: VectorEnv, step: int) -> Tensor:
    unit = counter_rng.uniform(KEY, env.index, step)
    wanted = env.task.actions
    if isinstance(wanted, Discrete):
        return (unit[:, 0] * wanted.choices).long()
    return unit.expand(-1, wanted.size) * 4 - 2


@pytest.mark.parametrize("name", PHYSICS)
def test_replayed_steps_are_eager_steps(name: str, device: torch.device) -> None:
    captured, eager = (VectorEnv(PHYSICS[name], COUNT, 0, device, staggered=True) for _ in range(2))
    episodes, followed = Episodes(captured), Episodes(eager)
    action = actions(captured, 0).clone()
    last = [torch.empty(0)] * 5

    def step() -> None:
        taken = captured.step(action)
        episodes.follow(taken)
        last[:] = taken

    recorder = CudaRecorder(device)
    recorder.warm_up(step)
    followed.follow(eager.step(action))
    replay = recorder.capture(step)
    same = torch.ones((), dtype=torch.bool, device=device)
    ended = torch.zeros((), dtype=torch.int64, device=device)
    for number in range(1, STEPS):
        action.copy_(actions(captured, number))
        replay()
        wanted = eager.step(action)
        followed.follow(wanted)
        ended += (wanted.terminated | wanted.truncated).sum()
        for one, other in zip(last, wanted, strict=True):
            same &= (one == other).all()
    assert bool(same)
    assert int(ended) > COUNT
    for field, value in eager.state_dict().items():
        assert torch.equal(captured.state_dict()[field], value), field
    assert int(captured.counter) == STEPS
    assert torch.equal(episodes.take(), followed.take())


@pytest.mark.parametrize("name", PHYSICS)
def test_a_gpu_begins_as_a_cpu_and_steps_as_it_does(name: str, device: torch.device) -> None:
    host, there = (VectorEnv(PHYSICS[name], COUNT, 3, where, staggered=True) for where in (CPU, device))
    assert_near(there.state, host.state, 1e-6)
    assert torch.equal(there.age.cpu(), host.age)
    for number in range(3):
        action = actions(host, number)
        wanted, found = host.step(action), there.step(action.to(device))
        assert_near(found.obs, wanted.obs, 1e-4)
        assert_near(found.reward, wanted.reward, 1e-4)
