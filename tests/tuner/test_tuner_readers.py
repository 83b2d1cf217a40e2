"""The tuner on runs that read while they compute: batches and the readers that they wait for."""

from __future__ import annotations

import math

import pytest

from hoptui.tuner.ladder import Candidate
from hoptui.tuner.tracks import Tracks
from hoptui.wire.tuning import Advice, Limits
from tests.tuner.course import GIB, Course, Values, diagnosed, knob, level


def test_a_run_at_its_power_limit_gets_the_readers_it_waits_for_and_larger_batches() -> None:
    def rate(values: Values) -> float:
        return (
            500.0 * math.log2(float(values["batch_size"])) * (1.0 if int(values["num_workers"]) > 2 else 0.95)
        )

    course = Course(
        knob("batch_size", 128, effect="learning", most=256),
        knob("num_workers", 2, cost="rebuild"),
        rate=rate,
        used=lambda _: 10 * GIB,
        limits=Limits(learning=("batch_size",)),
    )
    course.facts["diagnosis"] = diagnosed("power-limited")
    course.rest()
    assert course.values == {"batch_size": 256, "num_workers": 2}
    course.facts["diagnosis"] = diagnosed(
        "power-limited", Advice(knob="num_workers", direction="up", value=4)
    )
    course.until(lambda: course.values["num_workers"] == 4)


def balanced(values: Values) -> float:
    """A rate that readers, launches and the GPU hold to about the same, each by its own knob."""
    batch = float(values["batch_size"])
    return batch / max(0.02, 0.005 + 0.00025 * batch, batch / (1500.0 * float(values["num_workers"])))


def folder_run(verdict: str) -> Course:
    course = Course(
        knob("batch_size", 60, effect="learning", cost="free"),
        knob("num_workers", 2, cost="rebuild"),
        rate=balanced,
        used=lambda values: round((10 + 0.01 * float(values["batch_size"])) * GIB),
        limits=Limits(learning=("batch_size",), budget=1.0),
    )
    course.facts["diagnosis"] = diagnosed(verdict)
    return course


@pytest.mark.parametrize("verdict", ["unknown", "launch-bound", "power-limited"])
def test_a_batch_and_its_readers_are_raised_together_where_neither_alone_helps(verdict: str) -> None:
    alone = folder_run(verdict)
    alone.tuner.freeze("num_workers")
    alone.rest()
    assert int(alone.values["batch_size"]) < 128, "a larger batch is not faster"
    both = folder_run(verdict)
    both.rest()
    assert balanced(both.values) > 1.15 * balanced({"batch_size": 60, "num_workers": 2})
    together = [trial for trial in both.tuner.state.tried if len(trial.changes) == 2]
    assert {change.knob for change in together[0].changes} == {"batch_size", "num_workers"}
    assert together[0].result == "kept"
    assert together[0].text.startswith("both at once")


def test_what_was_tried_together_in_vain_is_not_tried_again_before_the_run_is_another() -> None:
    course = folder_run("power-limited")
    course.rate = level
    course.rest()
    together = [p for p in course.proposals if len(p.changes) == 2 and "both at once" in p.why]
    assert len(together) == 1
    count = len(course.proposals)
    course.look(600)
    assert len(course.proposals) == count


@pytest.mark.parametrize(
    ("knob", "ceilings"),
    [("", (120, math.inf)), ("batch_size", (120, math.inf)), ("num_workers", (math.inf, 4))],
)
def test_of_two_that_failed_together_the_one_to_blame_gets_a_ceiling(
    knob: str, ceilings: tuple[float, float]
) -> None:
    tracks = Tracks(Limits(learning=("batch_size",)))
    batch, readers = tracks.levers(folder_run("unknown").scene(), set())
    both = ((batch, 120), (readers, 4))
    tracks.failed(Candidate(both, 1, ""), 0, knob)
    assert (tracks.of(batch).ceiling, tracks.of(readers).ceiling) == ceilings
    assert tracks.in_vain(both)


def test_the_batch_of_a_run_that_waits_is_not_raised_with_its_readers_either() -> None:
    course = folder_run("data-bound")
    course.rate = level
    course.rest()
    assert not [p for p in course.proposals if any(c.knob == "batch_size" for c in p.changes)]
