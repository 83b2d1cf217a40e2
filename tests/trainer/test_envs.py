"""The tensor environments are Gymnasium's, step for step."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from trainer.common.streams import stream
from trainer.ppo.envs.registry import PHYSICS
from trainer.ppo.envs.vector import Step, VectorEnv

STATES = 3000


def gym_env(name: str) -> Any:
    return gymnasium.make(name, disable_env_checker=True)


def gym_action(action: Tensor) -> Any:
    return int(action) if action.ndim == 0 else action.numpy()


def one_env(name: str, state: Any, dtype: torch.dtype = torch.float32) -> VectorEnv:
    env = VectorEnv(PHYSICS[name], 1, stream(0, "test"), staggered=False)
    env.state = torch.as_tensor(np.asarray(state), dtype=dtype)[None]
    return env


def random_states(name: str) -> Tensor:
    spread = {"CartPole-v1": (2.6, 3.0, 0.23, 3.0), "Pendulum-v1": (7.0, 8.0)}[name]
    unit = torch.rand(STATES, len(spread), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (unit * 2 - 1) * torch.tensor(spread, dtype=torch.float64)


def random_actions(name: str) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    if name == "CartPole-v1":
        return torch.randint(2, (STATES,), generator=generator)
    return torch.rand(STATES, 1, generator=generator) * 6 - 3  # beyond the limits on purpose


@pytest.mark.parametrize("name", sorted(PHYSICS))
def test_one_step_from_random_states_equals_gymnasium(name: str) -> None:
    physics = PHYSICS[name]
    states, actions = random_states(name).float(), random_actions(name)
    ours = physics.move(states, actions)
    seen = physics.observe(ours.state)
    reference = gym_env(name)
    reference.reset()
    ends = 0
    for i in range(STATES):
        reference.unwrapped.state = states[i].double().numpy()
        reference.unwrapped.steps_beyond_terminated = None
        obs, reward, terminated, _, _ = reference.unwrapped.step(gym_action(actions[i]))
        np.testing.assert_allclose(seen[i].numpy(), obs, rtol=0, atol=2e-6)
        assert float(ours.reward[i]) == pytest.approx(float(reward), abs=1e-5)
        assert bool(ours.terminated[i]) == terminated
        ends += terminated
    assert ends > 100 or name == "Pendulum-v1"


def balance(obs: Any) -> int:
    """A linear controller that keeps the pole up for ever."""
    return int(0.1 * obs[0] + 0.3 * obs[1] + 4.0 * obs[2] + 1.0 * obs[3] > 0)


@pytest.mark.parametrize(
    ("name", "policy", "truncations"),
    [("CartPole-v1", "balance", 2), ("CartPole-v1", "random", 0), ("Pendulum-v1", "random", 2)],
)
def test_whole_episodes_equal_gymnasium_to_the_last_step(name: str, policy: str, truncations: int) -> None:
    reference = gym_env(name)
    rng = np.random.default_rng(3)
    cut_off = 0
    for episode in range(2 if truncations else 20):
        obs, _ = reference.reset(seed=episode)
        env = one_env(name, reference.unwrapped.state, torch.float64)  # exact: rounding grows on the way
        for t in range(1, 10_000):
            if name == "Pendulum-v1":
                action: Any = rng.uniform(-2.5, 2.5, 1).astype(np.float32)
            else:
                action = balance(obs) if policy == "balance" else int(rng.integers(2))
            obs, reward, terminated, truncated, _ = reference.step(action)
            step = env.step(torch.as_tensor(np.asarray(action))[None])
            np.testing.assert_allclose(step.final_obs[0].numpy(), obs, rtol=0, atol=1e-5)
            assert float(step.reward[0]) == pytest.approx(float(reward), abs=1e-5)
            assert (bool(step.terminated[0]), bool(step.truncated[0])) == (terminated, truncated)
            if terminated or truncated:
                assert truncated == (t == PHYSICS[name].max_episode_steps)
                cut_off += truncated
                break
            np.testing.assert_array_equal(step.obs.numpy(), step.final_obs.numpy())
    assert cut_off == truncations


@pytest.mark.parametrize("name", sorted(PHYSICS))
def test_episodes_begin_where_gymnasium_begins_them(name: str) -> None:
    first = PHYSICS[name].initial(4000, stream(0, "test"))
    reference = gym_env(name)
    theirs = []
    for seed in range(300):
        reference.reset(seed=seed)
        theirs.append(reference.unwrapped.state)
    limit = {"CartPole-v1": [0.05] * 4, "Pendulum-v1": [math.pi, 1.0]}[name]
    for ours in (first.numpy(), np.array(theirs)):
        assert (np.abs(ours) <= limit).all()
        np.testing.assert_allclose(np.abs(ours).mean(0), np.array(limit) / 2, rtol=0.12)


def push_right(env: VectorEnv) -> Step:
    return env.step(torch.ones(env.num_envs, dtype=torch.int64))


def test_an_ended_episode_starts_anew_in_the_same_step_and_others_go_on() -> None:
    env = VectorEnv(PHYSICS["CartPole-v1"], 3, stream(0, "test"), staggered=False)
    env.state[1] = torch.tensor([2.399, 3.0, 0.0, 0.0])
    env.age[2] = 499
    step = push_right(env)
    assert step.terminated.tolist() == [False, True, False]
    assert step.truncated.tolist() == [False, False, True]
    assert step.final_obs[1, 0] > 2.4
    assert (step.obs[1:].abs() <= 0.05).all()
    assert env.age.tolist() == [1, 0, 0]
    torch.testing.assert_close(step.obs[0], step.final_obs[0], rtol=0, atol=0)


def test_a_task_that_ends_at_the_time_limit_is_terminated_and_not_truncated() -> None:
    env = VectorEnv(PHYSICS["CartPole-v1"], 1, stream(0, "test"), staggered=False)
    env.state[0] = torch.tensor([2.399, 3.0, 0.0, 0.0])
    env.age[0] = 499
    step = push_right(env)
    assert step.terminated.tolist() == [True]
    assert step.truncated.tolist() == [False]


def test_staggered_starts_spread_the_time_limits() -> None:
    env = VectorEnv(PHYSICS["CartPole-v1"], 2000, stream(0, "test"), staggered=True)
    assert env.age.min() >= 0
    assert env.age.max() < 500
    assert abs(float(env.age.float().mean()) - 250) < 15


def test_more_environments_keep_the_old_ones_and_stagger_the_new() -> None:
    env = VectorEnv(PHYSICS["CartPole-v1"], 4, stream(0, "test"), staggered=True)
    push_right(env)
    state, age = env.state.clone(), env.age.clone()
    assert env.resize(200) == 0
    torch.testing.assert_close(env.state[:4], state, rtol=0, atol=0)
    assert env.age[:4].tolist() == age.tolist()
    assert len(set(env.age[4:].tolist())) > 50
    assert push_right(env).obs.shape == (200, 4)


def test_fewer_environments_keep_the_first_and_count_the_dropped_episodes() -> None:
    env = VectorEnv(PHYSICS["CartPole-v1"], 4, stream(0, "test"), staggered=False)
    push_right(env)
    env.age[3] = 0  # this one has just begun: nothing is lost with it
    state = env.state[:2].clone()
    assert env.resize(2) == 1
    torch.testing.assert_close(env.state, state, rtol=0, atol=0)
    assert env.resize(2) == 0


@pytest.mark.parametrize("name", sorted(PHYSICS))
def test_no_environment_draws_from_the_global_generator(name: str) -> None:
    before = torch.get_rng_state()
    env = VectorEnv(PHYSICS[name], 8, stream(0, "test"), staggered=True)
    action = torch.zeros(8, dtype=torch.int64) if name == "CartPole-v1" else torch.zeros(8, 1)
    for _ in range(20):
        env.step(action)
    env.resize(16)
    assert torch.equal(torch.get_rng_state(), before)
