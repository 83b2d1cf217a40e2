from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from trainer.common.streams import stream
from trainer.ppo.config import PPOConfig
from trainer.ppo.envs.registry import PHYSICS
from trainer.ppo.policy import ActorCritic
from trainer.ppo.rollout import Rollout
from trainer.ppo.update import add_gradient, make_optimizer, normalised, read_lr, set_lr, update

CPU = torch.device("cpu")


def made_up_rollout(env: str = "CartPole-v1", length: int = 10, num_envs: int = 7) -> Rollout:
    """A rollout of random numbers: what the update does with it does not depend on where it came from."""
    physics = PHYSICS[env]
    rollout = Rollout(physics, length, num_envs, CPU)
    g = torch.Generator().manual_seed(5)
    for field in (rollout.obs, rollout.value, rollout.advantage):
        field.normal_(generator=g)
    rollout.log_prob.fill_(-0.7)
    if env == "CartPole-v1":
        rollout.action.random_(2, generator=g)
    else:
        rollout.action.normal_(generator=g)
    return rollout


def updated(
    config: PPOConfig, env: str = "CartPole-v1", rollout: Rollout | None = None
) -> tuple[ActorCritic, dict[str, Any]]:
    policy = ActorCritic(PHYSICS[env], stream(0, "policy weights"))
    optimizer = make_optimizer(policy, config.lr, CPU)
    metrics = update(policy, optimizer, rollout or made_up_rollout(env), config, stream(0, "minibatch"))
    return policy, metrics


@pytest.mark.parametrize("env", sorted(PHYSICS))
@pytest.mark.parametrize("pieces", [2, 4, 5, 64])
def test_a_minibatch_has_the_same_gradient_however_it_is_cut(env: str, pieces: int) -> None:
    rollout, config = made_up_rollout(env), PPOConfig(entropy_coef=0.01)
    policy = ActorCritic(PHYSICS[env], stream(0, "policy weights"))
    advantage = normalised(rollout.advantage.flatten())
    whole = (
        rollout.obs.flatten(0, 1),
        rollout.action.flatten(0, 1),
        rollout.log_prob.flatten(),
        advantage,
        rollout.value.flatten(),
    )
    gradients, sums = [], []
    for parts in (1, pieces):
        policy.zero_grad()
        sums.append(
            sum(
                add_gradient(policy, config, 70, samples)
                for samples in zip(*(field.tensor_split(parts) for field in whole), strict=True)
            )
        )
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    assert float(gradients[0].norm()) > 0.1
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums[1], sums[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("minibatch", [70, 32, 30])  # whole, ragged last one, ragged pieces
def test_grad_accum_changes_no_result(minibatch: int) -> None:
    config = PPOConfig(minibatch_size=minibatch, epochs=3)
    one, one_metrics = updated(config)
    four, four_metrics = updated(dataclasses.replace(config, grad_accum=4))
    for before, after in zip(one.parameters(), four.parameters(), strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=1e-5)
    for name, value in one_metrics.items():
        assert float(four_metrics[name]) == pytest.approx(float(value), abs=1e-4), name


def test_advantages_are_normalised_over_the_minibatch_and_not_over_its_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def spy(advantage: torch.Tensor) -> torch.Tensor:
        seen.append(len(advantage))
        return normalised(advantage)

    monkeypatch.setattr("trainer.ppo.update.normalised", spy)
    updated(PPOConfig(minibatch_size=32, epochs=1, grad_accum=4))
    assert seen == [32, 32, 6]


def test_normalised_advantages_have_mean_0_and_variance_1() -> None:
    scaled = normalised(torch.tensor([3.0, 5.0, 10.0, -2.0]))
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-6)
    assert float(scaled.var(correction=0)) == pytest.approx(1, abs=1e-5)
    assert normalised(torch.tensor([4.0])).tolist() == [0.0]
    assert normalised(torch.full((5,), 2.0)).tolist() == [0.0] * 5


def test_a_minibatch_larger_than_the_batch_is_the_batch_and_the_config_says_so() -> None:
    config = PPOConfig(num_envs=7, rollout_len=10, minibatch_size=1000, grad_accum=100)
    assert (config.batch_size, config.minibatch_used, config.grad_accum_used) == (70, 70, 70)
    assert config.micro_batch == 1
    policy, metrics = updated(config)
    assert all(math.isfinite(float(value)) for value in metrics.values())
    assert all(bool(p.isfinite().all()) for p in policy.parameters())


def test_kl_and_clip_fraction_are_zero_where_the_policy_has_not_moved() -> None:
    rollout = made_up_rollout()
    policy = ActorCritic(PHYSICS["CartPole-v1"], stream(0, "policy weights"))
    with torch.no_grad():
        judged = policy.judge(rollout.obs.flatten(0, 1), rollout.action.flatten())
        rollout.log_prob.copy_(judged.log_prob.view(10, 7))
    _, metrics = updated(PPOConfig(epochs=1, minibatch_size=70), rollout=rollout)
    assert float(metrics["approx_kl"]) == pytest.approx(0, abs=1e-6)
    assert float(metrics["clip_fraction"]) == 0.0
    assert float(metrics["entropy"]) == pytest.approx(math.log(2), abs=1e-3)


def test_a_ratio_beyond_the_clip_range_gives_the_policy_no_gradient() -> None:
    policy = ActorCritic(PHYSICS["CartPole-v1"], stream(0, "policy weights"))
    obs, action = torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)
    now = float(policy.judge(obs, action).log_prob.detach())
    for old, expected in ((now - 1.0, 0.0), (now, 1.0)):
        policy.zero_grad()
        samples = (obs, action, torch.tensor([old]), torch.tensor([1.0]), torch.zeros(1))
        sums = add_gradient(policy, PPOConfig(), 1, samples)
        gradient = policy.get_parameter("actor.4.bias").grad
        assert gradient is not None
        assert bool(gradient.any()) == (expected > 0)
        assert int(sums[-1]) == (expected == 0)


def test_the_learning_rate_is_changed_in_the_optimizer_and_read_back_from_it() -> None:
    policy = ActorCritic(PHYSICS["CartPole-v1"], stream(0, "policy weights"))
    optimizer = make_optimizer(policy, 1e-3, CPU)
    tensor = optimizer.param_groups[0]["lr"]
    assert read_lr(optimizer) == 1e-3
    set_lr(optimizer, 2.5e-4)
    assert read_lr(optimizer) == 2.5e-4
    assert optimizer.param_groups[0]["lr"] is tensor


def test_the_update_moves_in_proportion_to_the_learning_rate() -> None:
    moved = []
    for lr in (1e-4, 1e-2):
        start = ActorCritic(PHYSICS["CartPole-v1"], stream(0, "policy weights"))
        policy, _ = updated(PPOConfig(lr=lr, epochs=1, minibatch_size=70))
        before, after = (net.get_parameter("actor.0.weight").detach() for net in (start, policy))
        moved.append(float((after - before).abs().max()))
    assert moved[1] == pytest.approx(100 * moved[0], rel=0.05)
