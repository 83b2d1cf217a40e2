"""The work lost to trials, against what the run is known to have done in them."""

from __future__ import annotations

from typing import Any

import pytest

from hoptui.domain.tuning import YOUNG_S, TunerState
from hoptui.tuner.observation import Observation
from hoptui.tuner.regret import Regret
from tests.tuner.simulated_run import Course, Values, launch_bound, pair, results

ITERATION_S = 0.5


class Counted(Course):
    """A run whose iterations have a known duration, and which counts its `work` in every second."""

    def observation(self) -> Observation:
        self.facts["durations"] = tuple((step, ITERATION_S) for step, _ in self.points[-200:])
        return super().observation()


def smaller_is_slower(values: Values) -> float:
    """A rate that falls where the micro-batch leaves 8."""
    return 500.0 if values["micro_batch"] == 8 else 300.0


def test_a_reverted_trial_loses_what_it_was_slower_by() -> None:
    course = Counted(rate=smaller_is_slower)
    course.until(lambda: course.tuner.state.trial is not None)
    first = len(course.points)
    course.until(lambda: results(course) == ["reverted"])
    course.look(3)
    slow = [rate for _, rate in course.points[first:] if rate == 300.0]
    state = course.tuner.state
    assert state.regret_units == pytest.approx(len(slow) * ITERATION_S * 200.0, rel=0.1)
    assert state.best_rate == 500.0


def test_a_kept_trial_loses_its_pauses_alone() -> None:
    course = Counted(*pair(8, 2), rate=launch_bound)
    course.until(lambda: results(course) == ["kept"])
    course.look(2)
    before = launch_bound({"micro_batch": 8})
    assert course.tuner.state.regret_units == pytest.approx(before * 0.5 * 2)  # two knobs, half a second each


def test_the_best_known_rate_is_that_of_the_values_that_are_kept() -> None:
    course = Counted()
    course.rest()
    course.look(40)
    assert course.tuner.state.best_rate == pytest.approx(launch_bound(course.values))


def test_the_loss_is_unknown_without_the_durations_of_iterations() -> None:
    course = Course()
    course.look(5)
    assert course.tuner.state.regret_units == 0.0
    course.into_trial()
    assert course.tuner.state.regret_units is None


def test_the_account_of_an_earlier_tuner_goes_on() -> None:
    course = Counted()
    course.tuner.charge(TunerState(regret_units=70.0, best_rate=900.0, lived_s=60.0))
    assert (course.tuner.state.regret_units, course.tuner.state.best_rate) == (70.0, 900.0)
    course.tuner.charge(TunerState(lived_s=60.0, spent=0.1))
    assert course.tuner.state.regret_units is None, "an older daemon does not report it"


@pytest.mark.parametrize(
    ("looks", "units"),
    [
        ([(10.0, 600.0, 0.0)], 400.0),
        ([(10.0, 1100.0, 0.0)], 0.0),
        ([(10.0, 600.0, YOUNG_S)], 0.0),
        ([(10.0, 600.0, 0.0), (1.0, None, 0.0)], None),
    ],
)
def test_what_a_trial_loses(looks: list[tuple[Any, Any, Any]], units: float | None) -> None:
    regret = Regret()
    regret.begin(100.0, 0.0)
    for seconds, work, lived_s in looks:
        regret.look(seconds, work, lived_s)
    assert regret.units == units
    regret.end()
    assert (regret.units, regret.counts) == (units, False)


def test_a_trial_after_the_first_hour_is_not_counted() -> None:
    regret = Regret()
    regret.begin(100.0, YOUNG_S)
    assert not regret.counts
