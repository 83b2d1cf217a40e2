"""What the search says of why it tries something, or does not."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.domain.tuning import Advice
from tests.tuner.simulated_run import GIB, Course, diagnosed, knob, level, pair

COMPILE = Advice(knob="compile", direction="to", value="on")


@pytest.mark.parametrize("stale", [False, True])
def test_what_limited_the_run_before_a_change_is_not_told_as_of_now(stale: bool) -> None:
    course = Course()
    course.facts["diagnosis"] = structs.replace(diagnosed("launch-bound"), stale=stale)
    course.into_trial()
    when = "was launch-bound before the last change" if stale else "is launch-bound"
    assert course.proposals[0].why.startswith(f"the run {when}: sm active 8.0 %")


def test_what_is_tried_is_the_same_whether_a_diagnosis_is_of_now_or_not() -> None:
    tried = []
    for stale in (False, True):
        course = Course(*pair(), knob("compile", "off", cost="free", choices=("off", "on")))
        course.facts["diagnosis"] = structs.replace(diagnosed("launch-bound", COMPILE), stale=stale)
        course.look(300)
        tried.append([proposal.changes for proposal in course.proposals])
    assert tried[0] == tried[1]


def test_memory_that_is_unknown_is_not_said_to_be_too_little() -> None:
    course = Course(
        knob("compile", "off", cost="free", choices=("off", "on")), rate=level, used=lambda _: 60 * GIB
    )
    course.facts["diagnosis"] = diagnosed("launch-bound", COMPILE)
    course.rest()
    assert "too little memory is free to try compile 'on'" in course.tuner.state.text
    course.used = None
    course.look()
    assert "how much memory the run takes is unknown: compile 'on' is not tried" in course.tuner.state.text
