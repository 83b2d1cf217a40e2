"""What the tuner goes on from: another one of this run, what served a run of the same kind, a run that is not
what it was."""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from hoptui.domain.facts import fact
from hoptui.domain.tuning import Limits
from hoptui.protocol.messages import CommandRecord, Stage
from hoptui.tuner.observation import ChangePoint, PriorResult
from hoptui.tuner.search.parameter_history import CEILING_S
from hoptui.tuner.tuner import Tuner
from tests.tuner.simulated_run import GIB, SECOND, Course, knob, launch_bound, level, pair, results


def test_a_tuner_after_it_goes_on_with_what_it_has_spent_and_found_to_be_too_much() -> None:
    def refuse(record: CommandRecord) -> tuple[Stage, str] | None:
        large = record.knob == "micro_batch" and isinstance(record.wanted, int) and record.wanted >= 16
        return ("failed", "setter_raised") if large else None

    limits = Limits(budget=0.5)
    course = Course(fate=refuse, limits=limits)
    course.until(lambda: "failed" in results(course))
    course.rest()
    left = course.tuner.state
    assert left.lived_s == pytest.approx(course.seconds, abs=1.0)
    course.tuner = Tuner(limits, course.seconds * SECOND, "mara")
    course.tuner.take_over(left)
    course.rest()
    assert course.tuner.state.spent > 0
    assert course.tuner.state.lived_s == pytest.approx(course.seconds, abs=1.0)
    assert "failed" not in results(course), "the size is not tried at once again"
    course.look(int(CEILING_S), every=3)
    assert "failed" in results(course)


def test_it_begins_where_a_run_of_the_same_kind_ended() -> None:
    known = PriorResult({"micro_batch": 128, "grad_accum": 4}, peak=36 * GIB)
    course = Course(known=known)
    course.until(lambda: course.tuner.state.trial is not None)
    assert [(c.knob, c.value) for c in course.proposals[0].changes] == [
        ("micro_batch", 128),
        ("grad_accum", 4),
    ]
    assert course.proposals[0].why == (fact("trial.prior_result"),)
    course.rest()
    assert course.values["micro_batch"] == 256
    assert len(results(course)) == 2


def test_it_does_not_begin_with_what_would_not_fit_here() -> None:
    course = Course(known=PriorResult({"micro_batch": 128}, peak=36 * GIB))
    course.others = 40
    course.until(lambda: course.tuner.state.trial is not None)
    assert course.proposals[0].changes[0].value == 16


SWITCHES = tuple(
    knob(name, "off", cost="rebuild", choices=("off", "on")) for name in ("compile", "cuda_graphs", "fused")
)
SWITCHED_ON = PriorResult({k.spec.name: "on" for k in SWITCHES}, peak=GIB)


def test_what_served_another_run_keeps_nothing_else_from_being_tried_where_it_costs_too_much() -> None:
    course = Course(*pair(), *SWITCHES, known=SWITCHED_ON, limits=Limits(budget=0.02))
    course.rest()
    assert course.values["micro_batch"] == 256
    rich = Course(*pair(), *SWITCHES, known=SWITCHED_ON, limits=Limits(budget=0.1))
    rich.into_trial()
    assert {change.knob for change in rich.proposals[0].changes} == set(SWITCHED_ON.values)


def test_what_served_another_run_is_not_forgotten_before_it_can_be_afforded() -> None:
    course = Course(*pair(), *SWITCHES, known=SWITCHED_ON, limits=Limits(budget=0.018))
    course.rest()
    course.look(60)
    assert course.tuner.found() is None, "it would take the place of what may serve better"
    course.knobs |= {name: structs.replace(course.knobs[name], took_s=1.0) for name in SWITCHED_ON.values}
    course.until(lambda: course.values["compile"] == "on")
    course.until(lambda: course.tuner.found() is not None)
    assert course.values["compile"] == "off", "here it brings nothing"


def test_a_shift_opens_the_search_again_at_most_twice() -> None:
    course = Course(rate=level, limits=Limits(budget=0.2))
    course.rest()
    for proposals in (4, 6, 6):
        at = course.seconds * SECOND
        course.facts = {"shift": ChangePoint(at, course.step, 500.0, 400.0, fact("shift.no_cause"))}
        course.look()
        course.facts = {}
        course.look(600)
        assert len(course.proposals) == proposals


def test_a_run_that_goes_back_to_a_checkpoint_is_measured_anew() -> None:
    course = Course(rate=level)
    course.look(10)
    course.step, course.points, course.epoch = 4, [], 2
    course.rate = launch_bound
    course.rest()
    first = course.tuner.state.tried[0]
    assert first.measured is not None
    assert first.measured.before == pytest.approx(285.7, rel=0.01)
    assert course.values["micro_batch"] == 256


def test_a_process_that_loads_an_earlier_checkpoint_is_measured_anew_at_once() -> None:
    course = Course(rate=level)
    course.step = 50_000
    course.rest()
    course.step, course.points = 40_000, []
    course.rate = lambda _: 150.0
    course.look()
    assert course.tuner.incumbent.level is None
    course.look(20)
    assert course.tuner.incumbent.level == 150.0
    assert course.tuner.incumbent.missing(None) == 0


def test_a_new_process_is_not_compared_with_the_one_before() -> None:
    course = Course(rate=level)
    course.look(14)
    course.epoch, course.rate = 2, launch_bound
    course.until(lambda: course.tuner.state.tried != ())
    assert course.tuner.state.tried[0].measured is not None
    assert course.tuner.state.tried[0].measured.before == pytest.approx(285.7, rel=0.01)


def test_a_number_below_zero_is_no_size_to_compare_others_with() -> None:
    course = Course(
        knob("chunk", -1, min=-1),
        rate=lambda values: 500.0 + min(200.0, 50.0 * float(values["chunk"])),
        used=lambda _: 10 * GIB,
        known=PriorResult({"chunk": 4}, peak=GIB),
    )
    course.rest()
    assert results(course)[0] == "kept"
    assert course.values == {"chunk": 4}


@pytest.mark.parametrize("known", [None, PriorResult({"chunk": 4}, peak=GIB)])
def test_memory_that_is_taken_with_a_number_below_zero_says_nothing_of_sizes(
    known: PriorResult | None,
) -> None:
    course = Course(knob("chunk", -1, min=-1), rate=level, used=lambda _: 10 * GIB, known=known)
    course.rest()
    assert course.values == {"chunk": -1}
    made = len(course.proposals)
    course.set("chunk", 4)
    course.look(100)
    assert course.proposals[made].changes[0].before == 4


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_left_alone_and_keeps_nothing_else_from_being_tried(value: float) -> None:
    odd = structs.replace(knob("scale", 1.0, kind="float", cost="rebuild"), value=value)
    course = Course(*pair(), odd, known=PriorResult({"scale": 2.0}, peak=GIB))
    course.rest()
    assert course.values["micro_batch"] == 256
    assert {change.knob for proposal in course.proposals for change in proposal.changes} == {
        "micro_batch",
        "grad_accum",
    }
