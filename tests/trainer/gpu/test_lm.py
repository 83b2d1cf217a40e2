"""The language model on a GPU: what changes its speed or its memory does not change what it learns."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.backends import cuda
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import hoptui
from tests.trainer.gpu.small import assert_near, lm_state, scarce, weights
from trainer.common.metrics import measured
from trainer.common.phases import phase_clock
from trainer.lm.attention import SWITCHES, choose_attention
from trainer.lm.state import TrainingState
from trainer.lm.update import update

ENABLED: Mapping[str, Callable[[], bool]] = {
    "cudnn": cuda.cudnn_sdp_enabled,
    "flash": cuda.flash_sdp_enabled,
    "efficient": cuda.mem_efficient_sdp_enabled,
}
CURVE = 1e-4
"""Nats a token that two losses of a curve may be apart in fp32 where sums are made in another order."""
HALF = 0.02
"""The same in bf16, whose numbers have 8 bits."""


def losses(state: TrainingState, times: int = 4) -> Tensor:
    """The losses (times,) of as many steps."""
    clock = phase_clock(hoptui.connect("gpu"), state.device)
    return torch.stack([update(state, 1e-3, clock)["loss"] for _ in range(times)]).cpu()


def test_micro_batches_leave_the_curve_alone(device: torch.device) -> None:
    whole, cut = lm_state(device), lm_state(device, micro_batch=16)
    found = []
    for micro_batch in (16, 5, 2):
        cut.config.micro_batch = micro_batch
        cut.fit()
        found.append(losses(cut, 2))
    assert_near(torch.cat(found), losses(whole, 6), CURVE)
    assert_near(weights(cut.model), weights(whole.model), CURVE)


def test_a_gpu_learns_as_a_cpu_does(device: torch.device) -> None:
    there, host = lm_state(device), lm_state(torch.device("cpu"))
    assert_near(losses(there), losses(host), CURVE)
    assert there.evaluate() == pytest.approx(host.evaluate(), abs=1e-3)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", CURVE), ("bf16", HALF)])
def test_compiled_it_learns_the_same(precision: str, tolerance: float, device: torch.device) -> None:
    exact = losses(lm_state(device))
    compiled = lm_state(device, precision=precision, compile="default")
    assert_near(losses(compiled), exact, tolerance)
    assert compiled.evaluate() < 9.0


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_shorter_numbers_learn_nearly_the_same(precision: str, device: torch.device) -> None:
    short = lm_state(device, precision=precision)
    assert_near(losses(short), losses(lm_state(device)), HALF)
    assert short.model.table.dtype == torch.float32


def test_checkpointing_of_activations_changes_nothing_and_takes_less_memory(device: torch.device) -> None:
    peaks, curves = [], []
    for checkpointing in (False, True):
        state = lm_state(device, checkpointing=checkpointing, layers=8, batch_tokens=1 << 14, micro_batch=256)
        torch.cuda.reset_peak_memory_stats(device)
        curves.append(losses(state, 2))
        peaks.append(torch.cuda.max_memory_allocated(device))
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
    said = choose_attention((8, 4, 512, 64), torch.bfloat16, device)
    assert any(f"attention: {name} (" in said for name in SWITCHES), said
    assert said.count(" ms") >= 2
    chosen = said.split()[1]
    assert [name for name, is_enabled in ENABLED.items() if is_enabled()] == [chosen]
    assert cuda.math_sdp_enabled()  # type: ignore[no-untyped-call]


def test_a_steady_step_waits_for_nothing(device: torch.device) -> None:
    state = lm_state(device, precision="bf16", micro_batch=8)
    run = hoptui.connect("gpu")
    clock = phase_clock(run, device)
    for _ in range(2):
        update(state, 1e-3, clock)
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(2):
        metrics = update(state, 1e-3, clock)
        run.log(measured(metrics, device))
        clock.end_iteration()
    torch.cuda.set_sync_debug_mode("default")
    assert float(metrics["loss"]) > 0


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_batch_that_does_not_fit_is_computed_in_smaller_pieces(
    where: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough, short = lm_state(device), lm_state(device)
    wanted = losses(enough, 6)
    found = [losses(short, 2)]
    held, moments = (
        weights(short.model),
        [state["exp_avg"].clone() for state in short.optimizer.state.values()],
    )
    seen: list[tuple[int, int]] = []

    def told(before: int, now: int) -> None:
        seen.append((before, now))
        assert torch.equal(weights(short.model), held)
        now_held = [state["exp_avg"] for state in short.optimizer.state.values()]
        assert all(torch.equal(one, other) for one, other in zip(now_held, moments, strict=True))

    short.on_smaller = told
    if where == "forward":
        short.forward = scarce(short.forward)
    else:
        monkeypatch.setattr(torch.autograd, "backward", scarce(torch.autograd.backward))
    found.append(losses(short, 4))
    assert seen == [(16, 8)]
    assert (short.config.micro_batch, short.config.grad_accum) == (8, 2)
    assert_near(torch.cat(found), wanted, CURVE)


def test_a_step_of_the_optimizer_that_does_not_fit_is_an_error_and_changes_no_weight(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = lm_state(device)
    held = weights(state.model)
    monkeypatch.setattr(state.optimizer, "step", scarce(state.optimizer.step))
    with pytest.raises(torch.OutOfMemoryError):
        losses(state, 1)
    assert torch.equal(weights(state.model), held)


def test_a_micro_batch_that_does_not_fit_is_found_before_it_is_needed(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = lm_state(device)
    losses(state, 1)
    monkeypatch.setattr(state, "forward", scarce(state.forward))
    with pytest.raises(MemoryError, match="16 sequences of 64 do not fit into the memory at once"):
        state.rehearse()
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
