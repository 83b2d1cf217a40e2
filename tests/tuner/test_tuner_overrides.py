"""The tuner beside people: their knobs, being told to stop or to leave a knob alone."""

from __future__ import annotations

from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.domain.tuning import Limits
from tests.tuner.simulated_run import GIB, SECOND, Course, Values, knob, launch_bound, level, pair, results


def test_what_a_person_sets_in_a_trial_stays_and_is_theirs() -> None:
    course = Course()
    course.into_trial()
    course.person("micro_batch", 4)
    course.look(600)
    assert course.values["micro_batch"] == 4
    assert results(course) == ["interrupted"]
    assert course.tuner.state.frozen == ("grad_accum", "micro_batch")
    assert len(course.proposals) == 1
    course.tuner.overrides.release("micro_batch")
    course.tuner.overrides.release("grad_accum")
    course.set("grad_accum", 128)
    course.until(lambda: course.values == {"micro_batch": 256, "grad_accum": 2})


def test_a_person_turning_another_knob_ends_the_trial_and_only_theirs_stays() -> None:
    course = Course(*pair(), knob("epochs", 10, effect="learning"))
    course.into_trial()
    course.person("epochs", 4)
    course.until(lambda: course.tuner.state.trial is None)
    course.look(3)
    assert course.values == {"micro_batch": 8, "grad_accum": 64, "epochs": 4}
    assert results(course) == ["interrupted"]
    assert course.tuner.state.tried[0].measured is None, "nothing is measured any more"
    assert course.tuner.state.frozen == ("epochs",)


def test_what_people_set_before_it_came_is_theirs_too() -> None:
    course = Course()
    course.person("micro_batch", 16)
    course.look(300)
    assert course.proposals == []
    assert set(course.tuner.state.frozen) == {"micro_batch"}


def test_while_the_run_does_not_answer_nothing_is_set_and_afterwards_the_trial_goes_back() -> None:
    course = Course(rate=level)
    course.into_trial()
    course.facts = {"state": "unresponsive"}
    course.tuner.overrides.freeze(["micro_batch"])
    course.look(200)
    assert course.tuner.state.stand == "waiting"
    assert len(course.proposals) == 1
    course.facts = {}
    course.look(5)
    assert course.values["micro_batch"] == 8


def test_stopping_takes_a_trial_back() -> None:
    course = Course()
    course.into_trial()
    rollback = course.tuner.stop(course.seconds * SECOND)
    assert rollback is not None
    changes = rollback.at_once(course.knobs.values(), course.records, ())
    assert {c.knob: c.value for c in changes} == {"micro_batch": 8, "grad_accum": 64}
    assert results(course) == ["interrupted"]
    assert course.tuner.state.stand == "off"
    assert course.look(5) is None


def test_stopping_between_trials_changes_nothing() -> None:
    course = Course()
    course.look(3)
    assert course.tuner.stop(4 * SECOND) is None


def test_a_knob_frozen_in_its_trial_goes_back_and_stays() -> None:
    course = Course()
    course.into_trial()
    course.tuner.overrides.freeze(["grad_accum"])
    course.look(300)
    assert course.values == {"micro_batch": 8, "grad_accum": 64}
    assert results(course) == ["interrupted"]
    assert len(course.proposals) == 2


def test_a_refusal_by_a_persons_hold_freezes_the_knob() -> None:
    course = Course(
        fate=lambda record: ("rejected", "held_by_person") if record.knob == "micro_batch" else None
    )
    course.look(300)
    assert "micro_batch" in course.tuner.state.frozen
    assert course.values == {"micro_batch": 8, "grad_accum": 64}
    assert results(course) == ["interrupted"]


def test_a_change_by_others_that_makes_the_run_another_one_opens_the_search_again() -> None:
    def rate(values: Values) -> float:
        return launch_bound(values) / 3 if values["batch_size"] == 512 else 500.0

    course = Course(*pair(), knob("batch_size", 256, effect="learning"), rate=rate)
    course.rest()
    assert results(course) == ["reverted"]
    course.look(20)
    course.person("batch_size", 512)
    course.until(lambda: course.values["micro_batch"] == 256)


def test_a_learning_rate_that_follows_its_schedule_is_nobodys_change() -> None:
    spec = KnobSpec(name="lr", kind="float", default=1.0)
    course = Course(*pair(), KnobState(spec=spec, value=1.0))
    for i in range(300):
        course.set("lr", 1.0 - i / 300)
        course.look()
    assert course.values["micro_batch"] == 256


def test_a_flood_of_refused_commands_does_not_hide_a_trial_from_its_tuner() -> None:
    course = Course(rate=level)
    course.fate = lambda record: ("rejected", "out_of_range") if record.origin.kind == "person" else None
    course.into_trial()
    for _ in range(40):
        course.person("micro_batch", -1)
    course.rest()
    assert results(course) == ["reverted"]
    assert course.values["micro_batch"] == 8


def test_what_a_person_chose_is_not_remembered_as_what_serves_best() -> None:
    course = Course(*pair(), knob("epochs", 10, effect="learning"))
    course.until(lambda: course.tuner.found() is not None)
    course.person("epochs", 4)  # none that it would turn
    course.rest()
    assert course.tuner.found() is not None
    course.person("micro_batch", 2)
    course.rest()
    assert course.values["micro_batch"] == 2
    assert course.tuner.found() is None


def test_what_people_hold_is_not_said_to_be_missing() -> None:
    course = Course(limits=Limits(dry=True))
    course.tuner.overrides.freeze(["micro_batch"])
    course.look(60)
    none = fact("search.all_left_alone", knobs=["micro_batch"])
    assert course.tuner.state.facts == (fact("tuner.nothing_tried", why=none),)
    other = Course(*pair(), knob("num_workers", 1024, cost="rebuild"), rate=level)
    other.tuner.overrides.freeze(["micro_batch"])
    other.rest()
    assert other.tuner.state.facts[-1] == fact("tuner.knobs_left_alone", knobs=["micro_batch"])
    nobody = Course(knob("hidden", 64, cost="restart"), rate=level, used=lambda _: GIB)
    nobody.look(60)
    assert nobody.tuner.state.facts == (fact("tuner.nothing_tried", why=fact("search.no_knob")),)
