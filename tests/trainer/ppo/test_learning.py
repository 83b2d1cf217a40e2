"""It learns what it should, by evaluations of whole episodes; and what is deliberately broken does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hoptui_trainer.ppo import rollout
from hoptui_trainer.ppo.gae import gae
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.report import PPOResult
from hoptui_trainer.ppo.train import train

pytestmark = pytest.mark.slow

SOLVED = {"CartPole-v1": 475.0, "CartPole-NoVel": 475.0, "Pendulum-v1": -200.0}
BUDGET = {"CartPole-v1": 80, "CartPole-NoVel": 45, "Pendulum-v1": 32}
"""Iterations: two to three times what the recipes need (15 to 35, 15 to 30, 12 to 16)."""
EVALUATE_EVERY = {"CartPole-v1": 5, "CartPole-NoVel": 4, "Pendulum-v1": 4}
SEEDS = {"CartPole-v1": (2, 1), "CartPole-NoVel": (2, 1), "Pendulum-v1": (0, 1)}
"""Of the first three, those that need the fewest iterations: the first has solved the task after 15, 16 and
12."""


def learned(env: str, seed: int, **fields: Any) -> PPOResult:
    job = PPOOptions(env=env, seed=seed, until_return=SOLVED[env], threads=1, **fields)
    return train(job, lambda _: None)


def after(iterations: int, env: str, **knobs: Any) -> float:
    """The return of the first evaluation, after so many iterations."""
    result = learned(env, 0, iterations=iterations, evaluate_every=iterations, knobs=knobs)
    assert (result.ending, result.iterations) == ("finished", iterations)
    assert result.evaluation_return is not None
    return result.evaluation_return


@pytest.mark.parametrize("env", SOLVED)
def test_one_of_two_seeds_solves_the_task_within_the_budget(env: str) -> None:
    returns = []
    for seed in SEEDS[env]:
        result = learned(env, seed, iterations=BUDGET[env], evaluate_every=EVALUATE_EVERY[env])
        if result.ending == "passed":
            return
        returns.append(result.evaluation_return)
    pytest.fail(f"evaluations {returns} after {BUDGET[env]} iterations")


def test_a_policy_without_a_memory_cannot_balance_what_it_does_not_see_move() -> None:
    """It stays at 44 from the fifth iteration on; with a memory it has 435 after these."""
    assert after(20, "CartPole-NoVel", policy="mlp") < 100


def reversed_in_time(*fields: Tensor, **factors: Any) -> Tensor:
    return gae(*(field.flip(0) for field in fields), **factors).flip(0)


def shuffled(*fields: Tensor, **factors: Any) -> Tensor:
    advantage = gae(*fields, **factors)
    order = torch.randperm(advantage.numel(), generator=torch.Generator().manual_seed(1))
    return advantage.flatten()[order].view_as(advantage)


@pytest.mark.parametrize("broken", [reversed_in_time, shuffled])
def test_broken_advantages_do_not_solve_the_task(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seeds have 9 to 72 after these iterations and no more after twice as many; unbroken, they have
    215 to 456."""
    monkeypatch.setattr(rollout, "gae", broken)
    assert after(15, "CartPole-v1") < 150
