from __future__ import annotations

import pytest
import torch
from torch import nn

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.init_rng import stream
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.envs.cartpole import CartPole
from hoptui_trainer.ppo.envs.pendulum import Pendulum
from hoptui_trainer.ppo.policies.mlp import MLP
from hoptui_trainer.ppo.policies.policy import Batch
from hoptui_trainer.ppo.policies.registry import make_policy

SPACES = [CartPole(), Pendulum()]


def new_mlp(spaces: CartPole | Pendulum, seed: int = 0, hidden: int = 64) -> MLP:
    return MLP(spaces, hidden, stream(seed, "policy weights"))


def linear(net: nn.Sequential, index: int) -> nn.Linear:
    layer = net[index]
    assert isinstance(layer, nn.Linear)
    return layer


@pytest.mark.parametrize("spaces", SPACES, ids=lambda s: s.id)
def test_what_it_did_is_judged_as_it_was_when_it_did_it(spaces: CartPole | Pendulum) -> None:
    policy = new_mlp(spaces)
    with torch.no_grad():
        linear(policy.actor, -1).weight.mul_(100)  # away from the uniform policy of the start
    obs = torch.randn(64, spaces.observation_size)
    first = torch.zeros(64, dtype=torch.bool)
    done = policy.act(obs, first, None, policy.noise(counter_rng.key(0, "test"), torch.arange(64), 0))
    row = (obs[:, None], first[:, None], done.action[:, None])
    judged = policy.judge(Batch(*row, *(torch.zeros(64, 1) for _ in range(3))))
    assert judged.log_prob.shape == judged.entropy.shape == judged.value.shape == (64, 1)
    torch.testing.assert_close(judged.log_prob[:, 0], done.log_prob)
    torch.testing.assert_close(judged.value[:, 0], done.value)
    torch.testing.assert_close(policy.value(obs[:, None], first[:, None]), done.value)
    best = policy.act(obs, first, None, None)
    assert torch.equal(best.action, policy.head.best(policy.actor(obs)))
    if isinstance(spaces, CartPole):
        assert best.log_prob.min() >= -torch.tensor(2.0).log() - 1e-6


@pytest.mark.parametrize("spaces", SPACES, ids=lambda s: s.id)
def test_together_actor_and_critic_say_and_learn_what_each_does_alone(spaces: CartPole | Pendulum) -> None:
    policy, g = new_mlp(spaces), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=g))  # biases, too
    obs = torch.randn(50, 1, spaces.observation_size, generator=g)
    alone = policy.actor(obs), policy.critic(obs)[..., 0]
    both = policy.together(obs)
    slopes = [torch.randn(said.shape, generator=g) for said in alone]
    learned = [*policy.actor.parameters(), *policy.critic.parameters()]
    gradients = [torch.autograd.grad(said, learned, slopes) for said in (alone, both)]
    torch.testing.assert_close(both, alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-5)
    # A checkpoint knows nothing of it, and parts of one tensor are added to a flat gradient in one kernel.
    assert {name.split(".")[0] for name in policy.state_dict()} <= {"actor", "critic", "head"}
    assert all(gradient.is_contiguous() for gradient in gradients[1])


@pytest.mark.parametrize("spaces", SPACES, ids=lambda s: s.id)
def test_one_seed_means_the_same_weights_and_the_global_generator_is_left_alone(
    spaces: CartPole | Pendulum,
) -> None:
    before = torch.get_rng_state()
    first, again, other = new_mlp(spaces), new_mlp(spaces), new_mlp(spaces, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    assert not torch.equal(linear(first.critic, 0).weight, linear(other.critic, 0).weight)


def test_hidden_layers_are_orthogonal_and_the_first_policy_is_nearly_uniform() -> None:
    policy = new_mlp(CartPole(), hidden=48)
    weight = linear(policy.actor, 2).weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(48), rtol=0, atol=1e-5)
    said = policy.actor(torch.randn(100, 4))
    assert float(policy.head.judge(said, torch.zeros(100, dtype=torch.int64))[1].min().detach()) > 0.69


def test_the_config_chooses_the_policy() -> None:
    wide = make_policy(PPOConfig(hidden=128), CartPole(), 0)
    assert isinstance(wide, MLP)
    assert linear(wide.actor, 2).weight.shape == (128, 128)
    assert wide.memory(4) is None
    assert wide.context == 1
    with pytest.raises(UsageError, match=r"--policy lstm: there is no such policy; there are mlp, tiny, "):
        make_policy(PPOConfig(policy="lstm"), CartPole(), 0)
