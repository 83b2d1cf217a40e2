"""`run.optimizer`: the knobs of an optimizer, with and without a schedule."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from hoptui.sdk.run import Run
from tests.run_state import run_state
from tests.sdk.unit_run import send

pytestmark = pytest.mark.usefixtures("off")

BASE = 0.1


def parameters(count: int = 1) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(2)) for _ in range(count)]


def sgd(lr: Any = BASE) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters(), lr=lr)


def step(optimizer: torch.optim.Optimizer, *schedulers: Any, times: int = 1) -> None:
    for _ in range(times):
        optimizer.step()
        for one in schedulers:
            one.step()


def rate(optimizer: torch.optim.Optimizer, group: int = 0) -> float:
    return float(optimizer.param_groups[group]["lr"])


def change(run: Run, knob: str, value: float) -> Any:
    send(run, knob=knob, value=value)
    run.boundary()
    return run_state(run).inbox.collect_outcomes()[-1]


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: 0.9**step),
    "multiplicative": lambda o: schedules.MultiplicativeLR(o, lambda step: 0.9),
    "step": lambda o: schedules.StepLR(o, 2, 0.5),
    "steps": lambda o: schedules.MultiStepLR(o, [2, 5], 0.5),
    "constant": lambda o: schedules.ConstantLR(o, 0.5, 3),
    "linear": lambda o: schedules.LinearLR(o, 0.25, 1.0, 6),
    "exponential": lambda o: schedules.ExponentialLR(o, 0.9),
    "polynomial": lambda o: schedules.PolynomialLR(o, 20),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 20),
    "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 7),
    "cyclic": lambda o: schedules.CyclicLR(o, BASE, 0.4, step_size_up=4, cycle_momentum=False),
    "sequence": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.25, 1.0, 4), schedules.CosineAnnealingLR(o, 20)], [4]
    ),
    "chain": lambda o: schedules.ChainedScheduler(
        [schedules.LinearLR(o, 0.25, 1.0, 4), schedules.ExponentialLR(o, 0.9)], optimizer=o
    ),
}


@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("when", [0, 3, 8])
@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_goes_on_as_if_it_had_begun_with_the_new_base(
    run: Run, kind: str, when: int, tensor: bool
) -> None:
    if tensor and kind == "cyclic":
        pytest.skip("torch does not allow it")
    optimizer, plain = (sgd(torch.tensor(BASE) if tensor else BASE) for _ in range(2))
    scheduler, reference = SCHEDULES[kind](optimizer), SCHEDULES[kind](plain)
    handle = run.optimizer(optimizer, scheduler)["lr"]
    step(optimizer, scheduler, times=when)
    step(plain, reference, times=when)
    done = change(run, "lr", BASE / 4)
    assert (done.stage, done.code) == ("applied", "")
    assert (done.before, done.effective) == pytest.approx((BASE, BASE / 4))
    for _ in range(8):
        assert rate(optimizer) == pytest.approx(rate(plain) / 4, rel=1e-5)
        step(optimizer, scheduler)
        step(plain, reference)
    run._core.execution.next_follow = 0
    run.boundary()
    assert handle.value == pytest.approx(BASE / 4)
    done = change(run, "lr", done.before)  # an undo, when the schedule is further
    assert done.before == pytest.approx(BASE / 4)
    for _ in range(8):
        assert rate(optimizer) == pytest.approx(rate(plain), rel=1e-5)
        step(optimizer, scheduler)
        step(plain, reference)


def test_one_cycle_shows_its_peak(run: Run) -> None:
    optimizer, plain = sgd(), sgd()
    scheduler, reference = (
        schedules.OneCycleLR(o, max_lr=0.5, total_steps=30, cycle_momentum=False) for o in (optimizer, plain)
    )
    handle = run.optimizer(optimizer, scheduler)["lr"]
    assert handle.value == 0.5
    step(optimizer, scheduler, times=4)
    step(plain, reference, times=4)
    change(run, "lr", 0.25)
    for _ in range(20):
        assert rate(optimizer) == pytest.approx(rate(plain) / 2)
        step(optimizer, scheduler)
        step(plain, reference)


def test_a_plateau_has_no_base_so_the_rate_in_effect_is_the_knob(run: Run) -> None:
    optimizer = sgd()
    scheduler = schedules.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    handle = run.optimizer(optimizer, scheduler)["lr"]
    for loss in (1.0, 1.0, 1.0):
        scheduler.step(loss)
    assert rate(optimizer) == pytest.approx(BASE / 4)
    done = change(run, "lr", 0.08)
    assert (done.before, done.effective) == pytest.approx((BASE / 4, 0.08))
    scheduler.step(1.0)
    run._core.execution.next_follow = 0
    run.boundary()
    assert (handle.value, handle.in_effect) == (pytest.approx(0.04), True)


def test_without_a_schedule_the_rate_in_effect_is_the_knob(run: Run) -> None:
    optimizer = sgd()
    handle = run.optimizer(optimizer)["lr"]
    optimizer.param_groups[0]["lr"] = 0.02  # by the script itself
    done = change(run, "lr", 0.04)
    assert (done.before, done.effective, rate(optimizer), handle.value) == (0.02, 0.04, 0.04, 0.04)


def test_groups_keep_their_proportions(run: Run) -> None:
    a, b, c = parameters(3)
    optimizer = torch.optim.AdamW(
        [
            {"params": [a], "lr": 0.0, "weight_decay": 0.0},
            {"params": [b], "lr": 0.1, "weight_decay": 0.2},
            {"params": [c], "lr": 0.3, "weight_decay": 0.1},
        ]
    )
    handles = run.optimizer(optimizer)
    assert (handles["lr"].value, handles["weight_decay"].value) == (0.1, 0.2)
    for lr, decay in ((0.2, 0.4), (0.05, 0.0), (0.1, 0.2)):
        change(run, "lr", lr)
        change(run, "weight_decay", decay)
        assert [rate(optimizer, i) for i in range(3)] == pytest.approx([0.0, lr, 3 * lr])
        found = [group["weight_decay"] for group in optimizer.param_groups]
        assert found == pytest.approx([0.0, decay, decay / 2])


@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
def test_betas(run: Run, tensor: bool) -> None:
    betas: Any = (torch.tensor(0.9), torch.tensor(0.99)) if tensor else (0.9, 0.99)
    lr: Any = torch.tensor(0.1) if tensor else 0.1
    optimizer = torch.optim.AdamW(parameters(), lr=lr, betas=betas, foreach=False, capturable=False)
    handles = run.optimizer(optimizer)
    assert set(handles) == {"lr", "weight_decay", "beta1", "beta2"}
    change(run, "beta2", 0.95)
    found = optimizer.param_groups[0]["betas"]
    assert [float(beta) for beta in found] == pytest.approx([0.9, 0.95])
    assert isinstance(found, tuple)
    assert (found[1] is betas[1]) == tensor, "a tensor is changed in place"


def test_a_tensor_is_changed_in_place(run: Run) -> None:
    lr = torch.tensor(0.1)
    optimizer = sgd(lr)
    scheduler = schedules.ExponentialLR(optimizer, 0.5)
    run.optimizer(optimizer, scheduler)
    before = optimizer.param_groups[0]["lr"]
    change(run, "lr", 0.2)
    assert optimizer.param_groups[0]["lr"] is before
    assert float(before) == pytest.approx(0.2)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: SimpleNamespace(scheduler=s),  # accelerate, Lightning
        lambda s: SimpleNamespace(scheduler=SimpleNamespace(scheduler=s)),
        lambda s: [s],
    ],
)
def test_a_wrapped_schedule(run: Run, wrap: Callable[[Any], Any]) -> None:
    optimizer = sgd()
    scheduler = schedules.ExponentialLR(optimizer, 0.5)
    handle = run.optimizer(optimizer, wrap(scheduler))["lr"]
    step(optimizer, scheduler, times=2)
    change(run, "lr", 0.2)
    assert [handle.value, rate(optimizer)] == pytest.approx([0.2, 0.05])


def test_several_optimizers_have_a_prefix(run: Run) -> None:
    actor, critic = sgd(0.1), sgd(0.2)
    handles = run.optimizer(actor, prefix="actor_") | {
        f"critic_{name}": handle for name, handle in run.optimizer(critic, prefix="critic_").items()
    }
    assert handles["lr"].name == "actor_lr"
    assert handles["critic_lr"].value == 0.2
    change(run, "critic_lr", 0.4)
    assert (rate(actor), rate(critic)) == (0.1, 0.4)


def test_a_schedule_that_cycles_the_momentum_keeps_beta1(run: Run) -> None:
    optimizer = torch.optim.AdamW(parameters(), lr=0.1)
    scheduler = schedules.OneCycleLR(optimizer, max_lr=0.5, total_steps=30)
    assert "beta1" not in run.optimizer(optimizer, scheduler)


@pytest.mark.parametrize("thing", [None, 5, SimpleNamespace(param_groups=[])])
def test_what_is_no_optimizer_is_reported(run: Run, thing: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert run.optimizer(thing) == {}
    assert len(caplog.records) == 1


def test_an_optimizer_without_a_rate_has_no_such_knob(run: Run) -> None:
    optimizer = SimpleNamespace(param_groups=[{"params": [], "lr": None, "weight_decay": 0.0}])
    assert set(run.optimizer(optimizer)) == {"weight_decay"}


def test_a_rate_of_zero_comes_back(run: Run) -> None:
    optimizer = sgd()
    scheduler = schedules.LambdaLR(optimizer, lambda step: 0.5**step)
    run.optimizer(optimizer, scheduler)
    step(optimizer, scheduler, times=2)
    change(run, "lr", 1e-10)
    change(run, "lr", 0.1)
    assert rate(optimizer) == pytest.approx(0.025)
