"""A step of the optimizer is taken once, whole and to the bit the same, however short memory is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hoptui_trainer.common.errors import TornStepError, UsageError
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.modes import OptimizerName
from hoptui_trainer.common.optimizer import (
    converted,
    make_optimizer,
    restore,
    saved_moments,
    set_weight_decay,
    take_step,
    weight_decay,
)
from hoptui_trainer.common.precision import grad_scaler
from tests.trainer.eight_bit import eager_torchao

CPU = torch.device("cpu")


class Descent:
    """A small model in two groups, of which one decays, and gradients that are a function of the step
    alone."""

    def __init__(self, precision: Any = "fp32", name: OptimizerName = "adamw", width: int = 3) -> None:
        draw = torch.Generator().manual_seed(0)
        self.weights = [nn.Parameter(torch.randn(n, width, generator=draw)) for n in (4, 5, 1)]
        self.gradient = FlatGradient(self.weights)
        groups = [
            {"params": self.weights[:2], "weight_decay": 0.1},
            {"params": self.weights[2:], "weight_decay": 0.0},
        ]
        self.optimizer = make_optimizer(name, groups, CPU)
        self.scaler = grad_scaler(precision, CPU)
        self.steps = 0

    def step(self, times: int = 1) -> Tensor:
        for _ in range(times):
            draw = torch.Generator().manual_seed(self.steps)
            self.gradient.flat.copy_(torch.randn(len(self.gradient.flat), generator=draw))
            self.gradient.flat.copy_(self.scaler.scale(self.gradient.flat))
            norm = take_step(self.optimizer, self.scaler, self.gradient, lr=0.1, longest=1.0)
            self.steps += 1
        return norm

    def moments(self) -> Tensor:
        """What a checkpoint would hold, in one vector."""
        held = saved_moments(self.optimizer)["state"].values()
        values = [value for state in held for moment in state.values() for value in _tensors(moment)]
        return torch.cat([value.detach().flatten().float() for value in values])

    def held(self) -> Tensor:
        moments = [
            m[name] for m in self.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq", "step")
        ]
        return torch.cat([value.detach().flatten() for value in (*self.weights, *moments)])


def _tensors(moment: Any) -> list[Tensor]:
    return list(moment.values()) if isinstance(moment, dict) else [moment]


def short(function: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
    """`function`, whose third call finds no memory: before it does anything, or after it has done it all."""
    calls = 0

    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3 and not after:
            raise torch.OutOfMemoryError("made up")
        found = function(*args, **kwargs)
        if calls == 3:
            raise torch.OutOfMemoryError("made up")
        return found

    return called


def test_moments_are_made_before_the_first_step_and_change_no_weight() -> None:
    plain, ours = Descent(), Descent()
    plain.optimizer.state.clear()  # as torch begins: they are made in the first step
    assert len(ours.optimizer.state) == 3
    assert not any(bool(m["step"]) or bool(m["exp_avg"].any()) for m in ours.optimizer.state.values())
    before = [weight.detach().clone() for weight in ours.weights]
    assert all(torch.equal(a, b) for a, b in zip(before, Descent().weights, strict=True))
    for _ in range(3):
        for descent in (plain, ours):
            draw = torch.Generator().manual_seed(1)
            descent.gradient.flat.copy_(torch.randn(30, generator=draw))
            for group in descent.optimizer.param_groups:
                group["lr"].fill_(0.1)
            descent.optimizer.step()
    assert torch.equal(plain.held(), ours.held())


def test_a_step_clips_to_the_norm_and_tells_the_one_before() -> None:
    descent = Descent()
    norm = descent.step()
    wanted = torch.randn(30, generator=torch.Generator().manual_seed(0)).norm()
    torch.testing.assert_close(norm, wanted)
    torch.testing.assert_close(descent.gradient.flat.norm(), torch.tensor(1.0))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("where", ["unscale_", "clip", "step", "update"])
def test_where_memory_runs_out_the_same_step_is_taken(
    precision: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough, scarce = Descent(precision), Descent(precision)
    enough.step(5)
    holder = {"clip": scarce.gradient, "step": scarce.optimizer}.get(where, scarce.scaler)
    monkeypatch.setattr(holder, where, short(getattr(holder, where)))
    scarce.step(5)
    assert torch.equal(scarce.held(), enough.held())


def test_a_step_that_was_torn_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    descent = Descent()
    monkeypatch.setattr(descent.optimizer, "step", short(descent.optimizer.step, after=True))
    with pytest.raises(TornStepError, match="in the middle of an optimizer's step"):
        descent.step(3)


def test_memory_that_stays_short_is_an_error_and_changes_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    descent = Descent()
    descent.step()
    held = descent.held()

    def full() -> None:
        raise torch.OutOfMemoryError("made up")

    monkeypatch.setattr(descent.optimizer, "step", full)
    with pytest.raises(torch.OutOfMemoryError):
        descent.step()
    assert torch.equal(descent.held(), held)


def test_another_fault_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    descent = Descent()

    def broken() -> None:
        raise RuntimeError("made up")

    monkeypatch.setattr(descent.optimizer, "step", broken)
    with pytest.raises(RuntimeError, match="made up"):
        descent.step()


def test_a_restored_optimizer_keeps_this_processs_own_rate_and_decay() -> None:
    before, after = Descent(), Descent()
    before.step(2)
    own = after.optimizer.param_groups[0]["lr"]
    after.optimizer.param_groups[0]["weight_decay"] = 0.3
    restore(after.optimizer, saved_moments(before.optimizer))
    assert all(group["lr"] is own for group in after.optimizer.param_groups)
    assert [group["weight_decay"] for group in after.optimizer.param_groups] == [0.3, 0.0]
    assert torch.equal(after.held()[30:], before.held()[30:])


WIDE = 1024
"""Of weights whose moments are kept in 8 bits: 4,096 of them at least."""


def test_without_its_library_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(UsageError, match=r"--optimizer adamw8bit needs .*hoptui-trainer\[fp8\]"):
        Descent(name="adamw8bit")


def test_eight_bits_stay_close_and_take_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    eager_torchao(monkeypatch)
    exact, rough = Descent(width=WIDE), Descent(name="adamw8bit", width=WIDE)
    begin = [weight.detach().clone() for weight in exact.weights]
    assert all(torch.equal(a, b) for a, b in zip(begin, rough.weights, strict=True))
    for descent in (exact, rough):
        descent.step(5)
    moved = torch.cat([(a - b).flatten() for a, b in zip(exact.weights, begin, strict=True)])
    apart = torch.cat([(a - b).flatten() for a, b in zip(exact.weights, rough.weights, strict=True)])
    assert 0 < apart.norm() < 0.1 * moved.norm()
    kept = [m for w in rough.weights[:2] for m in rough.optimizer.state[w].values() if hasattr(m, "codes")]
    assert len(kept) == 4
    assert all(moment.codes.dtype == torch.uint8 for moment in kept)


def test_a_decay_changed_live_is_used_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    eager_torchao(monkeypatch)
    mild, harsh = Descent(name="adamw8bit", width=WIDE), Descent(name="adamw8bit", width=WIDE)
    set_weight_decay(harsh.optimizer, 0.9)
    assert (weight_decay(mild.optimizer), weight_decay(harsh.optimizer)) == (0.1, 0.9)
    for descent in (mild, harsh):
        descent.step()
    decayed, other = (
        float(harsh.weights[i].detach().norm() / mild.weights[i].detach().norm()) for i in (0, 2)
    )
    assert decayed < 0.95
    assert other == 1.0


@pytest.mark.parametrize("name", ["adamw", "adamw8bit"])
def test_a_resumed_optimizer_goes_on_to_the_bit(
    name: OptimizerName, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if name == "adamw8bit":
        eager_torchao(monkeypatch)
    through, after = Descent(name=name, width=WIDE), Descent(name=name, width=WIDE)
    through.step(2)
    torch.save(saved_moments(through.optimizer), tmp_path / "moments")
    restore(after.optimizer, torch.load(tmp_path / "moments", weights_only=True))
    for own, theirs in zip(after.weights, through.weights, strict=True):
        own.data.copy_(theirs)
    after.steps = 2
    for descent in (through, after):
        descent.step(2)
    assert all(torch.equal(a, b) for a, b in zip(through.weights, after.weights, strict=True))
    assert torch.equal(through.moments(), after.moments())


def test_moments_follow_from_one_optimizer_to_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    eager_torchao(monkeypatch)
    descent = Descent(width=WIDE)
    descent.step(3)
    exact = descent.moments()
    descent.gradient.clear()
    descent.optimizer = converted(descent.optimizer, "adamw8bit", CPU)
    assert len(descent.moments()) != len(exact)
    descent.optimizer = converted(descent.optimizer, "adamw", CPU)
    assert float((descent.moments() - exact).norm()) < 0.02 * float(exact.norm())
    assert [group["weight_decay"] for group in descent.optimizer.param_groups] == [0.1, 0.0]
    assert {int(state["step"]) for state in descent.optimizer.state.values()} == {3}
