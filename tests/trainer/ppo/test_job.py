from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.modes import COMPILE_MODES, PRECISIONS
from hoptui_trainer.common.options import declared
from hoptui_trainer.ppo.config import PRESETS, RECIPES, PPOConfig, recipe
from hoptui_trainer.ppo.declarations import check_network
from hoptui_trainer.ppo.envs.registry import PHYSICS
from hoptui_trainer.ppo.job import PPOOptions, make_plan
from hoptui_trainer.ppo.policies.registry import POLICIES
from tests.golden import Golden


def held(**fields: Any) -> dict[str, Any]:
    """The part of a checkpoint that decides what is run."""
    config = dataclasses.asdict(dataclasses.replace(recipe("CartPole-v1"), **fields))
    return {"env": "CartPole-v1", "seed": 5, "name": "mine", "config": config}


def test_every_environment_has_a_recipe_within_its_knobs_bounds() -> None:
    assert set(RECIPES) == set(PHYSICS)
    for env in (*PHYSICS, "gymnasium:CartPole-v1"):
        for name, _, knob in declared(PPOConfig):
            knob.check(name, getattr(recipe(env), name))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_within_its_knobs_bounds(name: str) -> None:
    config = make_plan(PPOOptions(preset=name), None).config
    assert config != recipe("CartPole-v1")
    for knob_name, _, knob in declared(PPOConfig):
        knob.check(knob_name, getattr(config, knob_name))


def test_a_preset_wins_over_the_recipe_and_an_option_over_both() -> None:
    job = PPOOptions(env="Pendulum-v1", preset="tiny", knobs={"epochs": 5})
    config = make_plan(job, None).config
    assert (config.rollout_len, config.epochs, config.gamma) == (8, 5, 0.9)


def test_the_values_that_are_offered_are_those_that_the_trainer_knows() -> None:
    knobs = {name: knob for name, _, knob in declared(PPOConfig)}
    assert set(knobs["precision"].choices) <= {"auto", *PRECISIONS}
    assert knobs["compile"].choices == ("auto", *COMPILE_MODES)
    assert knobs["policy"].choices == POLICIES


def test_the_knobs_are_the_ones_that_were_agreed() -> None:
    found = {name: (knob.effect, knob.cost, knob.scale) for name, _, knob in declared(PPOConfig)}
    assert found == {
        "num_envs": ("learning", "shape", "log"),
        "rollout_len": ("learning", "shape", "log"),
        "env_workers": ("learning", "rebuild", "log"),
        "minibatch_size": ("learning", "shape", "log"),
        "epochs": ("learning", "free", "linear"),
        "grad_accum": ("speed", "shape", "log"),
        "lr": ("learning", "free", "log"),
        "clip_range": ("learning", "free", "linear"),
        "entropy_coef": ("learning", "free", "linear"),
        "gamma": ("learning", "free", "linear"),
        "gae_lambda": ("learning", "free", "linear"),
        "value_coef": ("learning", "free", "linear"),
        "max_grad_norm": ("learning", "free", "log"),
        "reward_scale": ("learning", "free", "log"),
        "precision": ("learning", "rebuild", "linear"),
        "compile": ("speed", "rebuild", "linear"),
        "checkpointing": ("speed", "rebuild", "linear"),
        "policy": ("learning", "restart", "linear"),
        "hidden": ("learning", "restart", "log"),
        "d_model": ("learning", "restart", "log"),
        "layers": ("learning", "restart", "log"),
        "heads": ("learning", "restart", "log"),
        "ff": ("learning", "restart", "log"),
        "context": ("learning", "restart", "linear"),
        "sequence_len": ("learning", "restart", "log"),
    }


def test_without_a_checkpoint_the_command_line_wins_over_the_recipe() -> None:
    plan = make_plan(PPOOptions(env="Pendulum-v1", knobs={"num_envs": 8}), None)
    assert (plan.env, plan.name, plan.seed, plan.notes) == ("Pendulum-v1", "ppo-pendulum", 0, ())
    assert (plan.config.num_envs, plan.config.rollout_len) == (8, 128)


def test_the_command_line_wins_over_the_checkpoint_and_that_over_the_recipe(golden: Golden) -> None:
    job = PPOOptions(knobs={"lr": 5e-4, "epochs": 7, "num_envs": 64})
    plan = make_plan(job, held(lr=2e-4, epochs=7, clip_range=0.3, num_envs=128))
    assert (plan.name, plan.seed) == ("mine", 5)
    config = plan.config
    assert (config.lr, config.epochs, config.clip_range, config.num_envs) == (5e-4, 7, 0.3, 64)
    golden("".join(f"{note}\n" for note in plan.notes))


@pytest.mark.parametrize(
    ("job", "saved", "named"),
    [
        (PPOOptions(preset="huge"), False, "--preset huge"),
        (PPOOptions(knobs={"policy": "lstm"}), False, "--policy"),
        (PPOOptions(knobs={"lr": float("nan")}), False, "--lr"),
        (PPOOptions(knobs={"num_envs": 0}), False, "--num-envs"),
        (PPOOptions(knobs={"grad_accum": 10**9}), True, "--grad-accum"),
        (PPOOptions(env="Pendulum-v1"), True, "--env Pendulum-v1"),
        (PPOOptions(seed=6), True, "--seed 6"),
        (PPOOptions(knobs={"policy": "tiny", "hidden": 256}), False, "--hidden"),
        (PPOOptions(knobs={"policy": "tiny", "hidden": 64}), True, "--hidden"),
        (PPOOptions(preset="tiny", knobs={"context": 64}), False, "--context"),
        (PPOOptions(preset="tiny", knobs={"sequence_len": 64}), True, "--sequence-len"),
        (PPOOptions(knobs={"d_model": 64}), False, "--d-model"),
        (PPOOptions(knobs={"checkpointing": True}), False, "--checkpointing"),
        (PPOOptions(knobs={"env_workers": 8}), False, "--env-workers"),
        (PPOOptions(env="Pendulum-v1", knobs={"env_workers": 0}), False, "--env-workers"),
        (PPOOptions(env="CartPole-NoVel", knobs={"hidden": 8}), False, "--hidden"),
        (PPOOptions(preset="h100-before", knobs={"heads": 7}), False, "--d-model"),
    ],
)
def test_what_cannot_be_is_told_by_the_name_of_its_option(job: PPOOptions, saved: bool, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(job, held() if saved else None)
    assert str(caught.value).startswith(named)
    assert "\n" not in str(caught.value)


def sizes(config: PPOConfig) -> tuple[int, ...]:
    return config.d_model, config.layers, config.heads, config.ff


def test_the_name_of_a_policy_is_a_preset_of_its_sizes() -> None:
    assert sizes(make_plan(PPOOptions(), None).config) == (0, 0, 0, 0)
    assert sizes(make_plan(PPOOptions(preset="h100-before"), None).config) == (256, 4, 8, 1024)
    given = PPOOptions(knobs={"policy": "tiny", "d_model": 48, "ff": 0})
    assert sizes(make_plan(given, None).config) == (48, 2, 2, 64)


def test_a_checkpoint_keeps_its_sizes_until_another_policy_is_asked_for() -> None:
    saved = held(policy="tiny", d_model=48, layers=2, heads=2, ff=64)
    plan = make_plan(PPOOptions(knobs={"layers": 3}), saved)
    assert sizes(plan.config) == (48, 3, 2, 64)
    assert [note.split()[0] for note in plan.notes] == ["policy", "d_model", "layers"]
    assert sizes(make_plan(PPOOptions(knobs={"policy": "h100-before"}), saved).config) == (256, 4, 8, 1024)
    assert sizes(make_plan(PPOOptions(knobs={"policy": "mlp"}), saved).config) == (0, 0, 0, 0)
    older = held(policy="h100-before")
    for name in ("d_model", "layers", "heads", "ff"):
        del older["config"][name]
    assert sizes(make_plan(PPOOptions(), older).config) == (256, 4, 8, 1024)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"hidden": 128, "policy": "tiny"}, "hidden"),
        ({"d_model": 48}, "d_model"),
        ({"policy": "tiny", "d_model": 0}, "d_model"),
        ({"policy": "tiny", "heads": 3}, "d_model"),
    ],
)
def test_a_network_that_cannot_be_is_refused_before_the_restart(wanted: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named}\b"):
        check_network(recipe("CartPole-v1"), wanted)
    check_network(recipe("CartPole-v1"), {"policy": "tiny", "d_model": 48, "context": 4})


@pytest.mark.parametrize(("every", "due"), [(0, []), (4, [4, 8, 10]), (1, list(range(1, 11)))])
def test_evaluations_are_due_every_few_iterations_and_after_the_last(every: int, due: list[int]) -> None:
    job = PPOOptions(iterations=10, evaluate_every=every)
    assert [i for i in range(1, 11) if job.evaluation_due(i)] == due
