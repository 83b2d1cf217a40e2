"""What the search says of why it tries something, or does not."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.diagnosis import Advice
from hoptui.domain.facts import fact
from tests.tuner.simulated_run import GIB, Course, Values, codes, diagnosed, knob, level, pair, within

COMPILE = Advice(knob="compile", direction="to", value="on")


@pytest.mark.parametrize("stale", [False, True])
def test_what_limited_the_run_before_a_change_is_not_told_as_of_now(stale: bool) -> None:
    course = Course()
    course.facts["diagnosis"] = structs.replace(diagnosed("launch-bound"), stale=stale)
    course.into_trial()
    reason = course.proposals[0].why[0]
    assert reason == fact(
        "trial.limit", verdict="launch-bound", stale=stale, evidence=diagnosed("launch-bound").facts
    )


def test_what_is_tried_first_is_the_same_whether_a_diagnosis_is_of_now_or_not() -> None:
    tried = []
    for stale in (False, True):
        course = Course(*pair(), knob("compile", "off", cost="free", choices=("off", "on")))
        course.facts["diagnosis"] = structs.replace(diagnosed("launch-bound", COMPILE), stale=stale)
        course.look(300)
        tried.append([proposal.changes for proposal in course.proposals])
    assert len(tried[1]) > 3
    assert tried[0][: len(tried[1])] == tried[1], "with one of now, values are tried once more"


def test_memory_that_is_unknown_is_not_said_to_be_too_little() -> None:
    course = Course(
        knob("compile", "off", cost="free", choices=("off", "on")), rate=level, used=lambda _: 60 * GIB
    )
    course.facts["diagnosis"] = diagnosed("launch-bound", COMPILE)
    course.rest()
    assert within(course.tuner.state.facts[0]) == fact("memory.too_little", knob="compile", value="on")
    course.used = None
    course.look()
    assert within(course.tuner.state.facts[0]) == fact("memory.unknown_choice", knob="compile", value="on")


def test_recomputation_is_turned_off_but_not_on_without_advice() -> None:
    bools: dict[str, Any] = {"kind": "bool", "min": None, "max": None, "scale": "linear"}
    for on, tried in ((False, 0), (True, 1)):
        switch = knob("gradient_checkpointing", on, cost="free", **bools)
        course = Course(switch, rate=level, used=lambda _: 4 * GIB)
        course.look(120)
        assert len(course.tuner.state.tried) == tried


@pytest.mark.parametrize(("gib_a_sample", "second"), [(0.5, 32), (2.2, 16)])
def test_a_farther_size_is_tried_in_place_of_an_unclear_one_if_its_memory_fits(
    gib_a_sample: float, second: int
) -> None:
    chance = random.Random(3)

    def rate(values: Values) -> float:
        return 500 * math.exp(0.05 * math.log(float(values["micro_batch"])) + chance.gauss(0, 0.5))

    course = Course(
        knob("micro_batch", 8, choices=(8, 16, 32)),
        rate=rate,
        used=lambda values: round((10 + gib_a_sample * float(values["micro_batch"])) * GIB),
    )
    course.until(lambda: len(course.tuner.state.tried) == 2)
    first, again = course.tuner.state.tried
    assert (first.result, first.changes[0].value) == ("reverted", 16)
    assert again.changes[0].value == second
    reason = next(within(why) for why in again.why if why.code == "trial.again")
    assert reason == fact("again.farther" if second == 32 else "again.unclear")
    assert "trial.memory_at_most" in codes(first.why)
    assert "trial.memory_expected" in codes(again.why)
