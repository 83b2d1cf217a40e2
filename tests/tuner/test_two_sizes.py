"""Two sizes of which neither helps alone are raised together."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tuner_unprepared import DEVELOPMENT, NEAR, drive
from tests.tuner.simulated_run import GIB, Course, Values, knob, results

LOOP = "two sizes that limit each other"


def slower_part(values: Values) -> float:
    """A rate that the slower of two parts decides."""
    return 60.0 * min(float(values["micro_batch"]), float(values["num_envs"]), 32)


def of_both(values: Values) -> int:
    """Memory that grows with both, in bytes."""
    return round((2 + 0.01 * float(values["micro_batch"]) * float(values["num_envs"])) * GIB)


def of_large_pieces(values: Values) -> int:
    """The same, of a run in which 8 of each do not fit."""
    return round((15 + float(values["micro_batch"]) * float(values["num_envs"])) * GIB)


def course(most: int = 32, used: Callable[[Values], int] = of_both) -> Course:
    knobs = knob("micro_batch", 4, most=most), knob("num_envs", 4, most=most)
    return Course(*knobs, rate=slower_part, used=used)


def moves(tuned: Course) -> list[tuple[int, str]]:
    """How many knobs each trial has changed, and how it ended."""
    return [(len(trial.changes), trial.result) for trial in tuned.tuner.state.tried]


def test_two_sizes_are_raised_together_once_neither_helps_alone() -> None:
    tuned = course()
    tuned.rest()
    assert moves(tuned)[:3] == [(1, "reverted"), (1, "reverted"), (2, "kept")]
    assert (tuned.values["micro_batch"], tuned.values["num_envs"]) == (32, 32)


def test_they_are_raised_together_again_before_anything_else() -> None:
    tuned = course()
    tuned.until(lambda: results(tuned).count("kept") == 2)
    assert moves(tuned)[2:] == [(2, "kept"), (2, "kept")]


def test_sizes_that_help_alone_are_not_raised_together() -> None:
    tuned = course(most=8)
    tuned.rate = lambda values: 60.0 * float(values["micro_batch"]) * float(values["num_envs"])
    tuned.rest()
    assert {count for count, _ in moves(tuned)} == {1}
    assert (tuned.values["micro_batch"], tuned.values["num_envs"]) == (8, 8)


def test_a_size_that_is_slower_alone_is_not_raised_with_another() -> None:
    tuned = course()
    tuned.rate = lambda values: 400.0 if values == {"micro_batch": 4, "num_envs": 4} else 300.0
    tuned.rest()
    assert {count for count, _ in moves(tuned)} == {1}


def test_a_pair_in_vain_is_not_tried_again() -> None:
    tuned = course()
    tuned.rate = lambda _: 400.0
    tuned.rest()
    tuned.look(200)
    assert moves(tuned).count((2, "reverted")) == 1


def test_two_sizes_are_raised_as_far_as_they_fit_together() -> None:
    tuned = course(most=8, used=of_large_pieces)
    tuned.rest()
    tuned.look(200)
    together = [trial.changes for trial in tuned.tuner.state.tried if len(trial.changes) == 2]
    assert [[change.value for change in changes] for changes in together] == [[8, 6]], "8 of both do not fit"


def test_a_loop_that_needs_two_sizes_comes_to_its_best() -> None:
    found = drive(DEVELOPMENT[LOOP], seed=1000)
    assert found["before"] < 0.3
    assert found["share"] >= NEAR
    assert not found["lost"]
