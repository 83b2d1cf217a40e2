"""A knob that is declared as speed and changes what is learned is found out, reverted and left alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from hoptui.domain.facts import Fact
from hoptui.domain.knobs import KnobState
from hoptui.domain.tuning import Limits
from hoptui.tuner.learning_check import changed_learning
from hoptui.tuner.observation import Observation
from hoptui.tuner.search.space import levers
from tests.tuner.simulated_run import GIB, Course, Values, knob, pair

SIZES = (8, 16, 32, 64)
BATCH = knob("batch_size", 16, choices=SIZES)


def told(knobs: tuple[KnobState, ...], counts: Sequence[float], losses: Sequence[float] = ()) -> Fact | None:
    """What is found of a change before the iteration 20."""
    observation = Observation(
        t=0, epoch=1, state="live", knobs=knobs,
        samples=tuple(enumerate(counts)), losses=tuple(enumerate(losses)),
    )  # fmt: skip
    return changed_learning(levers(knobs, Limits(), ()), observation, 20)


def test_other_counts_are_found() -> None:
    found = told((BATCH,), [64.0] * 20 + [128.0] * 6)
    assert found is not None
    assert (found.code, found.fields["before"], found.fields["after"]) == ("trial.samples_changed", 64, 128)
    assert found.fields["knobs"] == ["batch_size"]


def test_counts_that_vary_by_themselves_are_the_same() -> None:
    varying = [1000.0, 1100.0, 900.0, 1050.0] * 5
    assert told((BATCH,), [*varying, 950.0, 1010.0, 1080.0]) is None
    assert told((BATCH,), [64.0] * 20 + [128.0, 128.0]) is None, "the first may be mixed"


def test_a_total_that_rises_is_not_the_work_of_an_iteration() -> None:
    assert told((BATCH,), [64.0 * i for i in range(30)]) is None


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_another_scale_of_the_loss_is_found(factor: float) -> None:
    losses = [2.4 - 0.01 * i for i in range(20)]
    found = told((BATCH,), [64.0] * 40, losses + [2.2 * factor] * 17)
    assert found is not None
    assert found.code == "trial.loss_changed"


@pytest.mark.parametrize("rate", [0.99, 0.95])
def test_a_loss_that_falls_is_learning(rate: float) -> None:
    assert told((BATCH,), [64.0] * 40, [10.8 * rate**i for i in range(40)]) is None


def test_a_loss_that_scatters_is_no_jump() -> None:
    chance = random.Random(3)
    losses = [math.exp(chance.gauss(0, 1)) for _ in range(40)]
    assert told((BATCH,), [64.0] * 40, losses) is None
    assert told((BATCH,), [64.0] * 40, [value - 1 for value in losses]) is None, "it may be negative"


def test_what_keeps_a_product_or_may_affect_learning_is_not_judged() -> None:
    counts = [64.0] * 20 + [128.0] * 6
    assert told(pair(), counts) is None
    learning = knob("num_envs", 16, effect="learning")
    limits = Limits(learning=("num_envs",))
    observation = Observation(t=0, epoch=1, state="live", knobs=(learning,), samples=tuple(enumerate(counts)))
    assert changed_learning(levers((learning,), limits, ()), observation, 20) is None


def test_the_tuner_reverts_it_says_why_and_does_not_turn_it_again() -> None:
    def rate(values: Values) -> float:
        return 100.0 * float(values["batch_size"])

    course = Course(BATCH, rate=rate, used=lambda _: 4 * GIB)
    counted: list[tuple[int, float]] = []

    def count() -> None:
        counted.extend(
            (step, float(course.values["batch_size"])) for step, _ in course.points[len(counted) :]
        )
        course.facts["samples"] = tuple(counted)

    for _ in range(300):
        course.look()
        count()
    (trial,) = course.tuner.state.tried
    assert (trial.result, trial.why[-1].code) == ("failed", "trial.samples_changed")
    assert course.values["batch_size"] == 16
    assert course.tuner.state.frozen == ("batch_size",)
