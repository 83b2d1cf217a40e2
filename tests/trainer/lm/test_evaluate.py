from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hoptui_trainer.common.ranks import ALONE, RankGroup
from hoptui_trainer.lm.evaluate import HeldOut, lzma_bits_per_byte, nats_per_token

CPU = torch.device("cpu")
LENGTHS = torch.tensor([1, 1, 2, 0])
TOKENS = torch.tensor([0, 2, 1, 3, 0, 1, 2, 2], dtype=torch.int16)


def test_each_token_but_the_first_is_predicted_once() -> None:
    held_out = HeldOut(TOKENS, LENGTHS, length=3, limit=100, device=CPU)
    assert held_out.inputs.tolist() == [[0, 2, 1], [3, 0, 1], [2, 0, 0]]
    assert held_out.targets.tolist() == [[2, 1, 3], [0, 1, 2], [2, -1, -1]]
    assert held_out.bytes == 2 + 1 + 0 + 1 + 1 + 2 + 2
    assert (len(held_out), held_out.length) == (3, 3)
    assert HeldOut(TOKENS, LENGTHS, 3, limit=3, device=CPU).targets.tolist() == [[2, 1, 3]]


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_model_that_knows_nothing_needs_all_bits(batch: int) -> None:
    """Logits of zero: 2 bits for each of 7 targets among 4 words, over 9 bytes."""
    held_out = HeldOut(TOKENS, LENGTHS, 3, 100, CPU)
    shapes = set()

    def forward(tokens: Tensor) -> Tensor:
        shapes.add(tuple(tokens.shape))
        return torch.zeros(*tokens.shape, 8)

    found = nats_per_token(held_out, forward, torch.ones(4, 8), batch, ALONE, "fp32")
    assert found == pytest.approx(math.log(4))
    assert held_out.bits_per_byte(found) == pytest.approx(7 * math.log2(4) / 9)
    assert shapes == {(batch, 3)}  # batches are filled up


def test_a_rank_may_have_no_window_to_evaluate() -> None:
    """Fewer windows than ranks: long sequences, many GPUs."""
    held_out = HeldOut(TOKENS[:4], LENGTHS, 3, 100, CPU)
    assert len(held_out) == 1
    second = RankGroup(1, 2, 1, 2)
    assert (
        nats_per_token(held_out, lambda t: torch.zeros(*t.shape, 8), torch.ones(4, 8), 2, second, "fp32") == 0
    )


def test_bits_a_byte_are_known_as_far_as_the_bytes_are() -> None:
    average = HeldOut(TOKENS, 1.5, length=3, limit=100, device=CPU)
    assert average.bytes == round(1.5 * 7)
    assert average.bits_per_byte(math.log(2)) == pytest.approx(7 / average.bytes)
    unknown = HeldOut(TOKENS, None, length=3, limit=100, device=CPU)
    assert unknown.bytes is None
    assert unknown.bits_per_byte(1.0) is None


def test_lzma_is_measured_in_the_same_unit() -> None:
    assert lzma_bits_per_byte(b"abcdefgh" * 4000) < 0.1
    draw = torch.Generator().manual_seed(0)
    noise = bytes(torch.randint(0, 256, (20_000,), generator=draw).tolist())
    assert 8 < lzma_bits_per_byte(noise) < 8.2
