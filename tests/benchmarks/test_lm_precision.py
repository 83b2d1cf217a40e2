"""The parts of the benchmark of precisions, tried on a CPU."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.backends import cuda

from benchmarks import lm_precision
from benchmarks.lm_graphs import captured
from benchmarks.lm_precision import LADDER, moment_bytes, plain_attention
from benchmarks.lm_steps import Machine
from tests.trainer.warm import ranks


@pytest.fixture(scope="module")
def machine() -> Machine:
    torch.set_num_threads(1)
    return Machine("124m", quick=True)


def test_each_case_is_held_against_the_one_before(machine: Machine) -> None:
    found = lm_precision.steps(machine)
    cases = list(found["cases"].values())
    assert list(found["cases"]) == [name for name, _ in LADDER]
    one, other = (case["tokens_per_s"]["median"] for case in cases[:2])
    assert cases[1]["times_the_case_before"] == pytest.approx(other / one, abs=1e-3)
    assert found["last over first"] == pytest.approx(cases[-1]["tokens_per_s"]["median"] / one, abs=1e-3)


def test_a_case_that_cannot_be_is_left_out_with_the_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    found = lm_precision.compared(machine, "optimizer", ("adamw", "adamw8bit"))
    assert "torchao" in found["cases"]["adamw8bit"]["left_out"]
    assert found["adamw8bit over adamw"] is None


def test_two_ways_to_compute_a_piece_take_turns(machine: Machine) -> None:
    for part, name in (("graphs", "graph"), ("graphs-vision", "graph"), ("reduce-overhead",) * 2):
        cases = lm_precision.PARTS[part](machine)["cases"]
        assert all(case[name]["n"] == case["compiled"]["n"] == machine.windows for case in cases.values())


def test_a_captured_piece_adds_the_gradient_of_a_plain_one(machine: Machine) -> None:
    state = machine.state(4)
    inputs, targets = state.sampler.take(0, 4, state.config.seq_len)
    torch.autograd.backward(state.nats(inputs, targets))
    wanted = state.gradient.flat.clone()
    state.gradient.clear()
    captured(state, lambda: state.nats(inputs, targets))()
    torch.testing.assert_close(state.gradient.flat, wanted)


def test_moments_take_eight_bytes_a_weight(machine: Machine) -> None:
    state = machine.state(4)
    steps = len(state.optimizer.state)
    assert moment_bytes(state.optimizer) == 8 * state.parameters + 4 * steps


SUMS = """
import torch
from torch import nn
from benchmarks.overlapped_gradient import OverlappedGradient
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.ranks import join

torch.set_num_threads(1)
with join("cpu") as ranks:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    found = []
    for gradient in (
        FlatGradient(layers.parameters(), ranks=ranks),
        OverlappedGradient(layers.parameters(), ranks, bucket_bytes=500),
    ):
        gradient.attach()
        for step in range(2):
            gradient.clear()
            for piece in range(3):
                torch.manual_seed(10 * step + 3 * ranks.rank + piece)
                gradient.before_piece(last=piece == 2)
                layers(torch.randn(4, 8)).square().sum().backward()
            gradient.exchange()
        found.append(gradient.flat.clone())
    sums = ranks.gather(found[1].sum().item())
    print(torch.equal(*found), float(found[0].norm()) > 0, gradient.early, sums)
"""


@pytest.mark.slow
def test_sums_during_the_backward_pass_are_those_after_it() -> None:
    with ranks("-c", SUMS) as children:
        said = [child.communicate(timeout=60) for child in children]
    assert [error for _, error in said] == ["", ""]
    first, second = (out.split(maxsplit=3) for out, _ in said)
    assert first[:3] == second[:3] == ["True", "True", "2"]
    assert first[3] == second[3]


def test_plain_attention_is_for_a_while() -> None:
    before = cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    with plain_attention():
        assert not cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    assert cuda.flash_sdp_enabled() == before  # type: ignore[no-untyped-call]
