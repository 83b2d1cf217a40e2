"""Which knobs the tuner leaves alone, and for how long."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.protocol.messages import CommandRecord, Origin, Stage
from hoptui.tuner.overrides import KnobOverrides, asks
from tests.tuner.simulated_run import Course


def both() -> KnobOverrides:
    """`lr` is chosen, `epochs` frozen."""
    found = KnobOverrides()
    found.choose(["lr"])
    found.freeze(["epochs"])
    return found


def test_chosen_and_frozen_knobs_are_left_alone_until_they_are_released() -> None:
    overrides = both()
    assert overrides.chosen == {"lr"}
    assert overrides.names == ("epochs", "lr")
    overrides.release("lr")
    overrides.release("epochs")
    assert not overrides.all


def test_a_new_tuner_leaves_only_chosen_knobs_alone() -> None:
    overrides = both()
    overrides.thaw()
    assert overrides.names == ("lr",)


def test_a_choice_ends_with_the_run_but_the_tuner_that_goes_on_respects_it() -> None:
    overrides = both()
    overrides.end_process()
    assert not overrides.chosen
    assert overrides.names == ("epochs", "lr")


@pytest.mark.parametrize(
    ("kind", "stage", "found"),
    [("person", "accepted", True), ("person", "rejected", False), ("tuner", "applied", False)],
)
def test_a_users_command_that_was_not_refused_is_a_choice(kind: str, stage: Stage, found: bool) -> None:
    origin = Origin(kind=kind)  # type: ignore[arg-type]
    record = CommandRecord(id="a", run="r", epoch=1, verb="set", knob="lr", stage=stage, origin=origin)
    assert asks(record) == found


def test_a_choice_that_was_released_before_the_tuner_looked_ends_the_trial_and_holds_nothing() -> None:
    course = Course()
    course.into_trial()
    course.obeys = False
    course.person("micro_batch", 8)
    course.records[-1] = structs.replace(course.records[-1], released=Origin(kind="person"))
    course.look()
    assert [trial.result for trial in course.tuner.state.tried] == ["interrupted"]
    assert course.tuner.overrides.names == ()
