"""What a policy says of its own actions when it learns is what it said when it acted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hoptui
from hoptui_trainer.common.phases import phase_clock
from hoptui_trainer.common.precision import autocast
from hoptui_trainer.ppo.policies.policy import Judgement
from hoptui_trainer.ppo.state import PPOState
from tests.trainer.gpu.small import assert_near, ppo_state

CASES = [
    ("CartPole-v1", {"policy": "mlp"}),
    ("Pendulum-v1", {"policy": "mlp"}),
    ("CartPole-NoVel", {"policy": "tiny", "context": 8}),
    ("Pendulum-v1", {"policy": "tiny", "context": 8}),
]
HALF = 0.05
"""How far log-probabilities may be apart in bf16, whose numbers have 8 bits: 0.4 % of logits of about 5,
twice over."""


def judged(state: PPOState) -> Judgement:
    """What the policy says of the whole second rollout, before any update."""
    with torch.no_grad():
        for name, parameter in state.policy.named_parameters():
            if name.startswith("actor"):
                parameter.mul_(20)  # far from uniform
    clock = phase_clock(hoptui.connect("gpu"), state.device)
    for _ in range(2):  # the second begins in the middle of episodes
        state.collector.collect(clock)
    state.collector.estimate()
    rollout = state.collector.batch()
    with torch.no_grad(), autocast(state.precision, state.device):
        return state.policy.judge(rollout.gather(torch.arange(rollout.units, device=state.device)))


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", HALF)])
@pytest.mark.parametrize(("env", "fields"), CASES)
def test_judge_finds_what_act_said(
    env: str, fields: dict[str, Any], precision: str, tolerance: float, device: torch.device
) -> None:
    state = ppo_state(device, env, num_envs=64, rollout_len=40, precision=precision, **fields)
    found, rollout = judged(state), state.collector.rollout
    said = rollout.gather(torch.arange(rollout.units, device=device))
    assert float(said.log_prob.std()) > 0.05
    assert_near(found.log_prob, said.log_prob, tolerance)
    # A value target is the advantage and the value that was said.
    assert_near(found.value, said.target - said.advantage, 10 * tolerance)
    assert found.log_prob.dtype == found.value.dtype == torch.float32


@pytest.mark.parametrize("policy", ["mlp", "tiny"])
def test_a_gpu_acts_as_a_cpu_does(policy: str, device: torch.device) -> None:
    kept = []
    for where in (device, torch.device("cpu")):
        state = ppo_state(where, "CartPole-NoVel", policy=policy, num_envs=64, rollout_len=16)
        state.collector.collect(phase_clock(hoptui.connect("gpu"), where))
        kept.append(state.collector.rollout)
    there, host = kept
    same = (there.action.cpu() == host.action).float().mean()
    assert same == 1.0
    assert_near(there.obs, host.obs, 1e-4)
    assert_near(there.log_prob, host.log_prob, 1e-4)
