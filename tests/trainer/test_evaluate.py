from __future__ import annotations

from contextlib import closing

import pytest
import torch
from torch import Tensor

from trainer.common.streams import stream
from trainer.ppo.config import PPOConfig
from trainer.ppo.envs.registry import PHYSICS, find_task, make_env
from trainer.ppo.evaluate import SEED, evaluate
from trainer.ppo.policies.memory import Memory
from trainer.ppo.policies.mlp import MLP
from trainer.ppo.policies.policy import Choice, Policy
from trainer.ppo.policies.registry import make_policy

CPU = torch.device("cpu")


def evaluated(policy: Policy, env: str, episodes: int = 50) -> float:
    with closing(make_env(find_task(env), episodes, SEED, CPU, staggered=False)) as environments:
        return evaluate(policy, environments)


@pytest.mark.parametrize("policy", ["mlp", "tiny"])
def test_an_evaluation_is_repeatable_and_leaves_the_global_generator_alone(policy: str) -> None:
    config = PPOConfig(policy=policy, context=4)
    before = torch.get_rng_state()
    first, again, other = (
        evaluated(make_policy(config, PHYSICS["CartPole-v1"], seed), "CartPole-v1") for seed in (0, 0, 5)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again
    assert first != other


@pytest.mark.parametrize(("env", "worse_than"), [("CartPole-v1", 300.0), ("Pendulum-v1", -800.0)])
def test_an_untrained_policy_is_far_from_the_gates(env: str, worse_than: float) -> None:
    assert evaluated(make_policy(PPOConfig(), PHYSICS[env], 0), env) < worse_than


class Always(MLP):
    """Pushes right whatever it sees."""

    def act(self, obs: Tensor, first: Tensor, memory: Memory | None, noise: Tensor | None) -> Choice:
        assert noise is None
        zeros = torch.zeros(len(obs))
        return Choice(torch.ones(len(obs), dtype=torch.int64), zeros, zeros)


@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_an_evaluation_counts_whole_episodes_once(env: str) -> None:
    """Pushing one way drops the pole after 8 to 11 steps, wherever it starts; other episodes begin meanwhile."""
    policy = Always(PHYSICS["CartPole-v1"], 4, stream(0, "policy weights"))
    assert 8.0 <= evaluated(policy, env) <= 11.0


class Alternating(Policy):
    """Pushes right and left in turn, beginning each episode with right: for that it has to remember."""

    def __init__(self) -> None:
        super().__init__(PHYSICS["CartPole-v1"], context=2)

    def memory(self, num_envs: int, before: Memory | None = None) -> Memory:
        return Memory(1, num_envs, 1, self.context, 1, torch.float32, CPU)

    def act(self, obs: Tensor, first: Tensor, memory: Memory | None, noise: Tensor | None) -> Choice:
        assert memory is not None
        memory.advance(first)
        zeros = torch.zeros(len(obs))
        return Choice(1 - memory.age % 2, zeros, zeros)


def test_a_policy_remembers_within_an_episode() -> None:
    """Pushes that cancel out keep the pole up for longer than a push in one direction, and not for ever."""
    assert 20.0 < evaluated(Alternating(), "CartPole-v1") < 150.0
