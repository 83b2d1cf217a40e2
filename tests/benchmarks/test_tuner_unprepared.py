"""The tuner on simulated loops that nobody prepared: it comes near to the grid, and breaks nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.tuner_unprepared import DEVELOPMENT, NEAR, Loop, drawn, drive, hour, number

UNKNOWN = "memory unknown"
"""Nothing is made larger where the memory that it would take is unknown."""
SLOWEST, SLOWEST_MIN = "slow, noisy, one size", 8
"""Six trials of iterations of 1 to 3 s take longer than the six minutes that are wanted."""
PIECES = 0.9
"""The last step of a number that counts pieces might take twice the memory, which is not there."""


@pytest.mark.parametrize("name", DEVELOPMENT)
def test_it_comes_near_to_the_grid(name: str) -> None:
    found = drive(DEVELOPMENT[name], 1000)
    assert not found["lost"]
    assert not found["learning"]
    assert found["trials"] <= 20
    if name == UNKNOWN:
        assert found["trials"] == 0
    elif "pieces" in name and "large" not in name:
        assert found["share"] >= PIECES
    else:
        assert found["share"] >= NEAR
        assert found["minutes"] < (SLOWEST_MIN if name == SLOWEST else 6)


def test_a_farther_size_is_reached_where_parameters_are_known_not_to_grow() -> None:
    """One size alone does not show how much of the memory grows, and the next size is four times as large."""
    loop = drawn(30070)
    assert loop.knobs[0].spec.choices == (1, 4, 16, 64)
    assert 0 < loop.fixed < 7
    found = drive(loop, 30070)
    assert found["share"] >= NEAR
    assert not found["lost"]
    assert drive(replace(loop, fixed=0.0), 30070)["share"] < 0.5


@pytest.mark.slow
def test_most_loops_that_are_drawn_arrive() -> None:
    found = [drive(drawn(seed), seed) for seed in range(5000, 5010)]
    assert sum(one["share"] >= NEAR for one in found) >= 8
    assert not any(one["lost"] or one["learning"] for one in found)


@pytest.mark.slow
def test_a_loop_that_begins_at_its_best_stays_there_and_loses_little() -> None:
    loop = drawn(5000)
    assert loop.rate({knob.spec.name: knob.value for knob in loop.at_best().knobs}) == loop.best()
    found = hour(loop, 5000)
    assert found["share"] == 1.0
    assert found["spent"] <= 0.04


def test_a_run_that_runs_out_of_memory_is_lost() -> None:
    rows = number("rows", 64, (32, 64))
    loop = Loop(
        (rows,), lambda values: DEVELOPMENT["saves memory"].iteration({**values, "checkpointing": False})
    )
    found = drive(loop, 1)
    assert found["lost"]
    assert not math.isfinite(found["minutes"])
