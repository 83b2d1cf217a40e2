"""The language model on a GPU: what changes its speed or its memory does not change what it learns."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.backends import cuda
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from hoptui_trainer.common.attention import SWITCHES, choose_attention
from hoptui_trainer.common.ranks import ALONE
from hoptui_trainer.lm import streamed_sampler
from hoptui_trainer.lm.data_placement import make_sampler
from hoptui_trainer.lm.state import LMState
from hoptui_trainer.lm.token_shards import Shard, TokenShards
from tests.trainer.gpu.small import assert_near, lm_state, scarce
from tests.trainer.gpu.supervised import CURVE, WORKLOADS

ENABLED: Mapping[str, Callable[[], bool]] = {
    "cudnn": cuda.cudnn_sdp_enabled,
    "flash": cuda.flash_sdp_enabled,
    "efficient": cuda.mem_efficient_sdp_enabled,
}


def losses(state: LMState, times: int = 4) -> Tensor:
    """The losses (times,) of as many steps."""
    return WORKLOADS["lm"].losses(state, times)


def test_a_gpu_learns_as_a_cpu_does(device: torch.device) -> None:
    there, host = lm_state(device), lm_state(torch.device("cpu"))
    assert_near(losses(there), losses(host), CURVE)
    assert there.evaluate() == pytest.approx(host.evaluate(), abs=1e-3)


def test_tokens_from_disk_are_those_on_the_device(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In small units, whose memory is used again and again while the device is busy with what came before."""
    monkeypatch.setattr(streamed_sampler, "UNIT", 4096)
    monkeypatch.setattr(streamed_sampler, "AHEAD", 4)
    (torch.arange(300_000) % 60_000).numpy().astype("uint16").tofile(tmp_path / "tokens.bin")
    shards = TokenShards([Shard(tmp_path / "tokens.bin", 0, 300_000)], "uint16", 60_000)
    resident, streamed = (make_sampler(tokens, 0, 64, device) for tokens in (shards.load(device), shards))
    square = torch.rand(2048, 2048, device=device)
    different = torch.zeros((), dtype=torch.int64, device=device)
    for place in range(0, 1_000_000, 10_240):
        streamed.expect(range(place, place + 10_240), 10_240)
        square = (square @ square).tanh()  # the copies queue up behind it
        for one, other in zip(streamed.take(place, 160, 64), resident.take(place, 160, 64), strict=True):
            different += (one != other).sum()
    assert int(different) == 0


@pytest.mark.timeout(180)
def test_compiled_it_evaluates_as_it_does_plainly(device: torch.device) -> None:
    plain, compiled = lm_state(device), lm_state(device, compile="default")
    assert compiled.evaluate() == pytest.approx(plain.evaluate(), abs=1e-3)


def test_checkpointing_of_activations_changes_nothing_and_takes_less_memory(device: torch.device) -> None:
    peaks, curves = [], []
    for checkpointing in (False, True):
        state = lm_state(device, checkpointing=checkpointing, layers=8, batch_tokens=1 << 14, micro_batch=256)
        losses(state, 1)
        torch.cuda.reset_peak_memory_stats(device)
        # Beside weights, and cuBLAS's workspaces of each stream that other tests have used.
        before = torch.cuda.memory_allocated(device)
        curves.append(losses(state, 2))
        peaks.append(torch.cuda.max_memory_allocated(device) - before)
        del state
    assert_near(curves[1], curves[0], CURVE)
    assert peaks[1] < 0.7 * peaks[0]


def test_attention_of_every_backend_is_the_plain_formula(device: torch.device) -> None:
    shape = (2, 4, 128, 64)
    half = [torch.randn(shape, device=device).bfloat16().requires_grad_() for _ in range(3)]
    exact = [each.detach().float().requires_grad_() for each in half]
    slope = torch.randn(shape, device=device).bfloat16()

    def computed(backend: SDPBackend, inputs: list[Tensor]) -> list[Tensor]:
        query, key, value = inputs
        with sdpa_kernel(backend):
            out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return [out, *torch.autograd.grad(out, inputs, slope.to(out.dtype))]

    wanted = computed(SDPBackend.MATH, exact)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        for found, value in zip(computed(backend, half), wanted, strict=True):
            assert_near(found.float(), value.detach(), 0.05)


def test_the_fastest_attention_is_chosen_by_measurement(device: torch.device) -> None:
    said = choose_attention((8, 4, 512, 64), torch.bfloat16, device, ALONE, causal=True)
    assert any(f"attention: {name} (" in said for name in SWITCHES), said
    assert said.count(" ms") >= 2
    chosen = said.split()[1]
    assert [name for name, is_enabled in ENABLED.items() if is_enabled()] == [chosen]
    assert cuda.math_sdp_enabled()  # type: ignore[no-untyped-call]


def test_a_micro_batch_that_does_not_fit_is_found_before_it_is_needed(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = lm_state(device)
    losses(state, 1)
    monkeypatch.setattr(state, "forward", scarce(state.forward))
    with pytest.raises(MemoryError, match="16 sequences of 64 do not fit into the memory at once"):
        state.prove_sizes()
    assert not state.gradient.flat.any()
    losses(state, 1)


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs torchao")
def test_in_eight_bits_it_starts_and_comes_back(device: torch.device) -> None:
    if torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("needs a GPU with FP8")
    sizes: dict[str, Any] = {"d_model": 128, "heads": 2}
    state = lm_state(device, precision="fp8", **sizes)
    exact = losses(lm_state(device, **sizes))
    assert_near(losses(state), exact, 0.2)
    state.config.precision = "bf16"
    state.rebuild()
    assert_near(losses(state, 1)[0], exact[-1], 0.5)


@pytest.mark.timeout(180)
@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs torchao")
def test_in_eight_bits_small_pieces_are_graphs(device: torch.device) -> None:
    if torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("needs a GPU with FP8")
    sizes: dict[str, Any] = {"d_model": 128, "heads": 2}
    state = lm_state(device, precision="fp8", compile="default", optimizer="adamw8bit", **sizes)
    exact = losses(lm_state(device, **sizes), 6)
    assert_near(losses(state, 6), exact, 0.2)
    assert state.graphs.captured > 0
    state.config.optimizer = "adamw"
    state.choose_optimizer()
    assert_near(losses(state, 1)[0], exact[-1], 0.5)
