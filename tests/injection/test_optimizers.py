"""Which optimizer makes the iterations, and its knobs, without torch."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

import hoptui
from hoptui.injection.optimizers import TAKES_OVER, IterationOptimizer, Schedulers, WeakOptimizer, rates_of


class FakeOptimizer:
    """Has parameter groups, as those of torch."""

    def __init__(self, *rates: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": rate, "weight_decay": 0.1} for rate in rates]


class FakeSchedule:
    """A schedule that keeps its optimizer, as those of torch."""

    def __init__(self, optimizer: FakeOptimizer) -> None:
        self.optimizer = optimizer
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]
        self._last_lr = list(self.base_lrs)


def ends(iteration: IterationOptimizer, *optimizers: FakeOptimizer) -> str:
    """Let the optimizers step in this order. Return 1 for each step that ended an iteration, else 0."""
    found = ""
    for optimizer in optimizers:
        iteration.begins(optimizer)
        found += str(int(iteration.ends_with(optimizer)))
    return found


def test_the_optimizer_that_stepped_first_makes_the_iterations() -> None:
    a, b, c = FakeOptimizer(), FakeOptimizer(), FakeOptimizer()
    iteration = IterationOptimizer()
    assert ends(iteration, a, b, a, b, b, c, a) == "1010001"
    assert iteration.now is a


def test_another_one_takes_over_once_the_first_is_no_longer_used() -> None:
    a, b, c = FakeOptimizer(), FakeOptimizer(), FakeOptimizer()
    iteration = IterationOptimizer()
    ends(iteration, a)
    assert ends(iteration, *[b, c] * (TAKES_OVER - 1)) == "00" * (TAKES_OVER - 1)
    assert ends(iteration, b, c, b, c) == "1010"
    assert iteration.now is b


def test_a_step_within_a_step_is_not_an_iteration() -> None:
    outer, inner = FakeOptimizer(), FakeOptimizer()
    iteration = IterationOptimizer()
    for _ in range(3):
        iteration.begins(outer)
        assert ends(iteration, inner) == "0"
        assert iteration.ends_with(outer)


def test_a_step_that_raised_does_not_hide_later_ones() -> None:
    broken, other = FakeOptimizer(), FakeOptimizer()
    iteration = IterationOptimizer()
    iteration.begins(broken)
    assert ends(iteration, broken, broken) == "11"
    iteration.begins(broken)
    assert ends(iteration, *[other] * 100).endswith("1")


def test_nothing_keeps_an_optimizer_alive(run: hoptui.Run) -> None:
    optimizer = FakeOptimizer(0.5, 0.25)
    schedule = FakeSchedule(optimizer)
    seen = weakref.ref(optimizer)
    iteration, schedulers = IterationOptimizer(), Schedulers()
    ends(iteration, optimizer)
    handles = run.optimizer(WeakOptimizer(optimizer), rates_of(schedule))
    assert (handles["lr"].value, handles["weight_decay"].value) == (0.5, 0.1)
    del optimizer, schedule
    gc.collect()
    assert seen() is None
    assert (iteration.now, schedulers.of(iteration.now)) == (None, None)
    knob = run._core.state.declarations.knobs["lr"]
    with pytest.raises(Exception):  # noqa: B017
        knob.set(0.1, "kim")
    assert knob.value == 0.5


def test_the_base_of_the_schedule_is_scaled_with_the_rates(run: hoptui.Run) -> None:
    optimizer = FakeOptimizer(0.5, 0.25)
    schedule = FakeSchedule(optimizer)
    optimizer.param_groups[0]["lr"] = 0.05  # what the schedule has made of it
    run.optimizer(WeakOptimizer(optimizer), rates_of(schedule))
    run._core.state.declarations.knobs["lr"].set(1.0, "kim")
    assert schedule.base_lrs == [1.0, 0.5]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5]
