from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.lm.float8 import fits, float8_flops, from_float8, to_float8
from hoptui_trainer.lm.state import LMState


def test_only_layers_of_even_tiles_compute_in_eight_bits() -> None:
    assert fits(nn.Linear(16, 48))
    assert not fits(nn.Linear(16, 17))
    assert not fits(nn.Linear(24, 16))
    assert not fits(nn.Embedding(16, 16))


def test_a_missing_library_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(UsageError, match=r"hoptui-trainer\[fp8\]"):
        to_float8(nn.Linear(16, 16))


def test_there_and_back_with_the_same_parameters(make_state: Callable[..., LMState]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao")
    state = make_state(precision="bf16")
    before = list(state.model.parameters())
    inputs, targets = state.sampler.take(0, 4, 16)
    expected = float(state.nats(inputs, targets).detach())
    to_float8(state.model.blocks, emulate=True)
    assert "Float8" in type(state.model.blocks[0].mlp_in).__name__
    # Of a block of width 16: 12 matrices of 16 × 16.
    assert float8_flops(state.model.blocks) == 6 * 2 * 12 * 16 * 16
    rough = state.nats(inputs, targets)
    torch.autograd.backward(rough)
    assert float(rough.detach()) != expected
    assert float(rough.detach()) == pytest.approx(expected, rel=0.02)
    assert state.gradient.flat.isfinite().all()
    assert state.gradient.flat.any()
    from_float8(state.model.blocks)
    assert float8_flops(state.model.blocks) == 0
    assert all(one is other for one, other in zip(state.model.parameters(), before, strict=True))
    assert float(state.nats(inputs, targets).detach()) == expected
