"""The tensor environments are Gymnasium's, step for step."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.ppo.envs.physics import Discrete
from hoptui_trainer.ppo.envs.registry import PHYSICS
from hoptui_trainer.ppo.envs.vector import Step, VectorEnv

pytestmark = pytest.mark.slow

STATES = 3000


GYMNASIUM = {"CartPole-NoVel": "CartPole-v1"}
"""What an environment is compared with, if not with its own name."""
SPREAD = {
    "CartPole-v1": (2.6, 3.0, 0.23, 3.0),
    "CartPole-NoVel": (2.6, 3.0, 0.23, 3.0),
    "Pendulum-v1": (7.0, 8.0),
    "Acrobot-v1": (math.pi, math.pi, 4 * math.pi, 9 * math.pi),
}
START = {
    "CartPole-v1": [0.05] * 4,
    "CartPole-NoVel": [0.05] * 4,
    "Pendulum-v1": [math.pi, 1.0],
    "Acrobot-v1": [0.1] * 4,
}


def gym_env(name: str) -> Any:
    return gymnasium.make(GYMNASIUM.get(name, name), disable_env_checker=True)


def gym_action(action: Tensor) -> Any:
    return int(action) if action.ndim == 0 else action.numpy()


def shown(name: str, obs: Any) -> Any:
    """What the policy sees of what Gymnasium shows."""
    return obs[..., ::2] if name == "CartPole-NoVel" else obs


def made(
    name: str, num_envs: int, *, seed: int = 0, ranks: RankGroup = ALONE, staggered: bool = False
) -> VectorEnv:
    return VectorEnv(PHYSICS[name], num_envs, seed, ranks=ranks, staggered=staggered)


def one_env(name: str, state: Any) -> VectorEnv:
    env = made(name, 1)
    # Exact: rounding grows on the way.
    env.state = torch.as_tensor(np.asarray(state), dtype=torch.float64)[None]
    return env


def random_actions(name: str, count: int = STATES) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    actions = PHYSICS[name].actions
    if isinstance(actions, Discrete):
        return torch.randint(actions.choices, (count,), generator=generator)
    return torch.rand(count, actions.size, generator=generator) * 6 - 3  # beyond the limits on purpose


@pytest.mark.parametrize("name", sorted(PHYSICS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_step_from_random_states_equals_gymnasium(name: str, dtype: torch.dtype) -> None:
    physics = PHYSICS[name]
    unit = torch.rand(STATES, physics.state_size, generator=torch.Generator().manual_seed(1), dtype=dtype)
    states = (unit * 2 - 1) * torch.tensor(SPREAD[name], dtype=dtype)
    actions = random_actions(name)
    ours = physics.move(states, actions)
    seen = physics.observe(ours.state)
    assert seen.dtype == ours.state.dtype == ours.reward.dtype == dtype
    reference = gym_env(name)
    reference.reset()
    # Acrobot's four stages at up to 28 rad/s make some hundred times the rounding error of one.
    close = 2e-6 if dtype == torch.float64 or name != "Acrobot-v1" else 1e-3
    found = []
    for state, action in zip(states.double().numpy(), actions, strict=True):
        reference.unwrapped.state = state
        reference.unwrapped.steps_beyond_terminated = None
        found.append(reference.unwrapped.step(gym_action(action))[:3])
    obs, reward, terminated = (np.array(column) for column in zip(*found, strict=True))
    np.testing.assert_allclose(seen.numpy(), shown(name, obs), rtol=0, atol=close)
    np.testing.assert_allclose(ours.reward.numpy(), reward, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(ours.terminated.numpy(), terminated)
    assert terminated.sum() > 100 or name == "Pendulum-v1"


def balance(obs: Any) -> int:
    """A linear controller that keeps the pole up for ever."""
    return int(0.1 * obs[0] + 0.3 * obs[1] + 4.0 * obs[2] + 1.0 * obs[3] > 0)


def swing(obs: Any) -> int:
    """Pushes the elbow the way it turns: the acrobot's end is up after some 80 steps."""
    return int(1 + np.sign(obs[5]))


@pytest.mark.parametrize(
    ("name", "policy", "truncations"),
    [
        ("CartPole-v1", "balance", 2),
        ("CartPole-v1", "random", 0),
        ("Pendulum-v1", "random", 2),
        ("Acrobot-v1", "random", 2),
        ("Acrobot-v1", "swing", 0),
    ],
)
def test_whole_episodes_equal_gymnasium_to_the_last_step(name: str, policy: str, truncations: int) -> None:
    reference = gym_env(name)
    rng = np.random.default_rng(3)
    cut_off = 0
    for episode in range(2 if truncations else 10):
        obs, _ = reference.reset(seed=episode)
        env = one_env(name, reference.unwrapped.state)
        for t in range(1, 10_000):
            if name == "Pendulum-v1":
                action: Any = rng.uniform(-2.5, 2.5, 1).astype(np.float32)
            elif policy == "random":
                action = int(rng.integers(reference.action_space.n))
            else:
                action = balance(obs) if policy == "balance" else swing(obs)
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
    first = made(name, 4000).state
    reference = gym_env(name)
    theirs = []
    for seed in range(300):
        reference.reset(seed=seed)
        theirs.append(reference.unwrapped.state)
    limit = START[name]
    for ours in (first.numpy(), np.array(theirs)):
        assert (np.abs(ours) <= limit).all()
        np.testing.assert_allclose(np.abs(ours).mean(0), np.array(limit) / 2, rtol=0.12)


def push(env: VectorEnv) -> Step:
    return env.step(torch.ones(env.num_envs, dtype=torch.int64))


def test_an_ended_episode_starts_anew_in_the_same_step_and_others_go_on() -> None:
    env = made("CartPole-v1", 3)
    env.state[1] = torch.tensor([2.399, 3.0, 0.0, 0.0])
    env.age[2] = 499
    assert env.first.tolist() == [True, True, True]
    step = push(env)
    assert step.terminated.tolist() == [False, True, False]
    assert step.truncated.tolist() == [False, False, True]
    assert env.first.tolist() == [False, True, True]
    assert step.final_obs[1, 0] > 2.4
    assert (step.obs[1:].abs() <= 0.05).all()
    assert env.age.tolist() == [1, 0, 0]
    torch.testing.assert_close(step.obs[0], step.final_obs[0], rtol=0, atol=0)
    torch.testing.assert_close(env.observation(), step.obs, rtol=0, atol=0)


def test_every_episode_begins_somewhere_else() -> None:
    env = made("CartPole-v1", 50)
    starts = [env.observation()]
    for _ in range(40):
        env.age.fill_(499)
        starts.append(push(env).obs)
    assert len(torch.stack(starts).flatten(0, 1).unique(dim=0)) == 41 * 50  # type: ignore[no-untyped-call]


def test_a_task_that_ends_at_the_time_limit_is_terminated_and_not_truncated() -> None:
    env = made("CartPole-v1", 1)
    env.state[0] = torch.tensor([2.399, 3.0, 0.0, 0.0])
    env.age[0] = 499
    step = push(env)
    assert step.terminated.tolist() == [True]
    assert step.truncated.tolist() == [False]


def test_staggered_starts_spread_the_time_limits() -> None:
    env = made("CartPole-v1", 2000, staggered=True)
    assert env.age.min() >= 0
    assert env.age.max() < 500
    assert abs(float(env.age.float().mean()) - 250) < 15
    assert env.first.all()


def test_steps_change_their_buffers_in_place_and_nothing_that_was_given_away() -> None:
    env = made("CartPole-v1", 4)
    buffers = (env.state, env.age, env.first, env.counter)
    places = [buffer.data_ptr() for buffer in buffers]
    given = [env.observation(), push(env).obs]
    before = [obs.clone() for obs in given]
    env.age.fill_(499)
    push(env)
    assert all(torch.equal(now, then) for now, then in zip(given, before, strict=True))
    env.load_state_dict(env.state_dict())
    assert (env.state, env.age, env.first, env.counter) == buffers
    assert [buffer.data_ptr() for buffer in buffers] == places
    assert int(env.counter) == 2


def test_more_environments_keep_the_old_ones_and_stagger_the_new() -> None:
    env = made("CartPole-v1", 4, staggered=True)
    push(env)
    state, age, first = env.state.clone(), env.age.clone(), env.first.clone()
    assert env.resize(200) == 0
    torch.testing.assert_close(env.state[:4], state, rtol=0, atol=0)
    assert env.age[:4].tolist() == age.tolist()
    assert env.first[:4].tolist() == first.tolist()
    assert env.first[4:].all()
    assert len(set(env.age[4:].tolist())) > 50
    assert push(env).obs.shape == (200, 4)


def test_fewer_environments_keep_the_first_and_count_the_dropped_episodes() -> None:
    env = made("CartPole-v1", 4, staggered=True)
    assert env.resize(3) == 0  # an age that was made up is no episode in progress
    env.age.zero_()
    push(env)
    env.age[2] = 499
    push(env)  # the third one has ended: nothing is lost with what has not begun
    state = env.state[:1].clone()
    assert env.resize(1) == 1
    torch.testing.assert_close(env.state, state, rtol=0, atol=0)
    assert env.resize(1) == 0


def played(env: VectorEnv, steps: int) -> Tensor:
    """The observations (steps, N, O) under actions that depend on them alone."""
    seen = []
    for _ in range(steps):
        obs = env.observation()
        score = (obs * 1e4).sum(-1)
        actions = env.task.actions
        if isinstance(actions, Discrete):
            action = score.to(torch.int64) % actions.choices
        else:
            action = score.sin()[:, None].expand(-1, actions.size)
        env.step(action)
        seen.append(obs)
    return torch.stack(seen)


@pytest.mark.parametrize("name", sorted(PHYSICS))
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_hold_the_environments_that_one_process_would_hold(name: str, world: int) -> None:
    whole = made(name, 4 * world, staggered=True)
    parts = [
        made(name, 4, ranks=RankGroup(rank, world, rank, world), staggered=True) for rank in range(world)
    ]
    for size in (4, 2, 5):  # also after all of them were resized
        whole.resize(size * world)
        for part in parts:
            part.resize(size)
        expected = played(whole, 60)
        for rank, part in enumerate(parts):
            assert part.index.tolist() == list(range(rank, size * world, world))
            torch.testing.assert_close(played(part, 60), expected[:, rank::world], rtol=0, atol=0)


def test_seeds_make_other_environments() -> None:
    runs = [played(made("CartPole-v1", 8, seed=seed, staggered=True), 30) for seed in (0, 1, 0)]
    assert not torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("num_envs", [6, 3])
def test_a_saved_environment_goes_on_where_it_was(num_envs: int) -> None:
    env = made("CartPole-v1", 6, staggered=True)
    played(env, 40)
    saved = env.state_dict()
    expected = played(env, 60)
    other = made("CartPole-v1", num_envs, staggered=True)
    other.load_state_dict(saved)
    torch.testing.assert_close(played(other, 60), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(PHYSICS))
def test_no_environment_draws_from_the_global_generator(name: str) -> None:
    before = torch.get_rng_state()
    env = made(name, 8, staggered=True)
    played(env, 20)
    env.resize(16)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", sorted(PHYSICS))
def test_a_step_can_be_compiled_without_a_break(name: str) -> None:
    eager, compiled = made(name, 8, staggered=True), made(name, 8, staggered=True)
    step = torch.compile(compiled.step, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        action = random_actions(name, 8)
        for ours, theirs in zip(step(action), eager.step(action), strict=True):
            torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(compiled.state_dict(), eager.state_dict())
