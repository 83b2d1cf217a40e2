"""The tuner on runs that read while they compute: batches and the readers that they wait for."""

from __future__ import annotations

import math

import pytest

from hoptui.domain.diagnosis import Advice
from hoptui.domain.facts import fact
from hoptui.domain.tuning import Limits, Measured
from hoptui.protocol.messages import LATER_CODE, CommandRecord, Stage
from hoptui.tuner.search.parameter_history import BELIEVED, SWAYS_S, ParameterHistories
from hoptui.tuner.search.space import Candidate, Lever
from tests.tuner.simulated_run import GIB, SECOND, Course, Values, diagnosed, knob, level, results, within

BOTH = fact("trial.both")


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
    alone.tuner.overrides.freeze(["num_workers"])
    alone.rest()
    assert int(alone.values["batch_size"]) < 128, "a larger batch is not faster"
    both = folder_run(verdict)
    both.rest()
    assert balanced(both.values) > 1.15 * balanced({"batch_size": 60, "num_workers": 2})
    together = [trial for trial in both.tuner.state.tried if len(trial.changes) == 2]
    assert {change.knob for change in together[0].changes} == {"batch_size", "num_workers"}
    assert together[0].result == "kept"
    assert together[0].why[0] == BOTH


def test_what_was_tried_together_in_vain_is_not_tried_again_before_the_run_is_another() -> None:
    course = folder_run("power-limited")
    course.rate = level
    course.rest()
    together = [p for p in course.proposals if len(p.changes) == 2 and BOTH in p.why]
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
    tracks = ParameterHistories(Limits(learning=("batch_size",)))
    batch, readers = tracks.levers(folder_run("unknown").observation(), set())
    both = ((batch, 120), (readers, 4))
    tracks.failed(Candidate(both, 1), 0, knob)
    assert (tracks.of(batch).ceiling, tracks.of(readers).ceiling) == ceilings
    assert tracks.in_vain(both)


def test_the_batch_of_a_run_that_waits_is_not_raised_with_its_readers_either() -> None:
    course = folder_run("data-bound")
    course.rate = level
    course.rest()
    assert not [p for p in course.proposals if any(c.knob == "batch_size" for c in p.changes)]


LONG = round(SWAYS_S * SECOND)
MORE_READERS = Advice(knob="num_workers", direction="up", value=2)


def test_readers_that_are_advised_come_first_again_once_another_knob_has_been_turned() -> None:
    course = Course(
        knob("batch_size", 16, effect="learning"),
        knob("num_workers", 1, cost="rebuild"),
        knob("prefetch_factor", 4, cost="rebuild"),
        rate=balanced,
        used=lambda _: 10 * GIB,
        limits=Limits(learning=("batch_size",), budget=1.0),
    )
    course.facts["diagnosis"] = diagnosed("launch-bound", MORE_READERS)
    course.until(lambda: results(course) == ["reverted", "kept"])
    assert course.values == {"batch_size": 32, "num_workers": 1, "prefetch_factor": 4}
    course.facts["diagnosis"] = diagnosed("data-bound", MORE_READERS)
    course.until(lambda: len(results(course)) == 3)
    again = course.tuner.state.tried[-1]
    assert again.changes[0].knob == "num_workers"
    assert again.why[-1] == fact("trial.again", why=fact("again.other_knob"))
    assert course.values["num_workers"] == 2


def test_only_the_speeds_of_the_same_values_are_compared() -> None:
    tracks, batch = ParameterHistories(Limits(learning=("batch_size",))), knob("batch_size", 60)
    lever = Lever(batch, None, "batch", learning=True)
    tracks.sway({"batch_size": 60}, 1000.0, 0)
    tracks.dropped(Candidate(((lever, 120),), 1), Measured(before=1000.0, gain=0.0, interval=0.01))
    tracks.sway({"batch_size": 60}, 500.0, 0)
    assert not tracks.sway({"batch_size": 30}, 500.0, LONG)
    assert not tracks.sway({"batch_size": 60}, 500.0, 2 * LONG), (
        "what was refused is not known of these any more"
    )
    tracks.dropped(Candidate(((lever, 120),), 1), Measured(before=1000.0, gain=0.0, interval=0.01))
    tracks.sway({"batch_size": 60}, 500.0, 0)
    assert tracks.sway({"batch_size": 60}, 500.0, LONG)


def swaying_run() -> Course:
    course = Course(
        knob("num_workers", 1, cost="rebuild"), used=lambda _: 10 * GIB, limits=Limits(budget=1.0)
    )
    course.facts["diagnosis"] = diagnosed("data-bound", MORE_READERS)
    course.rate = level
    course.rest()
    assert results(course) == ["reverted"]
    return course


def test_what_was_in_vain_while_the_run_was_faster_is_tried_again() -> None:
    course = swaying_run()

    def slower(values: Values) -> float:
        return 400.0 * min(2, int(values["num_workers"]))

    course.rate = slower
    course.until(lambda: results(course) == ["reverted", "kept"])
    assert course.values["num_workers"] == 2
    drift = within(course.tuner.state.tried[-1].why[-1])
    assert (drift.code, drift.fields["gain"]) == ("again.drift", pytest.approx(-0.2, abs=0.005))


def test_a_run_that_sways_without_end_is_not_tried_on_without_end() -> None:
    course = swaying_run()
    for _ in range(8):
        course.rate = lambda _: 400.0
        course.look(120)
        course.rate = level
        course.look(120)
    assert results(course) == ["reverted"] * (1 + BELIEVED)


def reading_itself(rate: dict[int, float], name: str = "num_workers") -> Course:
    """A run that reads in its own process. With a usual name, it is told to read in four others."""
    course = Course(
        knob(name, 0, cost="rebuild", choices=tuple(rate)),
        rate=lambda values: rate[int(values[name])],
        used=lambda _: 10 * GIB,
        limits=Limits(budget=1.0),
    )
    four = [Advice(knob=name, direction="up", value=4)] if name == "num_workers" else []
    course.facts["diagnosis"] = diagnosed("data-bound", *four)
    return course


def test_a_run_that_reads_in_its_own_process_gets_as_many_readers_as_advised_at_once() -> None:
    course = reading_itself({0: 300.0, 1: 296.0, 2: 600.0, 4: 1100.0, 8: 2000.0})
    course.rest()
    assert course.values["num_workers"] == 8
    assert [trial.changes[0].value for trial in course.tuner.state.tried] == [4, 8]


@pytest.mark.parametrize(
    ("rate", "tried"),
    [
        ({0: 300.0, 1: 296.0, 2: 600.0, 4: 1100.0, 8: 2000.0}, [2, 4, 8]),
        ({0: 300.0, 1: 299.0, 4: 1100.0, 8: 2000.0}, [1, 4, 8]),
        ({0: 300.0, 1: 299.0, 4: 299.0, 8: 299.0}, [1, 4]),
        ({0: 300.0, 1: 150.0, 4: 100.0, 8: 50.0}, [1]),
    ],
)
def test_readers_of_another_name_begin_with_what_surely_fits_into_memory(
    rate: dict[int, float], tried: list[int]
) -> None:
    course = reading_itself(rate, name="jpeg_procs")
    course.rest()
    assert [trial.changes[0].value for trial in course.tuner.state.tried] == tried


def test_fewer_readers_are_tried_where_as_many_as_advised_were_slower() -> None:
    course = reading_itself({0: 300.0, 1: 420.0, 2: 400.0, 4: 150.0, 8: 100.0})
    course.rest()
    assert results(course)[:2] == ["reverted", "kept"]
    assert course.values["num_workers"] == 1


def test_the_wait_for_the_next_epoch_is_no_part_of_a_trial() -> None:
    def fate(record: CommandRecord) -> tuple[Stage, str] | None:
        return ("scheduled", LATER_CODE) if course.seconds % 900 else None

    course = Course(
        knob("num_workers", 2, cost="rebuild", most=4),
        rate=lambda values: 200.0 * int(values["num_workers"]),
        used=lambda _: 10 * GIB,
        fate=fate,
    )
    course.facts["diagnosis"] = diagnosed("data-bound")
    course.until(lambda: course.values["num_workers"] == 4, seconds=6000)
    course.look(600)
    assert results(course) == ["kept"] * len(results(course))
    assert all(trial.seconds < 300 for trial in course.tuner.state.tried)
    assert course.values["num_workers"] == 4
