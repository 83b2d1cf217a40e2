"""A step of the optimizer is taken once, whole and to the bit the same, however short memory is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hoptui_trainer.common.errors import TornStepError
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.optimizer import adamw, restore, take_step
from hoptui_trainer.common.precision import grad_scaler

CPU = torch.device("cpu")


class Descent:
    """A small model in two groups, of which one decays, and gradients that are a function of the step
    alone."""

    def __init__(self, precision: Any = "fp32") -> None:
        draw = torch.Generator().manual_seed(0)
        self.weights = [nn.Parameter(torch.randn(n, 3, generator=draw)) for n in (4, 5, 1)]
        self.gradient = FlatGradient(self.weights)
        groups = [
            {"params": self.weights[:2], "weight_decay": 0.1},
            {"params": self.weights[2:], "weight_decay": 0.0},
        ]
        self.optimizer = adamw(groups, CPU)
        self.scaler = grad_scaler(precision, CPU)
        self.steps = 0

    def step(self, times: int = 1) -> Tensor:
        for _ in range(times):
            draw = torch.Generator().manual_seed(self.steps)
            self.gradient.flat.copy_(torch.randn(30, generator=draw))
            self.gradient.flat.copy_(self.scaler.scale(self.gradient.flat))
            norm = take_step(self.optimizer, self.scaler, self.gradient, lr=0.1, longest=1.0)
            self.steps += 1
        return norm

    def held(self) -> Tensor:
        moments = [
            m[name] for m in self.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq", "step")
        ]
        return torch.cat([value.detach().flatten() for value in (*self.weights, *moments)])


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
    restore(after.optimizer, before.optimizer.state_dict())
    assert all(group["lr"] is own for group in after.optimizer.param_groups)
    assert [group["weight_decay"] for group in after.optimizer.param_groups] == [0.3, 0.0]
    assert torch.equal(after.held()[30:], before.held()[30:])
