from __future__ import annotations

import math

import torch

from trainer.common.streams import stream
from trainer.ppo.envs.registry import PHYSICS
from trainer.ppo.envs.vector import Step, VectorEnv
from trainer.ppo.episodes import Episodes


def followed(staggered: bool, num_envs: int = 3) -> tuple[VectorEnv, Episodes]:
    env = VectorEnv(PHYSICS["CartPole-v1"], num_envs, stream(0, "test"), staggered=staggered)
    return env, Episodes(env)


def told(reward: list[float], ended: list[bool]) -> Step:
    obs, done = torch.zeros(len(reward), 4), torch.tensor(ended)
    return Step(obs, torch.tensor(reward), done, torch.zeros_like(done), obs)


def test_the_mean_is_of_the_episodes_that_ended_since_the_last_call() -> None:
    _, episodes = followed(staggered=False)
    episodes.follow(told([1.0, 2.0, 3.0], [False, False, True]))
    episodes.follow(told([1.0, 2.0, 3.0], [True, False, False]))
    mean, count = episodes.take()
    assert (float(mean), int(count)) == (2.5, 2)
    episodes.follow(told([1.0, 2.0, 3.0], [False, True, True]))
    mean, count = episodes.take()
    assert (float(mean), int(count)) == (6.0, 2)


def test_without_an_ended_episode_there_is_no_mean() -> None:
    _, episodes = followed(staggered=False)
    episodes.follow(told([1.0, 1.0, 1.0], [False, False, False]))
    mean, count = episodes.take()
    assert math.isnan(float(mean))
    assert int(count) == 0


def test_episodes_with_a_made_up_age_are_left_out_and_the_next_ones_count() -> None:
    env, _ = followed(staggered=False)
    env.age[0] = 300
    episodes = Episodes(env)
    episodes.follow(told([1.0, 1.0, 1.0], [True, True, False]))
    assert int(episodes.take()[1]) == 1
    episodes.follow(told([5.0, 1.0, 1.0], [True, False, False]))
    mean, count = episodes.take()
    assert (float(mean), int(count)) == (5.0, 1)


def test_resizing_keeps_the_returns_of_the_environments_that_stay() -> None:
    env, episodes = followed(staggered=False)
    episodes.follow(told([1.0, 2.0, 3.0], [False, False, False]))
    env.resize(2)
    episodes.resize(env)
    env.resize(4)
    env.age[2:] = torch.tensor([0, 7])
    episodes.resize(env)
    episodes.follow(told([1.0, 1.0, 1.0, 1.0], [True, True, True, True]))
    mean, count = episodes.take()
    assert int(count) == 3  # the one of age 7 is left out
    assert float(mean) == (2.0 + 3.0 + 1.0) / 3
