"""The tuner and the power that the GPUs draw: a limit for each of them, and the energy of all."""

from __future__ import annotations

import pytest

from hoptui.domain.facts import fact
from hoptui.domain.tuning import Limits
from tests.tuner.simulated_run import Course, results


def test_a_trial_that_draws_too_much_is_taken_back() -> None:
    course = Course(limits=Limits(power_w=400.0))
    course.into_trial()
    course.facts = {"power_w": 420.0}
    course.look(10)
    assert results(course) == ["reverted"]
    assert course.tuner.state.tried[0].why[-1] == fact("trial.power", power_w=420.0, limit_w=400.0)
    assert course.values["micro_batch"] == 8


@pytest.mark.parametrize(
    ("limits", "unknown"),
    [
        (Limits(power_w=400.0), {"power_w": None}),
        (Limits(objective="energy"), {"drawn_w": None}),
        (Limits(objective="energy", power_w=400.0), {"power_w": None, "drawn_w": 300.0}),
    ],
)
def test_power_that_is_unknown_is_waited_for_where_it_matters(
    limits: Limits, unknown: dict[str, float | None]
) -> None:
    course = Course(limits=limits)
    course.facts = unknown
    course.look(100)
    assert course.proposals == []
    assert course.tuner.state.stand in ("waiting", "holding")


def test_energy_that_cannot_be_measured_any_more_is_said() -> None:
    course = Course(limits=Limits(objective="energy"))
    course.look(20)
    shared = fact("tune.gpu_shared", gpu=0, pid=8)
    course.facts = {"drawn_w": None, "no_energy": shared}
    course.until(lambda: course.tuner.state.stand == "waiting")
    assert course.tuner.state.facts == (shared,)


def test_for_energy_the_faster_setting_is_not_the_better_one() -> None:
    course = Course(limits=Limits(objective="energy"))
    watts = {8: 300.0, 16: 600.0}
    for _ in range(400):
        course.facts = {"power_w": watts.get(int(course.values["micro_batch"]), 300.0)}
        course.look()
    first = course.tuner.state.tried[0]
    assert first.result == "reverted"
    assert first.measured is not None
    assert first.measured.metric == "units_per_joule"
    assert first.measured.gain == pytest.approx(444.4 / 285.7 / 2 - 1, abs=0.02)


def test_a_trial_in_which_nothing_can_be_measured_any_more_ends() -> None:
    course = Course(limits=Limits(objective="energy"))
    course.into_trial()
    course.facts = {"drawn_w": None}
    course.until(lambda: course.tuner.state.trial is None, 300)
    assert course.tuner.state.tried[0].why[-1] == fact("trial.unmeasured")
    course.look(5)
    assert course.values == {"micro_batch": 8, "grad_accum": 64}
