"""Counter-based random numbers: they are random, and they are a function of their four arguments alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hoptui_trainer.common.counter_rng import bits, key, normal, permuted, shuffled, uniform

COUNT = 1 << 16
KEY = key(0, "test")
INDEX = torch.arange(COUNT)

GOLDEN_BITS = [[2890987288, 880941636], [3847141494, 879703893], [1722790916, 4149634424]]
GOLDEN_EDGE = 2363329616
GOLDEN_NORMAL = [0.4162130, 1.4363260]

# Each makes COUNT uniform numbers that differ in one argument alone.
ALONG: dict[str, Callable[[int], Tensor]] = {
    "index": lambda part: uniform(KEY, INDEX + part * COUNT, 3),
    "a strided index": lambda part: uniform(KEY, INDEX * 1024 + part, 3),
    "counter": lambda part: columns(lambda t: uniform(KEY, INDEX[:256], 256 * part + t)),
    "draw": lambda part: uniform(KEY, INDEX[part : part + 16], 3, COUNT // 16),
    "key": lambda part: columns(lambda t: uniform(256 * part + t, INDEX[:256], 3)),
}


def columns(draw: Callable[[int], Tensor]) -> Tensor:
    return torch.cat([draw(t) for t in range(256)], -1)


def centred(numbers: Tensor) -> Tensor:
    """Numbers of mean 0 and variance 1, if they are uniform in [0, 1)."""
    return (numbers.flatten().double() - 0.5) * math.sqrt(12)


def chi_square(cells: Tensor, count: int) -> float:
    """How many standard deviations the counts in `count` cells are from what chance gives equal cells."""
    expected = len(cells) / count
    off = (torch.bincount(cells, minlength=count) - expected).square().sum() / expected
    return float(off - (count - 1)) / math.sqrt(2 * (count - 1))


@pytest.mark.parametrize("name", ALONG)
def test_numbers_along_any_argument_are_uniform_and_independent(name: str) -> None:
    first, second = (centred(ALONG[name](part)) for part in range(2))
    figures = []
    for x in (first, second):
        unit = x / math.sqrt(12) + 0.5
        assert unit.min() >= 0
        assert unit.max() < 1
        pairs = (unit[::2] * 16).long() * 16 + (unit[1::2] * 16).long()
        figures += [
            float(x.mean()) * math.sqrt(COUNT),
            float(x.square().mean() - 1) / math.sqrt(0.8 / COUNT),
            chi_square((unit * 256).long(), 256),
            chi_square(pairs, 256),
            *(float((x[lag:] * x[:-lag]).mean()) * math.sqrt(COUNT) for lag in (1, 2, 16, 256)),
        ]
    figures.append(float((first * second).mean()) * math.sqrt(COUNT))
    assert max(abs(figure) for figure in figures) < 4.5


def test_the_lowest_bits_are_as_random_as_the_highest() -> None:
    words = bits(KEY, INDEX, 3)[:, 0]
    for shift in (0, 8, 16, 24):
        assert abs(chi_square(words >> shift & 0xFF, 256)) < 4.5


def test_each_bit_of_each_argument_changes_half_of_the_bits() -> None:
    index = INDEX[:4096]
    before = bits(KEY, index, 5)
    for bit in range(32):
        for after in (
            bits(KEY, index ^ (1 << bit), 5),
            bits(KEY, index, 5 ^ (1 << bit)),
            bits(KEY ^ (1 << bit), index, 5),
            bits(KEY ^ (1 << bit + 31), index, 5),
        ):
            changed = sum(float(((before ^ after) >> place & 1).double().mean()) for place in range(32))
            assert changed / 32 == pytest.approx(0.5, abs=0.01)


def test_normal_numbers_have_the_moments_of_the_normal_distribution() -> None:
    drawn = normal(KEY, INDEX, 3, 3).double()
    moments = [float(drawn.pow(power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.05)
    assert (torch.corrcoef(drawn.T) - torch.eye(3)).abs().max() < 0.02
    for threshold, part in ((1.0, 0.3173), (2.0, 0.0455), (3.0, 0.0027)):
        assert float((drawn.abs() > threshold).double().mean()) == pytest.approx(part, rel=0.1)
    assert 4 < drawn.abs().max() < 5.8


def test_a_number_does_not_depend_on_what_else_is_drawn() -> None:
    whole = uniform(KEY, INDEX[:32], 7, 5)
    torch.testing.assert_close(uniform(KEY, INDEX[9:11], 7, 2), whole[9:11, :2], rtol=0, atol=0)
    torch.testing.assert_close(uniform(KEY, INDEX[:32].view(8, 4), 7, 5), whole.view(8, 4, 5), rtol=0, atol=0)
    torch.testing.assert_close(
        normal(KEY, INDEX[3], 7, 1), normal(KEY, INDEX[:4], 7, 4)[3, :1], rtol=0, atol=0
    )


def test_a_counter_may_be_a_tensor() -> None:
    for counter in (0, 1, 12345, 1 << 40):
        assert torch.equal(bits(KEY, INDEX[:8], torch.tensor(counter), 2), bits(KEY, INDEX[:8], counter, 2))
    assert not torch.equal(bits(KEY, INDEX[:8], 1 << 40), bits(KEY, INDEX[:8], 0))


def test_keys_differ_by_seed_and_by_purpose_and_fit_a_signed_word() -> None:
    keys = {key(seed, purpose) for seed in range(20) for purpose in ("env", "policy")}
    assert len(keys) == 40
    assert all(0 <= number < 1 << 63 for number in keys)
    assert key(0, "env") == 3842430913961652331


def test_golden_values() -> None:
    """A change of the hash would change what every resumed run does."""
    assert bits(KEY, INDEX[:3], 7, 2).tolist() == GOLDEN_BITS
    assert bits((1 << 63) - 1, torch.tensor([(1 << 32) - 1]), (1 << 63) - 1).tolist() == [[GOLDEN_EDGE]]
    assert uniform(KEY, INDEX[:1], 7, 2).tolist() == [[word // 256 / 2**24 for word in GOLDEN_BITS[0]]]
    torch.testing.assert_close(normal(KEY, INDEX[:1], 7, 2), torch.tensor([GOLDEN_NORMAL]))


@given(
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 63) - 1),
    st.integers(1, 4),
)
@settings(max_examples=50, deadline=None)
def test_no_product_overflows(number: int, index: int, counter: int, draws: int) -> None:
    assert bits(number, torch.tensor(index), counter, draws).tolist() == [
        by_hand(number, index, counter, draw) for draw in range(draws)
    ]


def by_hand(number: int, index: int, counter: int, draw: int) -> int:
    """The same hash in Python's unbounded integers."""

    def mixed(word: int) -> int:
        word = (word ^ word >> 16) * 0x21F0AAAD % 2**32
        word = (word ^ word >> 15) * 0x735A2D97 % 2**32
        return word ^ word >> 15

    words = []
    for lane in (2 * draw, 2 * draw + 1):
        word = mixed((number + lane * 0x9E3779B9) % 2**32 ^ counter % 2**32)
        words.append(mixed((word + lane * 0xC13FA9A9 + (number >> 32) + (counter >> 32)) % 2**32))
    return mixed((mixed(index ^ words[0]) + words[1]) % 2**32)


def test_shuffled_is_a_permutation_and_another_one_for_each_counter() -> None:
    for count in (1, 2, 1000):
        orders = [shuffled(KEY, count, counter, "cpu") for counter in range(20)]
        for order in orders:
            assert sorted(order.tolist()) == list(range(count))
    assert len({tuple(order.tolist()) for order in orders}) == 20


def test_every_permutation_is_as_likely() -> None:
    orders = torch.stack([shuffled(KEY, 4, counter, "cpu") for counter in range(2400)])
    rank = {order: number for number, order in enumerate(itertools.permutations(range(4)))}
    assert abs(chi_square(torch.tensor([rank[tuple(order)] for order in orders.tolist()]), 24)) < 4.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # raised while inductor is imported
def test_compiled_numbers_are_the_same_bits() -> None:
    def drawn(index: Tensor, counter: Tensor) -> Tensor:
        return bits(KEY, index, counter, 2)

    compiled = torch.compile(drawn, fullgraph=True, dynamic=False)
    index = INDEX[:1000]
    for number in (0, 41):
        counter = torch.tensor(number)
        assert torch.equal(compiled(index, counter), drawn(index, counter))


@settings(deadline=None, max_examples=60)
@given(count=st.integers(1, 5_000), counter=st.integers(0, 1 << 40), seed=st.integers(0, 9))
def test_a_computed_permutation_has_every_number_once(count: int, counter: int, seed: int) -> None:
    found = permuted(key(seed, "order"), count, counter, torch.arange(count))
    assert sorted(found.tolist()) == list(range(count))


def test_a_computed_permutation_is_random_and_its_parts_are_those_of_the_whole() -> None:
    count = 50_000
    whole = permuted(KEY, count, 3, torch.arange(count))
    assert torch.equal(permuted(KEY, count, 3, torch.arange(100, 200)), whole[100:200])
    assert not torch.equal(permuted(KEY, count, 4, torch.arange(count)), whole)
    assert (whole == torch.arange(count)).sum() < 12  # 1 is expected
    steps = (whole[1:] - whole[:-1]).abs()
    assert 0.9 < steps.double().mean() / (count / 3) < 1.1
    cells = torch.arange(count) * 16 // count * 16 + whole * 16 // count
    assert abs(chi_square(cells, 256)) < 4.5


@pytest.mark.slow
def test_of_five_numbers_each_order_comes() -> None:
    orders = {tuple(permuted(KEY, 5, epoch, torch.arange(5)).tolist()) for epoch in range(3_000)}
    assert len(orders) == 120


def test_of_billions_of_numbers_some_are_placed_at_once() -> None:
    count = (1 << 32) - 5
    found = permuted(KEY, count, 0, torch.tensor([0, 1, count - 1]))
    assert len(set(found.tolist())) == 3
    assert int(found.min()) >= 0
    assert int(found.max()) < count
    with pytest.raises(ValueError):
        permuted(KEY, (1 << 32) + 1, 0, torch.arange(1))
