from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui_trainer.lm.sequence_sampler import SequenceSampler, widened


def stream_of(count: int) -> torch.Tensor:
    return torch.arange(count).to(torch.int16)


def flat(sampler: SequenceSampler, position: int, sequences: int, length: int) -> tuple[list[int], list[int]]:
    inputs, targets = sampler.take(position, sequences, length)
    assert inputs.shape == targets.shape == (sequences, length)
    return inputs.flatten().tolist(), targets.flatten().tolist()


def test_sixteen_bits_are_unsigned() -> None:
    tokens = torch.tensor([0, 32_767, -32_768, -1], dtype=torch.int16)
    assert widened(tokens).tolist() == [0, 32_767, 32_768, 65_535]


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(64, 300),
    block=st.integers(8, 64),
    seed=st.integers(0, 5),
    cuts=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 40)), min_size=1, max_size=6),
)
def test_the_stream_does_not_depend_on_how_it_is_cut(
    count: int, block: int, seed: int, cuts: list[tuple[int, int]]
) -> None:
    total = sum(sequences * length for sequences, length in cuts)
    whole = flat(SequenceSampler(stream_of(count), seed, block), 5, 1, total)
    sampler, position = SequenceSampler(stream_of(count), seed, block), 5
    parts: tuple[list[int], list[int]] = [], []
    for sequences, length in cuts:
        for part, found in zip(parts, flat(sampler, position, sequences, length), strict=True):
            part += found
        position += sequences * length
    assert parts == whole


@settings(deadline=None, max_examples=40)
@given(count=st.integers(2, 300), block=st.integers(1, 64), epoch=st.integers(0, 3))
def test_an_epoch_has_every_token_once_but_for_a_short_block(count: int, block: int, epoch: int) -> None:
    sampler = SequenceSampler(stream_of(count), 3, block)
    inputs, targets = flat(sampler, epoch * sampler.epoch_tokens, 1, sampler.epoch_tokens)
    assert len(set(inputs)) == sampler.epoch_tokens > count - block
    assert targets == [(token + 1) % count for token in inputs]


def test_a_block_stays_together_and_epochs_and_seeds_have_their_own_orders() -> None:
    sampler = SequenceSampler(stream_of(1000), 0, 50)
    first, _ = flat(sampler, 0, 1, 1000)
    second, _ = flat(sampler, 1000, 1, 1000)
    other, _ = flat(SequenceSampler(stream_of(1000), 1, 50), 0, 1, 1000)
    for order in (first, second, other):
        assert all(order[i + 1] == (order[i] + 1) % 1000 for i in range(999) if (i + 1) % 50)
        assert sum(order[i + 1] == (order[i] + 1) % 1000 for i in range(49, 999, 50)) < 5
    assert len({tuple(first), tuple(second), tuple(other)}) == 3


def test_going_back_gives_the_same_again() -> None:
    sampler = SequenceSampler(stream_of(100), 0, 10)
    before = flat(sampler, 20, 2, 30)
    flat(sampler, 900, 2, 30)
    assert flat(sampler, 20, 2, 30) == before
