"""The account of a run: one that is tuned again and again pays for all of it."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.domain.facts import fact
from hoptui.domain.tuning import Change, Limits, Trial, TunerState
from hoptui.tuner.trial import FIRST_GUESSES
from tests.tuner.simulated_run import Course

TAKEN_BACK = Trial(changes=(Change(knob="micro_batch", before=8, value=4),), result="reverted")
ENDED = TunerState(stand="off", lived_s=1800.0, spent=0.04, tried=(TAKEN_BACK,))
"""It has spent 72 s of half an hour: half of what a run may in its first hour."""


def charged(limits: Limits, guesses: int = 1) -> Course:
    course = Course(limits=limits)
    course.tuner.charge(structs.replace(ENDED, tried=(TAKEN_BACK,) * guesses))
    return course


def test_what_a_tuner_before_has_spent_is_told_at_once() -> None:
    state = charged(Limits()).tuner.state
    assert (state.lived_s, state.tried) == (1800.0, ())
    assert state.spent == pytest.approx(0.04)


def test_a_run_whose_budget_is_spent_is_not_tried_on_again_by_another_tuner() -> None:
    course = charged(Limits(budget=0.02))
    course.look(600)
    assert course.proposals == []
    assert course.tuner.state.stand == "holding"
    assert course.tuner.state.facts == (fact("budget.too_small", left_s=0.0),)
    assert course.tuner.state.spent == pytest.approx(0.03)


def test_a_run_with_a_rest_that_is_not_for_guesses_says_so() -> None:
    course = charged(Limits(), FIRST_GUESSES)
    course.look(600)
    assert course.proposals == []
    assert course.tuner.state.facts == (fact("budget.cautious", left_s=0.0),)


def test_few_guesses_use_more_than_their_part_of_the_budget() -> None:
    course = charged(Limits(), FIRST_GUESSES - 1)
    course.look(60)
    assert course.proposals


def test_one_that_is_given_more_goes_on() -> None:
    course = charged(Limits(budget=0.2))
    course.look(600)
    assert course.proposals
