from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from trainer.common.errors import UsageError
from trainer.common.options import declared
from trainer.ppo.config import RECIPES, PPOConfig, recipe
from trainer.ppo.envs.registry import PHYSICS
from trainer.ppo.job import Job, settle


def held(**fields: Any) -> dict[str, Any]:
    """The part of a checkpoint that decides what is run."""
    config = dataclasses.asdict(dataclasses.replace(recipe("CartPole-v1"), **fields))
    return {"env": "CartPole-v1", "seed": 5, "name": "mine", "config": config}


def test_every_environment_has_a_recipe_within_its_knobs_bounds() -> None:
    assert set(RECIPES) == set(PHYSICS)
    for env in RECIPES:
        for name, _, knob in declared(PPOConfig):
            knob.check(name, getattr(recipe(env), name))


def test_the_knobs_are_the_ones_that_were_agreed() -> None:
    found = {name: (knob.effect, knob.cost, knob.scale) for name, _, knob in declared(PPOConfig)}
    assert found == {
        "num_envs": ("learning", "shape", "log"),
        "rollout_len": ("learning", "free", "log"),
        "minibatch_size": ("learning", "shape", "log"),
        "epochs": ("learning", "free", "linear"),
        "grad_accum": ("speed", "free", "log"),
        "lr": ("learning", "free", "log"),
        "clip_range": ("learning", "free", "linear"),
        "entropy_coef": ("learning", "free", "linear"),
    }


def test_without_a_checkpoint_the_command_line_wins_over_the_recipe() -> None:
    plan = settle(Job(env="Pendulum-v1", knobs={"num_envs": 8}), None)
    assert (plan.env, plan.name, plan.seed, plan.notes) == ("Pendulum-v1", "ppo-pendulum", 0, ())
    assert (plan.config.num_envs, plan.config.rollout_len) == (8, 128)


def test_the_command_line_wins_over_the_checkpoint_and_that_over_the_recipe() -> None:
    job = Job(knobs={"lr": 5e-4, "epochs": 7, "num_envs": 64})
    plan = settle(job, held(lr=2e-4, epochs=7, clip_range=0.3, num_envs=128))
    assert (plan.name, plan.seed) == ("mine", 5)
    config = plan.config
    assert (config.lr, config.epochs, config.clip_range, config.num_envs) == (5e-4, 7, 0.3, 64)
    assert set(plan.notes) == {
        "lr = 0.0005 from --lr (the checkpoint has 0.0002)",
        "num_envs = 64 from --num-envs (the checkpoint has 128)",
        "epochs = 7 from --epochs (the default is 10)",
        "clip_range = 0.3 from the checkpoint (the default is 0.2)",
    }


@pytest.mark.parametrize(
    ("job", "saved", "named"),
    [
        (Job(env="Pong"), False, "--env Pong"),
        (Job(knobs={"lr": float("nan")}), False, "--lr"),
        (Job(knobs={"num_envs": 0}), False, "--num-envs"),
        (Job(knobs={"grad_accum": 10**9}), True, "--grad-accum"),
        (Job(env="Pendulum-v1"), True, "--env Pendulum-v1"),
        (Job(seed=6), True, "--seed 6"),
    ],
)
def test_what_cannot_be_is_told_by_the_name_of_its_option(job: Job, saved: bool, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        settle(job, held() if saved else None)
    assert str(caught.value).startswith(named)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("every", "due"), [(0, []), (4, [4, 8, 10]), (1, list(range(1, 11)))])
def test_evaluations_are_due_every_few_iterations_and_after_the_last(every: int, due: list[int]) -> None:
    job = Job(iterations=10, evaluate_every=every)
    assert [i for i in range(1, 11) if job.evaluation_due(i)] == due
