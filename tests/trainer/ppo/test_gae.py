from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from hoptui_trainer.ppo.gae import gae, scan


def reference(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """The definition: for each step, the discounted sum of temporal differences to the end of its own
    episode."""
    length, envs = reward.shape
    advantage = torch.zeros_like(reward)
    for n in range(envs):
        for t in range(length):
            weight = 1.0
            for k in range(t, length):
                goes_on = 0.0 if terminated[k, n] else 1.0
                advantage[t, n] += weight * (reward[k, n] + gamma * goes_on * next_value[k, n] - value[k, n])
                weight *= gamma * gae_lambda
                if terminated[k, n] or truncated[k, n]:
                    break
    return advantage


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**31),
    length=st.integers(1, 9),
    envs=st.integers(1, 4),
    gamma=st.floats(0, 1),
    gae_lambda=st.floats(0, 1),
)
def test_gae_is_the_sum_of_its_definition(
    seed: int, length: int, envs: int, gamma: float, gae_lambda: float
) -> None:
    g = torch.Generator().manual_seed(seed)
    reward, value, next_value = (
        torch.randn(length, envs, generator=g, dtype=torch.float64) for _ in range(3)
    )
    ends = torch.rand(length, envs, generator=g)
    terminated, truncated = ends < 0.2, ends > 0.8
    torch.testing.assert_close(
        gae(reward, value, next_value, terminated, truncated, gamma=gamma, gae_lambda=gae_lambda),
        reference(reward, value, next_value, terminated, truncated, gamma, gae_lambda),
    )


def looped(delta: Tensor, carry: Tensor) -> Tensor:
    """The recursion as it is written in the paper."""
    found = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        found[t] = following = delta[t] + carry[t] * following
    return found


@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 1000])
def test_the_scan_is_the_loop(length: int) -> None:
    g = torch.Generator().manual_seed(length)
    delta = torch.randn(length, 16, generator=g)
    carry = torch.where(torch.rand(length, 16, generator=g) < 0.02, 0.0, 0.95)
    before = delta.clone(), carry.clone()
    torch.testing.assert_close(scan(delta, carry), looped(delta, carry), rtol=1e-5, atol=1e-5)
    assert torch.equal(delta, before[0])
    assert torch.equal(carry, before[1])


def test_factors_may_be_tensors() -> None:
    g = torch.Generator().manual_seed(1)
    fields = [torch.randn(8, 4, generator=g) for _ in range(3)]
    flags = [torch.rand(8, 4, generator=g) < 0.2 for _ in range(2)]
    torch.testing.assert_close(
        gae(*fields, *flags, gamma=torch.tensor(0.9), gae_lambda=torch.tensor(0.8)),
        gae(*fields, *flags, gamma=0.9, gae_lambda=0.8),
    )


def last_step(*, terminated: bool, truncated: bool) -> float:
    one = torch.ones(1, 1)
    flags = torch.tensor([[terminated]]), torch.tensor([[truncated]])
    return float(gae(one, 3 * one, 10 * one, *flags, gamma=0.5, gae_lambda=0.9))


def test_a_time_limit_is_continued_by_the_value_of_the_final_observation() -> None:
    assert last_step(terminated=False, truncated=True) == 1 + 0.5 * 10 - 3


def test_a_terminated_episode_is_worth_nothing_more() -> None:
    assert last_step(terminated=True, truncated=False) == 1 - 3


def test_nothing_of_the_next_episode_reaches_the_one_before() -> None:
    reward = torch.tensor([[1.0], [100.0]])
    zero = torch.zeros(2, 1)
    ended, never = torch.tensor([[True], [False]]), torch.zeros(2, 1, dtype=torch.bool)
    for flags in ((ended, never), (never, ended)):
        assert float(gae(reward, zero, zero, *flags, gamma=1.0, gae_lambda=1.0)[0]) == 1.0
