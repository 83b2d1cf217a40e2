from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hoptui_trainer.common.cuda_graphs import Graphs
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.gradient import Pieces
from hoptui_trainer.common.ranks import ALONE
from hoptui_trainer.ppo import loss as losses
from hoptui_trainer.ppo.coefficients import Coefficients
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.envs.registry import PHYSICS
from hoptui_trainer.ppo.loss import LOSS_METRICS, loss
from hoptui_trainer.ppo.minibatches import statistics_of
from hoptui_trainer.ppo.optimizer import make_optimizer
from hoptui_trainer.ppo.policies.policy import Batch, Policy
from hoptui_trainer.ppo.policies.registry import make_policy
from hoptui_trainer.ppo.policies.transformer import Transformer
from hoptui_trainer.ppo.rollout import Rollout
from hoptui_trainer.ppo.update import Update

CPU = torch.device("cpu")
CASES = [("CartPole-v1", "mlp"), ("Pendulum-v1", "mlp"), ("CartPole-NoVel", "tiny")]
SMALL: dict[str, Any] = {
    "num_envs": 7,
    "rollout_len": 12,
    "minibatch_size": 84,
    "context": 3,
    "sequence_len": 4,
}


def fresh_policy(env: str, config: PPOConfig) -> Policy:
    return make_policy(config, PHYSICS[env], 0)


def made_up_rollout(env: str, config: PPOConfig) -> Rollout:
    """A rollout of random numbers: what the update does with it does not depend on where it came from."""
    rollout = Rollout(
        PHYSICS[env],
        fresh_policy(env, config),
        config.rollout_len,
        config.num_envs,
        CPU,
        longest_sequence=config.sequence_len,
    )
    g = torch.Generator().manual_seed(5)
    for field in (rollout.obs, rollout.value, rollout.advantage):
        field.normal_(generator=g)
    torch.add(rollout.advantage, rollout.value, out=rollout.target)
    rollout.first.copy_(torch.rand(rollout.first.shape, generator=g) < 0.2)
    rollout.log_prob.fill_(-0.7)
    if rollout.action.dtype == torch.int64:
        rollout.action.random_(2, generator=g)
    else:
        rollout.action.normal_(generator=g)
    return rollout


class Trial:
    """A policy with all that its update needs."""

    def __init__(self, config: PPOConfig, env: str = "CartPole-v1", units: int = 1 << 20) -> None:
        self.config = config
        self.policy = fresh_policy(env, config)
        self.optimizer = make_optimizer(self.policy, config.lr, CPU)
        self.shrunk: list[tuple[int, int]] = []
        self.update = Update(
            self.policy,
            self.optimizer,
            Coefficients(config, CPU),
            seed=0,
            ranks=ALONE,
            graphs=Graphs(None),
            pieces=Pieces(units, CPU, ALONE, lambda *sizes: self.shrunk.append(sizes)),
            make_way=lambda: 0,
        )

    def run(self, rollout: Rollout, epoch: int = 0) -> dict[str, Tensor]:
        config = self.config
        return self.update.run(
            rollout, epochs=config.epochs, minibatch_size=config.minibatch_size, epoch=epoch
        )

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.policy.parameters()])


def small(policy: str = "mlp", **fields: Any) -> PPOConfig:
    return PPOConfig(**{**SMALL, "policy": policy, "epochs": 2, **fields})


@pytest.mark.parametrize(("env", "policy"), CASES)
@pytest.mark.parametrize("units", [1, 3, 5])
def test_a_minibatch_gives_the_same_result_however_it_is_cut(env: str, policy: str, units: int) -> None:
    config = small(policy, minibatch_size=32, entropy_coef=0.01)  # ragged last minibatch, ragged last piece
    rollout = made_up_rollout(env, config)
    whole, cut = Trial(config, env), Trial(config, env, units)
    before = whole.weights()
    one, many = whole.run(rollout), cut.run(rollout)
    assert float((whole.weights() - before).abs().max()) > 1e-3
    torch.testing.assert_close(cut.weights(), whole.weights(), rtol=0, atol=1e-5)
    for name, value in one.items():
        assert float(many[name]) == pytest.approx(float(value), abs=1e-5), name


def test_checkpointing_gives_the_same_gradient_and_keeps_less() -> None:
    config = small("tiny", layers=4, d_model=64, sequence_len=12, entropy_coef=0.01)
    rollout = made_up_rollout("CartPole-NoVel", config)
    found: list[Tensor] = []
    kept: list[int] = []
    for checkpointing in (False, True):
        trial, saved = Trial(config, "CartPole-NoVel"), dict[int, int]()
        assert isinstance(trial.policy, Transformer)
        trial.policy.checkpointing = checkpointing
        weights = {p.untyped_storage().data_ptr() for p in trial.policy.parameters()}

        def pack(x: Tensor, saved: dict[int, int] = saved, weights: set[int] = weights) -> Tensor:
            storage = x.untyped_storage()
            if storage.data_ptr() not in weights:
                saved[storage.data_ptr()] = storage.nbytes()
            return x

        index, scale = torch.arange(rollout.units), torch.tensor([0.1, 1.2, 1 / rollout.size])
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            total, _ = losses.gathered_loss(trial.policy, rollout, index, scale, Coefficients(config, CPU))
        trial.update.gradient.add(total)
        found.append(trial.update.gradient.flat.clone())
        kept.append(sum(saved.values()))
    assert float(found[0].abs().max()) > 1e-4
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-6)
    assert kept[1] < 0.5 * kept[0]


def test_advantages_are_normalised_over_the_minibatch_and_not_over_its_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small(minibatch_size=28, epochs=1)
    rollout = made_up_rollout("CartPole-v1", config)
    trial = Trial(config, units=5)
    seen: list[Tensor] = []

    def spy(policy: Policy, batch: Batch, scale: Tensor, coefficients: Coefficients) -> tuple[Tensor, Tensor]:
        mean, inverse_deviation, share = scale.tolist()
        assert share == pytest.approx(1 / 28)
        seen.append((batch.advantage - mean) * inverse_deviation)
        return loss(policy, batch, scale, coefficients)

    monkeypatch.setattr(losses, "loss", spy)
    trial.run(rollout)
    assert [len(part) for part in seen] == [5, 5, 5, 5, 5, 3] * 3
    for start in (0, 6, 12):
        minibatch = torch.cat(seen[start : start + 6])
        assert float(minibatch.mean()) == pytest.approx(0, abs=1e-6)
        assert float(minibatch.var(correction=0)) == pytest.approx(1, abs=1e-5)


def test_equal_advantages_are_scaled_to_nothing() -> None:
    config = small(value_coef=0.0, epochs=1)
    rollout = made_up_rollout("CartPole-v1", config)
    rollout.advantage.fill_(2.0)
    trial = Trial(config)
    before = trial.weights()
    metrics = trial.run(rollout)
    assert float(metrics["policy_loss"]) == pytest.approx(0, abs=1e-6)
    assert float((trial.weights() - before).abs().max()) < 1e-6


@pytest.mark.parametrize(("env", "policy"), CASES)
def test_metrics_are_means_over_all_samples(env: str, policy: str) -> None:
    config = small(policy, minibatch_size=84, epochs=1)
    rollout = made_up_rollout(env, config)
    judged = fresh_policy(env, config)
    batch = rollout.gather(torch.arange(rollout.units))
    with torch.no_grad():
        now = judged.judge(batch)
        log_ratio = now.log_prob - batch.log_prob
    metrics = Trial(config, env).run(rollout)
    assert metrics.keys() == {*LOSS_METRICS, "grad_norm", "explained_variance"}
    assert float(metrics["entropy"]) == pytest.approx(float(now.entropy.mean()), abs=1e-5)
    assert float(metrics["value_loss"]) == pytest.approx(
        0.5 * float((now.value - batch.target).square().mean()), rel=1e-4
    )
    assert float(metrics["approx_kl"]) == pytest.approx(
        float((log_ratio.exp() - 1 - log_ratio).mean()), rel=1e-4
    )
    explained = 1 - rollout.advantage.var() / rollout.target.var()
    assert float(metrics["explained_variance"]) == pytest.approx(float(explained), abs=1e-5)


def one_sample(old_log_prob: float) -> Batch:
    return Batch(
        torch.zeros(1, 1, 4),
        torch.ones(1, 1, dtype=torch.bool),
        torch.zeros(1, 1, dtype=torch.int64),
        torch.tensor([[old_log_prob]]),
        torch.tensor([[1.0]]),
        torch.zeros(1, 1),
    )


def test_a_ratio_beyond_the_clip_range_gives_the_policy_no_gradient() -> None:
    config = PPOConfig()
    policy = fresh_policy("CartPole-v1", config)
    gradient = FlatGradient(policy.parameters())
    bias = policy.get_parameter("actor.4.bias")
    now = float(policy.judge(one_sample(0.0)).log_prob.detach())
    for old, expected in ((now - 1.0, 0.0), (now, 1.0)):
        gradient.clear()
        total, figures = loss(
            policy, one_sample(old), torch.tensor([0.0, 1.0, 1.0]), Coefficients(config, CPU)
        )
        gradient.add(total)
        assert bias.grad is not None
        assert bool(bias.grad.any()) == (expected > 0)
        assert int(figures[-1]) == (expected == 0)


def test_a_coefficient_changed_in_place_changes_the_next_loss() -> None:
    config = PPOConfig()
    policy, numbers = fresh_policy("CartPole-v1", config), Coefficients(config, CPU)
    scale = torch.tensor([0.0, 1.0, 1.0])
    before, _ = loss(policy, one_sample(-0.7), scale, numbers)
    config.entropy_coef = 0.5
    tensor = numbers.entropy_coef
    numbers.fill(config)
    after, figures = loss(policy, one_sample(-0.7), scale, numbers)
    assert numbers.entropy_coef is tensor
    assert numbers.read("entropy_coef") == 0.5
    assert float((before - after).detach()) == pytest.approx(0.5 * float(figures[2]))


def test_the_update_moves_in_proportion_to_the_learning_rate() -> None:
    moved = []
    for lr in (1e-4, 1e-2):
        config = small(lr=lr, epochs=1)
        trial = Trial(config)
        before = trial.weights()
        trial.run(made_up_rollout("CartPole-v1", config))
        moved.append(float((trial.weights() - before).abs().max()))
    assert moved[1] == pytest.approx(100 * moved[0], rel=0.05)


def test_the_statistics_of_a_minibatch_are_of_the_samples_that_are_gathered() -> None:
    config = small("tiny", minibatch_size=16)
    rollout = made_up_rollout("CartPole-NoVel", config)
    trial = Trial(config, "CartPole-NoVel")
    dealt = trial.update.cut(rollout, config.minibatch_size)
    units = torch.arange(rollout.units - 1, -1, -1)
    scales = trial.update._scales(dealt, statistics_of(rollout, dealt, units, 1))
    assert len(scales) == dealt.count == 6  # 21 sequences, four to a minibatch
    for part, (mean, inverse_deviation, share) in zip(torch.split(units, 4), scales.tolist(), strict=True):
        advantage = rollout.gather(part).advantage
        assert mean == pytest.approx(float(advantage.mean()), abs=1e-6)
        assert inverse_deviation == pytest.approx(1 / float(advantage.std(correction=0)), rel=1e-4)
        assert share == pytest.approx(1 / advantage.numel())


def test_the_gradient_is_one_tensor_and_clipped_as_one() -> None:
    linear = torch.nn.Linear(3, 2)
    gradient = FlatGradient(linear.parameters())
    gradient.add(linear(torch.full((1, 3), 5.0)).sum())
    gradient.add(linear(torch.full((1, 3), 5.0)).sum())
    assert linear.weight.grad is not None
    assert linear.weight.grad.tolist() == [[10.0] * 3] * 2
    assert linear.weight.grad.data_ptr() == gradient.flat.data_ptr()
    before = gradient.flat.clone()
    length = gradient.clip(torch.tensor(1.0))
    assert float(length) == pytest.approx(float(before.norm()))
    assert float(gradient.flat.norm()) == pytest.approx(1.0, rel=1e-5)
    assert float(gradient.clip(torch.tensor(7.0))) == pytest.approx(1.0, rel=1e-5)
    assert float(gradient.flat.norm()) == pytest.approx(1.0, rel=1e-5)
    gradient.clear()
    assert not linear.weight.grad.any()
    assert math.isfinite(float(gradient.clip(torch.tensor(1.0))))
