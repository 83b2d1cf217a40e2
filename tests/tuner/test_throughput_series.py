"""The iterations that the tuner compares."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from hoptui.domain.tuning import Objective
from hoptui.tuner.effect import WARM_UP
from hoptui.tuner.observation import Observation
from hoptui.tuner.throughput_series import BASELINE, BEFORE, LEAST, ObjectiveSeries
from tests.tuner.simulated_run import SECOND

SCATTERED = [
    500.0 * math.exp(0.25 * deviate) for deviate in map(random.Random(4).gauss, [0.0] * 120, [1.0] * 120)
]


def fed(
    values: list[float],
    *,
    first: int = 0,
    seconds: float = 1.0,
    objective: Objective = "throughput",
    **facts: Any,
) -> ObjectiveSeries:
    """A series that has seen these values, one a look, from the iteration `first` on."""
    series = ObjectiveSeries(objective)
    points = [(first + i, value) for i, value in enumerate(values)]
    for i in range(len(points)):
        t = round(i * seconds * SECOND)
        series.take(
            Observation(
                t=t, epoch=1, state="live", knobs=(), points=points[: i + 1], metric="samples_per_s", **facts
            )
        )
    return series


def test_the_first_iterations_are_warm_up_and_a_point_counts_once() -> None:
    series = fed([500.0] * 20, first=100)
    assert len(series.since(0)) == 20 - WARM_UP
    assert series.newest == 119
    assert series.metric == "samples_per_s"


def test_nothing_from_before_a_cut_counts_nor_what_follows_it_at_once() -> None:
    series = fed([500.0] * 20)
    series.cut()
    points = [(i, 500.0 if i < 20 else 300.0) for i in range(40)]
    series.take(Observation(t=0, epoch=2, state="live", knobs=(), points=points))
    assert series.since(0) == [300.0] * (20 - WARM_UP)


def test_a_run_that_goes_back_begins_anew() -> None:
    series = fed([500.0] * 20, first=100)
    points = [(i, 300.0) for i in range(50, 60)]
    series.take(Observation(t=0, epoch=1, state="live", knobs=(), points=points))
    assert series.since(0) == [300.0] * (10 - WARM_UP)


def test_energy_is_told_for_each_joule_of_all_gpus_and_only_where_power_is_known() -> None:
    assert set(fed([600.0] * 20, objective="energy", power_w=75.0, drawn_w=300.0).since(0)) == {2.0}
    assert all(math.isnan(v) for v in fed([600.0] * 20, objective="energy").since(0))
    assert fed([600.0] * 20, objective="energy").count(0) == 0


def test_iterations_that_tell_nothing_push_none_out_that_do() -> None:
    energy = fed([600.0] * 40, objective="energy", drawn_w=300.0)
    unread = [(i, 600.0) for i in range(40, 40 + BEFORE)]
    energy.take(Observation(t=0, epoch=1, state="live", knobs=(), points=unread))
    assert energy.missing(0) == 0
    assert energy.values(0) == [2.0] * (40 - WARM_UP)
    assert energy.level(0) == 2.0


@pytest.mark.parametrize(
    ("values", "seconds", "needed"),
    [
        ([500.0, 505.0], 0.1, BASELINE),
        (SCATTERED, 0.1, BEFORE),
        ([500.0, 505.0], 20.0, LEAST),
    ],
)
def test_a_baseline_needs_more_where_it_scatters_and_less_where_it_is_slow(
    values: list[float], seconds: float, needed: int
) -> None:
    def enough(n: int) -> bool:
        # 0: what comes next was in doubt before.
        return fed((values * 200)[: n + WARM_UP], seconds=seconds).missing(0, 0.0) == 0

    assert enough(needed)
    assert not enough(needed - 1)


@pytest.mark.parametrize(("gain", "needed"), [(0.5, LEAST), (0.05, BASELINE), (None, BASELINE)])
def test_a_baseline_needs_less_where_much_is_expected(gain: float | None, needed: int) -> None:
    def missing(n: int, values: list[float]) -> int:
        return fed((values * 200)[: n + WARM_UP]).missing(0, gain)

    assert missing(needed, [500.0, 505.0]) == 0
    assert missing(needed - 1, [500.0, 505.0]) > 0
    assert missing(LEAST, [300.0] * 5 + [700.0] * 5) > 0


def test_the_pace_is_that_of_the_clock() -> None:
    assert fed([500.0] * 30, seconds=2.5).seconds == pytest.approx(2.5)
    assert fed([500.0]).seconds == 0.0
