"""The last minutes of a job: what is kept, and what is unknown."""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from hoptui.domain.job_history import KEPT_S, MOST_MOMENTS, JobHistory, moment
from screenshots.made_up_job import state, states


def test_a_history_is_bounded_in_time_and_number() -> None:
    history = JobHistory()
    for second in range(1000):
        history.add(float(second), state(2, 2, 0.0))
    assert len(history.moments) <= MOST_MOMENTS
    assert history.moments[-1].t - history.moments[0].t <= KEPT_S


def test_a_large_job_has_fewer_moments_over_the_same_time() -> None:
    history = JobHistory()
    large = structs.replace(state(1, 1, 0.0), world=20_000)
    for second in range(1000):
        history.add(float(second), large)
    assert len(history.moments) <= 31
    assert history.moments[-1].t - history.moments[0].t > 0.9 * KEPT_S


@pytest.mark.parametrize("change", [{"epoch": 2}, {"world": 8}])
def test_a_restart_and_another_number_of_ranks_begin_anew(change: dict[str, int]) -> None:
    history = JobHistory()
    for t, one in states(2, 2, 20):
        history.add(t, one)
    history.add(20.0, structs.replace(state(2, 2, 20.0), **change))
    assert [one.t for one in history.moments] == [20.0]


def test_a_clock_that_goes_back_begins_anew() -> None:
    history = JobHistory()
    history.add(100.0, state(2, 2, 0.0))
    history.add(10.0, state(2, 2, 1.0))
    assert [one.t for one in history.moments] == [10.0]


def test_what_a_silent_node_said_last_is_not_a_reading_of_now() -> None:
    job = state(10, 2, 100.0)
    silent = next(node for node in job.nodes if node.condition == "silent")
    missing = next(node for node in job.nodes if node.condition == "missing")
    assert silent.summary is not None
    found = moment(0.0, job)
    assert all(math.isnan(found.of_rank("own_s", rank.rank)) for rank in silent.summary.ranks)
    assert math.isnan(found.of_rank("power_w", 2 * missing.index))
    assert math.isnan(found.network[silent.index])
    assert found.of_rank("own_s", 0) > 0
    assert math.isnan(found.of_rank("own_s", 10_000)), "no such rank"
