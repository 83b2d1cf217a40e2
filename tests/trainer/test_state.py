from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import hoptui
from trainer.common.phases import HostClock
from trainer.ppo import memory
from trainer.ppo.config import PPOConfig
from trainer.ppo.envs.registry import PHYSICS
from trainer.ppo.state import TrainingState
from trainer.ppo.update import update

CPU = torch.device("cpu")


def small(env: str = "CartPole-v1", **fields: Any) -> TrainingState:
    config = PPOConfig(**{"num_envs": 6, "rollout_len": 4, "minibatch_size": 12, **fields})
    return TrainingState(PHYSICS[env], config, 0, CPU)


def tensors(state: Any, path: str = "") -> dict[str, Tensor]:
    """All tensors of a nested state, by path."""
    if isinstance(state, Tensor):
        return {path: state}
    children = (
        state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    )
    return {name: t for key, child in children for name, t in tensors(child, f"{path}/{key}").items()}


def test_growing_keeps_environments_and_fits_the_storage() -> None:
    state = small()
    kept = state.env.state.clone()
    state.config.num_envs = 20
    assert state.fit() == 0
    torch.testing.assert_close(state.env.state[:6], kept, rtol=0, atol=0)
    assert (state.rollout.length, state.rollout.num_envs) == (4, 20)


def test_shrinking_keeps_the_first_environments_and_tells_what_was_dropped() -> None:
    state = small()
    state.env.age[:] = torch.tensor([1, 2, 3, 4, 0, 6])
    kept = state.env.state[:2].clone()
    state.config.num_envs = 2
    assert state.fit() == 3
    torch.testing.assert_close(state.env.state, kept, rtol=0, atol=0)
    assert state.rollout.obs.shape == (4, 2, 4)


def test_a_longer_rollout_gets_its_storage_and_an_unchanged_one_keeps_it() -> None:
    state = small()
    before = state.rollout
    state.fit()
    assert state.rollout is before
    state.config.rollout_len = 9
    state.fit()
    assert state.rollout.size == 54


def test_a_size_beyond_the_free_memory_is_refused_and_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = small()
    env, rollout = state.env.state, state.rollout
    monkeypatch.setattr(memory, "free_bytes", lambda _: 1_000_000_000)
    state.config.num_envs, state.config.rollout_len = 65_536, 8_192
    with pytest.raises(
        MemoryError, match=r"65536 environments × 8192 steps.*about [\d.]+ GB, and 1\.0 GB are free"
    ):
        state.fit()
    assert state.env.state is env
    assert state.rollout is rollout
    state.config.num_envs, state.config.rollout_len = 6, 4
    monkeypatch.setattr(memory, "free_bytes", lambda _: 0)
    state.fit()  # the setting of before needs no more than it has


def test_a_micro_batch_beyond_the_free_memory_is_refused_until_it_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 500_000_000)
    large: dict[str, Any] = {"num_envs": 4096, "rollout_len": 64, "minibatch_size": 4096 * 64}
    with pytest.raises(MemoryError):
        small(**large)
    small(**large, grad_accum=8)


@pytest.mark.parametrize("env", sorted(PHYSICS))
def test_a_state_goes_through_a_dict_unchanged(env: str) -> None:
    state, other = small(env), small(env)
    state.iteration, state.env_steps, state.evaluation_return = 7, 168, 12.5
    state.rollout.collect(
        state.env, state.episodes, state.policy, state.streams["policy"], HostClock(hoptui.connect("test"))
    )
    state.rollout.estimate(state.policy, state.config)
    update(state.policy, state.optimizer, state.rollout, state.config, state.streams["minibatch"])
    assert other.load_state_dict(state.state_dict()) == 0
    assert (other.iteration, other.env_steps, other.evaluation_return) == (7, 168, 12.5)
    before, after = tensors(state.state_dict()), tensors(other.state_dict())
    assert before.keys() == after.keys()
    assert len(before) == 12 * 4 + 8 + (env == "Pendulum-v1") * 4
    for name, value in before.items():
        assert torch.equal(after[name], value), name


def test_a_state_of_another_size_is_fitted_to_the_config_that_loads_it() -> None:
    state, fewer = small(), small(num_envs=2, lr=5e-4)
    assert fewer.load_state_dict(state.state_dict()) == int((state.env.age[2:] > 0).sum())
    torch.testing.assert_close(fewer.env.state, state.env.state[:2], rtol=0, atol=0)
    assert float(fewer.optimizer.param_groups[0]["lr"]) == pytest.approx(5e-4)


def test_a_state_from_another_kind_of_device_begins_streams_of_its_own() -> None:
    saved = small().state_dict() | {"device": "cuda", "streams": {}, "iteration": 3}
    first, again, later = small(), small(), small()
    first.load_state_dict(saved)
    again.load_state_dict(saved)
    later.load_state_dict(saved | {"iteration": 4})
    drawn = [torch.rand(4, generator=state.streams["env"]).tolist() for state in (first, again, later)]
    assert drawn[0] == drawn[1] != drawn[2]
