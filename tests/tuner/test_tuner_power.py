"""The tuner and the power that the GPUs draw: a limit for each of them, and the energy of all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hoptui.domain.facts import fact
from hoptui.domain.tuning import Limits
from hoptui.tuner.observation import Observation
from tests.tuner.simulated_run import Course, knob, results


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


def capped(micro: int) -> tuple[float, float]:
    """Samples/s and watts of a GPU at its power limit: the fastest size is not the most efficient one."""
    return {1: (80.0, 300.0), 2: (150.0, 380.0), 4: (260.0, 480.0)}.get(micro, (275.0, 700.0))


class Capped(Course):
    """A run by `capped`. The power follows a change after `lag` seconds, as the readings do."""

    def __init__(self, *, lag: int = 3, start: int = 1) -> None:
        limits = Limits(objective="energy", budget=0.2)
        super().__init__(
            knob("micro_batch", start, most=64),
            rate=lambda v: capped(int(v["micro_batch"]))[0],
            limits=limits,
        )
        self.lag = lag
        self.watts: list[float] = []

    def observation(self) -> Observation:
        self.watts.append(capped(int(self.values["micro_batch"]))[1])
        self.facts |= {"drawn_w": self.watts[-1 - min(self.lag, len(self.watts) - 1)]}
        seconds = [(step, 0.5) for step, _ in self.points]
        return replace(super().observation(), durations=seconds)


def test_the_most_efficient_value_is_found_and_not_the_fastest() -> None:
    course = Capped()
    course.rest()
    assert course.values == {"micro_batch": 4}
    faster = next(trial for trial in course.tuner.state.tried if trial.result == "reverted")
    assert faster.throughput is not None
    assert faster.measured is not None
    assert (faster.throughput.gain or 0.0) > 0.05 > 0.0 > (faster.measured.gain or 0.0)


def test_the_power_before_a_change_does_not_count_for_the_values_after_it() -> None:
    """Otherwise a trial that draws more would look as if it saved energy."""
    course = Capped()
    course.rest()
    first = course.tuner.state.tried[0]
    assert first.measured is not None
    assert first.measured.gain == pytest.approx((150 / 380) / (80 / 300) - 1, rel=1e-6)
    assert first.throughput is not None
    assert (first.throughput.metric, first.throughput.before, first.throughput.after) == ("", 80.0, 150.0)


def test_the_work_with_the_values_of_a_kept_trial_is_counted() -> None:
    course = Capped()
    course.rest()
    kept = [trial for trial in course.tuner.state.tried if trial.result == "kept"]
    before = kept[-1].units
    course.look(10)
    kept = [trial for trial in course.tuner.state.tried if trial.result == "kept"]
    assert kept[-1].units - before == 10 * 260.0
    course.person("micro_batch", 1)
    course.look(5)
    course.person("micro_batch", 4)
    course.look(50)
    after = [trial for trial in course.tuner.state.tried if trial.result == "kept"]
    assert after[-1].units - kept[-1].units <= 260.0, (
        "whoever sets a knob, the values are no longer the tuner's"
    )


def test_without_the_objective_energy_a_trial_has_no_other_effect() -> None:
    course = Course()
    course.rest()
    assert course.tuner.state.tried
    assert all(t.throughput is None and t.units == 0.0 for t in course.tuner.state.tried)
