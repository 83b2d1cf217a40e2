from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer.common.streams import stream
from trainer.ppo.envs.registry import PHYSICS
from trainer.ppo.policy import ActorCritic


def linear(net: nn.Sequential, index: int) -> nn.Linear:
    layer = net[index]
    assert isinstance(layer, nn.Linear)
    return layer


def new_policy(env: str, seed: int = 0) -> ActorCritic:
    policy = ActorCritic(PHYSICS[env], stream(seed, "policy weights"))
    with torch.no_grad():
        linear(policy.actor, -1).weight.mul_(100)  # away from the uniform policy of the start
    return policy


def test_categorical_log_probs_and_entropies_are_those_of_torch() -> None:
    policy = new_policy("CartPole-v1")
    obs = torch.randn(64, 4)
    action, log_prob = policy.act(obs, stream(0, "test"))
    known = torch.distributions.Categorical(logits=policy.actor(obs))
    judged = policy.judge(obs, action)
    for ours in (log_prob, judged.log_prob):
        torch.testing.assert_close(ours, known.log_prob(action))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(judged.entropy, known.entropy())  # type: ignore[no-untyped-call]


def test_gaussian_log_probs_and_entropies_are_those_of_torch() -> None:
    policy = new_policy("Pendulum-v1")
    log_std = policy.get_parameter("head.log_std")
    with torch.no_grad():
        log_std.fill_(-0.7)
    obs = torch.randn(64, 3)
    action, log_prob = policy.act(obs, stream(0, "test"))
    known = torch.distributions.Normal(policy.actor(obs), log_std.exp())
    judged = policy.judge(obs, action)
    for ours in (log_prob, judged.log_prob):
        torch.testing.assert_close(ours, known.log_prob(action).sum(-1))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(judged.entropy, known.entropy().sum(-1))  # type: ignore[no-untyped-call]


def test_actions_are_drawn_with_their_probabilities() -> None:
    policy = new_policy("CartPole-v1")
    logits = torch.tensor([[0.0, 1.0]]).expand(40_000, 2)
    action, _ = policy.head.sample(logits, stream(0, "test"))
    assert float(action.float().mean()) == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item(), abs=0.01)


@pytest.mark.parametrize("env", sorted(PHYSICS))
def test_the_same_seed_gives_the_same_weights_and_the_global_generator_is_left_alone(env: str) -> None:
    before = torch.get_rng_state()
    first, again, other = new_policy(env), new_policy(env), new_policy(env, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    assert not torch.equal(linear(first.critic, 0).weight, linear(other.critic, 0).weight)


def test_hidden_layers_are_orthogonal_and_the_first_policy_is_nearly_uniform() -> None:
    policy = ActorCritic(PHYSICS["CartPole-v1"], stream(0, "policy weights"))
    weight = linear(policy.actor, 2).weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(64), rtol=0, atol=1e-5)
    obs = torch.randn(100, 4)
    assert float(policy.judge(obs, torch.zeros(100, dtype=torch.int64)).entropy.min().detach()) > 0.69


def test_the_best_action_is_the_most_probable_one() -> None:
    obs = torch.randn(32, 4)
    policy = new_policy("CartPole-v1")
    assert torch.equal(policy.act_best(obs), policy.actor(obs).argmax(-1))
    torque = new_policy("Pendulum-v1")
    assert torch.equal(torque.act_best(obs[:, :3]), torque.actor(obs[:, :3]))
