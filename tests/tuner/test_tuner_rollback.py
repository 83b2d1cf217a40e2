"""The way back from a trial: beside people, over restarts, refused, and what is told of it; and trials that
cost too much."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.domain.facts import fact, nested
from hoptui.domain.tuning import Change
from hoptui.protocol.messages import CommandRecord, Stage
from hoptui.tuner.rollback import DECLARED_S, RETRY_S, TRIES
from hoptui.tuner.trial import harmful
from tests.tuner.simulated_run import GIB, SECOND, Course, knob, launch_bound, level, pair, results


class Coupled(Course):
    """A run in which the pieces follow the micro-batch, and the micro-batch the pieces, where only one of
    them is set."""

    def _obey(self) -> None:
        pending = [record.knob for record in self.records if record.stage == "scheduled"]
        super()._obey()
        if len(pending) == 1:
            other = {"micro_batch": "grad_accum", "grad_accum": "micro_batch"}[pending[0]]
            value = 512 // int(self.values[pending[0]])
            self.knobs[other] = structs.replace(self.knobs[other], value=value)


def test_what_a_person_sets_on_the_way_back_stays_with_all_that_follows_from_it() -> None:
    refused = True

    def fate(record: CommandRecord) -> tuple[Stage, str] | None:
        return ("rejected", "restarting") if refused and record.wanted == 8 else None

    course = Coupled(rate=level, fate=fate)
    course.into_trial()
    course.until(lambda: any(record.stage == "rejected" for record in course.records))
    course.person("micro_batch", 32)
    course.look(3)
    refused = False
    course.look(30)
    assert course.values == {"micro_batch": 32, "grad_accum": 16}
    assert course.tuner.state.frozen == ("grad_accum", "micro_batch")


def test_a_way_back_that_is_refused_again_and_again_is_told_and_the_knob_left_alone() -> None:
    def refuse(record: CommandRecord) -> tuple[Stage, str] | None:
        return ("failed", "setter_raised") if record.wanted == 8 else None

    course = Course(knob("micro_batch", 8), rate=level, fate=refuse)
    course.into_trial()
    course.until(lambda: course.tuner.state.frozen == ("micro_batch",))
    back = course.tuner.state.tried[-1]
    assert back.result == "failed"
    assert back.changes == (Change(knob="micro_batch", before=16, value=8),)
    assert back.why[-1] == fact("rollback.refused", tries=TRIES)
    assert len(course.proposals) == 1 + TRIES
    course.look(round(2 * RETRY_S))
    assert len(course.proposals) == 1 + TRIES


def test_after_a_restart_nothing_is_set_before_all_knobs_of_the_trial_are_declared() -> None:
    course = Coupled(rate=level, used=lambda _: 10 * GIB)
    course.into_trial()
    declared, course.epoch, course.points = dict(course.knobs), 2, []
    course.knobs = {"grad_accum": declared["grad_accum"]}
    course.look(10)
    (waits,) = course.tuner.state.facts
    assert waits.code == "rollback.waits"
    assert nested(waits.fields["until"]) == fact("rollback.once_declared", knobs=["micro_batch"])
    assert len(course.proposals) == 1
    course.knobs = declared
    course.look(5)
    assert course.values == {"micro_batch": 8, "grad_accum": 64}


def test_a_run_that_goes_back_to_an_earlier_iteration_in_a_trial_leaves_nothing_to_measure() -> None:
    course = Course(rate=level)
    course.step = 50_000
    course.into_trial()
    course.step, course.points = 40_000, []
    course.look(5)
    assert results(course) == ["interrupted"]
    assert course.tuner.state.tried[0].why[-1] == fact("trial.run_went_back")
    assert course.values == {"micro_batch": 8, "grad_accum": 64}


def test_a_knob_that_the_next_process_does_not_have_is_not_waited_for_without_end() -> None:
    course = Course(*pair(), rate=level)
    course.into_trial()
    course.epoch, course.points = 2, []
    course.knobs = {"micro_batch": course.knobs["micro_batch"]}
    course.look(round(DECLARED_S) + 5)
    assert course.values == {"micro_batch": 8}


def test_a_trial_is_told_with_what_was_read_back() -> None:
    course = Course(knob("micro_batch", 8))
    course.reads = lambda value: max(8, int(value) * 3 // 4)
    course.until(lambda: "kept" in results(course))
    assert course.tuner.state.tried[-1].changes == (Change(knob="micro_batch", before=8, value=12),)


def making_room() -> Course:
    """A run whose tuner has just asked for less, since others have taken the memory; nothing is obeyed
    yet."""
    course = Course()
    course.rest()
    course.obeys, course.others = False, 17
    tried = len(course.proposals)
    course.until(lambda: len(course.proposals) > tried)
    return course


def test_room_that_a_person_made_otherwise_is_not_told_as_kept() -> None:
    course = making_room()
    course.records = [
        structs.replace(record, stage="superseded") if record.stage == "scheduled" else record
        for record in course.records
    ]
    course.obeys = True
    course.person("micro_batch", 64)
    course.person("grad_accum", 8)
    course.look(4)
    told = course.tuner.state.tried[-1]
    assert course.values == {"micro_batch": 64, "grad_accum": 8}
    assert told.result == "interrupted"
    assert told.why[-1] == fact("trial.user_set", knobs=["grad_accum", "micro_batch"])


def test_room_that_a_restart_took_away_with_its_knobs_is_not_told_as_kept() -> None:
    course = making_room()
    course.epoch, course.points, course.used, course.rate = 2, [], None, level
    course.knobs = {"grad_accum": course.knobs["grad_accum"]}
    course.records, course.obeys = [], True
    course.look(round(DECLARED_S) + 5)
    told = course.tuner.state.tried[-1]
    assert told.result == "failed"
    assert told.why[-1] == fact("trial.not_declared", knobs=["micro_batch"])


def test_stopping_while_room_is_made_makes_it_and_tells_it() -> None:
    course = making_room()
    asked = course.proposals[-1]
    rollback = course.tuner.stop(course.seconds * SECOND)
    assert rollback is not None
    assert rollback.targets == {c.knob: c.value for c in asked.changes}
    assert rollback.why == asked.why
    assert results(course)[-1] == "interrupted"


def test_a_trial_that_has_cost_more_than_all_of_the_budget_ends_as_soon_as_it_is_seen_to_be_bad() -> None:
    course = Course(rate=lambda values: launch_bound(values) if values["micro_batch"] == 8 else 1.0)
    course.into_trial()
    due, course.obeys = float(course.seconds), True
    while course.tuner.state.trial is not None and course.seconds < 2_000:
        course.seconds += 1
        if course.seconds >= due + 30:  # an iteration of the trial
            due = course.seconds
            course.step += 1
            course.points.append((course.step, 1.0))
        course.tuner.look(course.observation())
    assert results(course) == ["reverted"]
    assert course.tuner.state.tried[0].seconds < 72 + 2 * 30


@pytest.mark.parametrize(
    ("after", "bad"), [([1.0, 1.0, 1.0], True), ([1.0, 1.0], False), ([1.0, 9.0, 1.0], False)]
)
def test_two_iterations_after_the_first_tell_harm_where_the_budget_is_overdrawn(
    after: list[float], bad: bool
) -> None:
    assert harmful([9.0] * 30, after, overdrawn=True) == bad
    assert not harmful([9.0] * 30, after)
