from __future__ import annotations

import pytest
import torch

from hoptui_trainer.lm.config import PRESETS, preset_config
from hoptui_trainer.lm.model import GPT, norm, rotate, rotations
from tests.trainer.lm.conftest import small_config

TOKENS = torch.randint(0, 257, (2, 16), generator=torch.Generator().manual_seed(1))


def test_no_position_sees_a_later_one() -> None:
    model = GPT(small_config(), 0)
    changed = TOKENS.clone()
    changed[:, 9] += 1
    before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(after[:, :9], before[:, :9])
    assert not torch.allclose(after[:, 9:], before[:, 9:])


def test_rotations_depend_on_the_distance_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    rotation = rotations(32, 8)
    query, key = torch.randn(2, 8, generator=draw)
    turned_query = rotate(query.expand(32, 8), rotation)
    turned_key = rotate(key.expand(32, 8), rotation)
    products = turned_query @ turned_key.T
    for distance in (0, 3, 10):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(products.diagonal()[0], query @ key)


def test_the_norm_keeps_its_number_format() -> None:
    x = torch.randn(3, 64) * 7
    torch.testing.assert_close(norm(x).square().mean(-1), torch.ones(3), rtol=1e-4, atol=0)
    assert norm(x.bfloat16()).dtype == torch.bfloat16


def test_recomputed_activations_give_the_same_gradient() -> None:
    gradients = []
    for checkpointing in (False, True):
        model = GPT(small_config(), 0)
        model.checkpointing = checkpointing
        model(TOKENS).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_weights_come_from_the_seed_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (GPT(small_config(), seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.table, again.table)
    assert not torch.equal(first.table, other.table)
    block = first.blocks[0]
    assert block.mlp_in.weight.std() > 1.5 * block.mlp_out.weight.std()  # type: ignore[union-attr, operator]


@pytest.mark.parametrize(("preset", "millions"), [("124m", 124), ("350m", 354), ("760m", 757)])
def test_presets_are_as_large_as_they_are_called(preset: str, millions: int) -> None:
    config = preset_config(preset)
    blocks = config.layers * 12 * config.d_model**2
    assert (blocks + config.vocab_size * config.d_model) / 1e6 == pytest.approx(millions, rel=0.005)
    config.check(1)
    assert config.d_model // config.heads == 128
    assert config.vocab_size % 128 == 0


def test_what_a_token_costs() -> None:
    model = GPT(small_config(vocab_size=300), 0)
    assert model.table.shape[0] == 384  # rounded up to even tiles
    matrices = 2 * 12 * 16**2 + 384 * 16
    assert model.flops_per_token(64) == 6 * matrices + 12 * 2 * 16 * 64
    assert set(PRESETS) == {"tiny", "124m", "350m", "760m"}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_it_is_one_graph_with_the_same_gradient(checkpointing: bool) -> None:
    """Traced and differentiated as a whole; what inductor makes of it is in test_update.py."""
    torch.compiler.reset()
    model = GPT(small_config(layers=1), 0)
    model.checkpointing = checkpointing
    traced = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    slope = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(2))
    (expected,) = torch.autograd.grad((model(TOKENS) * slope).sum(), model.table)
    (found,) = torch.autograd.grad((traced(TOKENS) * slope).sum(), model.table)
    torch.testing.assert_close(found, expected)
