"""The language model and vision on a GPU: what changes their speed or their memory does not change what they
learn."""

from __future__ import annotations

import pytest
import torch

import hoptui
from hoptui_trainer.common.metrics import measured
from hoptui_trainer.common.phases import phase_clock
from hoptui_trainer.common.piece_graphs import PieceGraphs
from tests.trainer.gpu.small import assert_near, scarce, weights
from tests.trainer.gpu.supervised import CURVE, WORKLOADS, Workload


@pytest.fixture(params=list(WORKLOADS))
def workload(request: pytest.FixtureRequest) -> Workload:
    return WORKLOADS[request.param]


def test_micro_batches_leave_the_curve_alone(workload: Workload, device: torch.device) -> None:
    whole, cut = workload.state(device), workload.state(device)
    found = []
    for part in (1, 3, 8):
        cut.config.micro_batch = -(-whole.config.micro_batch // part)
        cut.fit()
        found.append(workload.losses(cut, 2))
    assert_near(torch.cat(found), workload.losses(whole, 6), CURVE)
    assert_near(weights(cut.model), weights(whole.model), CURVE)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_they_learn_the_same(precision: str, workload: Workload, device: torch.device) -> None:
    exact = workload.losses(workload.state(device))
    compiled = workload.state(device, precision=precision, compile="default")
    assert_near(workload.losses(compiled), exact, CURVE if precision == "fp32" else workload.half)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_small_pieces_are_graphs_and_learn_the_same(
    precision: str, workload: Workload, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = workload.state(device, precision=precision, compile="default")
    found = workload.losses(state, 6)
    monkeypatch.setattr(PieceGraphs, "active", False)
    plain = workload.state(device, precision=precision, compile="default")
    assert_near(workload.losses(plain, 6), found, CURVE if precision == "fp32" else workload.half)
    assert state.graphs.captured > 0
    assert plain.graphs.captured == 0


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_shorter_numbers_learn_nearly_the_same(
    precision: str, workload: Workload, device: torch.device
) -> None:
    short = workload.state(device, precision=precision)
    exact = workload.losses(workload.state(device))
    assert_near(workload.losses(short), exact, workload.half)
    assert all(parameter.dtype == torch.float32 for parameter in short.model.parameters())


def test_a_steady_step_waits_for_nothing(workload: Workload, device: torch.device) -> None:
    state = workload.state(device, precision="bf16", micro_batch=8)
    run = hoptui.connect("gpu")
    clock = phase_clock(run, device)
    for _ in range(2):
        workload.update(state, 1e-3, clock)
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(2):
        metrics = workload.update(state, 1e-3, clock)
        run.log(measured(metrics, device))
        clock.end_iteration()
    torch.cuda.set_sync_debug_mode("default")
    assert float(metrics["loss"]) > 0


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_batch_that_does_not_fit_is_computed_in_smaller_pieces(
    where: str, workload: Workload, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough, short = workload.state(device), workload.state(device)
    size = short.config.micro_batch
    wanted = workload.losses(enough, 6)
    found = [workload.losses(short, 2)]
    held = weights(short.model)
    moments = [state["exp_avg"].clone() for state in short.optimizer.state.values()]
    seen: list[tuple[int, int]] = []

    def told(before: int, now: int) -> None:
        seen.append((before, now))
        assert torch.equal(weights(short.model), held)
        now_held = [state["exp_avg"] for state in short.optimizer.state.values()]
        assert all(torch.equal(one, other) for one, other in zip(now_held, moments, strict=True))

    short.on_smaller = told
    if where == "forward":
        setattr(short, workload.forward, scarce(getattr(short, workload.forward)))
    else:
        monkeypatch.setattr(torch.autograd, "backward", scarce(torch.autograd.backward))
    found.append(workload.losses(short, 4))
    assert seen == [(size, size // 2)]
    assert (short.config.micro_batch, short.config.grad_accum) == (size // 2, 2)
    assert_near(torch.cat(found), wanted, CURVE)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("where", ["clip", "unscale_", "step"])
def test_a_step_for_which_memory_is_short_is_taken_all_the_same(
    where: str, precision: str, workload: Workload, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough, short = (workload.state(device, precision=precision) for _ in range(2))
    holder = {"clip": short.gradient, "step": short.optimizer}.get(where, short.scaler)
    monkeypatch.setattr(holder, where, scarce(getattr(holder, where)))
    assert_near(workload.losses(short), workload.losses(enough), CURVE)
    assert_near(weights(short.model), weights(enough.model), CURVE)


def test_a_step_of_the_optimizer_asks_for_no_memory(workload: Workload, device: torch.device) -> None:
    state = workload.state(device)
    asked = [torch.cuda.memory_stats(device)["allocation.all.allocated"]]
    state.optimizer.step()
    asked.append(torch.cuda.memory_stats(device)["allocation.all.allocated"])
    assert asked[0] == asked[1]
