from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.ppo.minibatches import STRATA, Cut, cut, order

CPU = torch.device("cpu")
KEY = counter_rng.key(0, "minibatch")
GOLDEN = [4, 8, 5, 9, 2, 10, 7, 11, 0, 1, 6, 3]


def rank_of(rank: int, world: int) -> RankGroup:
    return RankGroup(rank, world, rank, world)


def minibatches(dealt: Cut, num_envs: int, ranks: RankGroup, epoch: int = 0) -> list[Tensor]:
    """The units of this rank by minibatch, as pairs (row, global number of the environment)."""
    units = order(dealt, num_envs, ranks, KEY, epoch, CPU)
    pairs = torch.stack((units // num_envs, units % num_envs * ranks.world + ranks.rank), 1)
    return list(torch.split(pairs, dealt.chunk * dealt.strata // ranks.world))


def as_set(pairs: Tensor) -> set[tuple[int, int]]:
    return {(int(row), int(env)) for row, env in pairs}


@given(
    num_envs=st.integers(1, 40),
    rows=st.integers(1, 20),
    steps=st.sampled_from((1, 3, 8)),
    size=st.integers(1, 2000),
    world=st.integers(1, 3),
)
def test_every_unit_is_in_one_minibatch_and_the_sizes_are_the_ones_told(
    num_envs: int, rows: int, steps: int, size: int, world: int
) -> None:
    dealt = cut(num_envs, rows, steps, size, world)
    assert dealt.strata % world == 0
    assert dealt.strata * dealt.units == num_envs * world * rows
    assert sum(dealt.samples(k) for k in range(dealt.count)) == num_envs * world * rows * steps
    assert dealt.samples(0) == dealt.minibatch
    seen = torch.zeros(rows, num_envs * world, dtype=torch.int64)
    for rank in range(world):
        parts = minibatches(dealt, num_envs, rank_of(rank, world))
        assert [len(part) * world * steps for part in parts] == [dealt.samples(k) for k in range(dealt.count)]
        for part in parts:
            seen[part[:, 0], part[:, 1]] += 1
    assert bool((seen == 1).all())


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("size", [32, 40, 7 * 16])
def test_several_ranks_draw_the_minibatches_of_one(world: int, size: int) -> None:
    alone, together = cut(16, 6, 1, size, 1), cut(16 // world, 6, 1, size, world)
    assert alone == together
    whole = minibatches(alone, 16, ALONE, epoch=3)
    parts = [minibatches(together, 16 // world, rank_of(r, world), epoch=3) for r in range(world)]
    for number, minibatch in enumerate(whole):
        assert as_set(minibatch) == set().union(*(as_set(part[number]) for part in parts))


def test_the_order_depends_on_the_epoch_and_on_the_key() -> None:
    dealt = cut(8, 16, 1, 128, 1)
    first = order(dealt, 8, ALONE, KEY, 0, CPU)
    assert torch.equal(first, order(dealt, 8, ALONE, KEY, 0, CPU))
    assert not torch.equal(first, order(dealt, 8, ALONE, KEY, 1, CPU))
    assert not torch.equal(first, order(dealt, 8, ALONE, counter_rng.key(1, "minibatch"), 0, CPU))


def test_an_order_is_the_one_that_it_was_in_every_earlier_version() -> None:
    """A run that goes on from a checkpoint learns from the minibatches that it would have learned from."""
    drawn = order(cut(4, 3, 1, 8, 1), 4, ALONE, 12345, 7, CPU)
    assert drawn.tolist() == GOLDEN
    assert order(cut(4, 3, 1, 8, 1), 4, ALONE, 12345, torch.tensor(7), CPU).tolist() == GOLDEN


def test_whose_keys_are_in_order_is_dealt_out_in_order() -> None:
    unshuffled = order(cut(4, 3, 1, 8, 1), 4, ALONE, KEY, 0, CPU, lambda key, index, epoch: index)
    assert unshuffled.tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("num_envs", "size", "world", "strata", "used"),
    [
        (64, 512, 1, STRATA, 512),
        (7, 70, 1, 1, 70),
        (12, 100, 1, 4, 100),  # 12 environments divide by 4
        (16, 4, 1, 4, 4),  # a minibatch of 4 cannot take from 8 strata
        (16, 10**6, 1, STRATA, 16 * 16),  # at most the whole rollout
        (5, 31, 3, 3, 30),  # what three ranks can share equally
        (1, 1, 2, 2, 2),
        (16, 96, 16, 16, 96),  # more ranks than strata
    ],
)
def test_minibatches_are_what_every_stratum_has_an_equal_part_of(
    num_envs: int, size: int, world: int, strata: int, used: int
) -> None:
    dealt = cut(num_envs, 16, 1, size, world)
    assert (dealt.strata, dealt.minibatch) == (strata, used)


def test_sequences_are_drawn_whole() -> None:
    dealt = cut(8, 4, 32, 256, 1)
    assert (dealt.strata * dealt.chunk, dealt.minibatch, dealt.count) == (8, 256, 4)
    assert cut(8, 4, 32, 5, 1).minibatch == 32
