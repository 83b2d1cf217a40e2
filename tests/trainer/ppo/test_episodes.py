from __future__ import annotations

import pytest
import torch

from hoptui_trainer.ppo.envs.registry import PHYSICS
from hoptui_trainer.ppo.envs.vector import Step, VectorEnv
from hoptui_trainer.ppo.episodes import Episodes


def followed(num_envs: int = 3) -> tuple[VectorEnv, Episodes]:
    env = VectorEnv(PHYSICS["CartPole-v1"], num_envs, seed=0, staggered=False)
    return env, Episodes(env)


def told(reward: list[float], ended: list[bool]) -> Step:
    obs, done = torch.zeros(len(reward), 4), torch.tensor(ended)
    return Step(obs, torch.tensor(reward), done, torch.zeros_like(done), obs)


def test_the_sum_is_of_the_episodes_that_ended_since_the_last_call() -> None:
    _, episodes = followed()
    episodes.follow(told([1.0, 2.0, 3.0], [False, False, True]))
    episodes.follow(told([1.0, 2.0, 3.0], [True, False, False]))
    first = episodes.take()
    assert first.tolist() == [5.0, 2.0]
    episodes.follow(told([1.0, 2.0, 3.0], [False, True, True]))
    assert episodes.take().tolist() == [12.0, 2.0]
    assert first.tolist() == [5.0, 2.0]


def test_without_an_ended_episode_nothing_is_counted() -> None:
    _, episodes = followed()
    episodes.follow(told([1.0, 1.0, 1.0], [False, False, False]))
    assert episodes.take().tolist() == [0.0, 0.0]


def test_a_truncated_episode_has_ended() -> None:
    _, episodes = followed()
    obs, never = torch.zeros(3, 4), torch.zeros(3, dtype=torch.bool)
    episodes.follow(Step(obs, torch.ones(3), never, torch.tensor([False, True, False]), obs))
    assert episodes.take().tolist() == [1.0, 1.0]


def test_episodes_with_a_made_up_age_are_left_out_and_the_next_ones_count() -> None:
    env, _ = followed()
    env.age[0] = 300
    episodes = Episodes(env)
    episodes.follow(told([1.0, 1.0, 1.0], [True, True, False]))
    assert episodes.take().tolist() == [1.0, 1.0]
    episodes.follow(told([5.0, 1.0, 1.0], [True, False, False]))
    assert episodes.take().tolist() == [5.0, 1.0]


def test_resizing_keeps_the_returns_of_the_environments_that_stay() -> None:
    env, episodes = followed()
    env.first.fill_(False)
    episodes.follow(told([1.0, 2.0, 3.0], [False, False, False]))
    env.resize(2)
    episodes.resize(env)
    env.resize(4)
    env.age[2:] = torch.tensor([0, 7])
    episodes.resize(env)
    episodes.follow(told([1.0, 1.0, 1.0, 1.0], [True, True, True, True]))
    assert episodes.take().tolist() == [2.0 + 3.0 + 1.0, 3.0]  # the one of age 7 is left out


def test_environments_that_begin_anew_take_nothing_over() -> None:
    env, episodes = followed()
    episodes.follow(told([1.0, 2.0, 3.0], [False, False, False]))
    env.first.copy_(torch.tensor([True, True, False]))
    env.age.copy_(torch.tensor([0, 7, 1]))
    episodes.resize(env)
    episodes.follow(told([1.0, 1.0, 1.0], [True, True, True]))
    assert episodes.take().tolist() == [1.0 + 4.0, 2.0]


@pytest.mark.parametrize("num_envs", [3, 5])
def test_saved_episodes_go_on_in_an_object_of_any_size(num_envs: int) -> None:
    env, _ = followed()
    env.first.fill_(False)
    env.age[2] = 300
    episodes = Episodes(env)
    episodes.follow(told([1.0, 2.0, 3.0], [False, False, False]))
    saved_env, saved = env.state_dict(), episodes.state_dict()
    episodes.follow(told([9.0, 9.0, 9.0], [True, True, True]))
    other_env, other = followed(num_envs)
    other_env.load_state_dict(saved_env)
    other.load_state_dict(saved)
    for ended in ([True, False, True], [True, True, True]):
        other.follow(told([1.0, 1.0, 1.0], ended))
    assert episodes.take().tolist() == [10.0 + 11.0, 2.0]
    assert other.take().tolist() == [2.0 + 1.0 + 4.0 + 1.0, 4.0]
