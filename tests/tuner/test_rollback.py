"""The state machine that undoes trials: what it sets, when it waits, what it leaves alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobState
from hoptui.domain.tuning import Change, Trial, TunerState
from hoptui.protocol.messages import CommandRecord, Origin
from hoptui.tuner.observation import Observation
from hoptui.tuner.overrides import KnobOverrides
from hoptui.tuner.rollback import (
    DECLARED_S,
    RETRY_S,
    TRIES,
    UNHEARD_ITERATIONS,
    UNHEARD_S,
    Rollback,
    cut_off,
)
from hoptui.tuner.trial import ChangeSet
from tests.tuner.simulated_run import SECOND, knob

BEGAN = 100
TRIAL = Trial(
    changes=(
        Change(knob="micro_batch", before=8, value=16),
        Change(knob="grad_accum", before=64, value=32),
    ),
    t=BEGAN * SECOND,
)


def knobs(micro: int = 16, accum: int = 32) -> tuple[KnobState, ...]:
    return knob("micro_batch", micro), knob("grad_accum", accum)


def observation(
    seconds: float = 0.0,
    found: Sequence[KnobState] = (),
    records: Sequence[CommandRecord] = (),
    **fields: Any,
) -> Observation:
    """The run so many seconds after the trial began, in the trial's values unless others are given."""
    known: dict[str, Any] = {
        "epoch": 1,
        "state": "live",
        "knobs": tuple(found or knobs()),
        "records": tuple(records),
    }
    return Observation(t=round((BEGAN + seconds) * SECOND), **(known | fields))


def command(name: str, kind: Any = "tuner", **fields: Any) -> CommandRecord:
    record = CommandRecord(
        id=f"{kind} {name}", run="r", epoch=1, verb="set", knob=name, stage="applied", t=BEGAN * SECOND,
        origin=Origin(kind=kind),
    )  # fmt: skip
    return structs.replace(record, **fields)


def wanted(changes: Sequence[Change]) -> dict[str, Any]:
    return {change.knob: change.value for change in changes}


def test_the_values_before_the_trial_are_set_and_then_it_is_done() -> None:
    rollback, overrides = Rollback.undo(TRIAL), KnobOverrides()
    changes = rollback.look(observation(), overrides)
    assert wanted(changes) == {"micro_batch": 8, "grad_accum": 64}
    rollback.sent(ChangeSet(changes, (), {"micro_batch": "a", "grad_accum": "b"}), BEGAN * SECOND)
    sent = [command("micro_batch", id="a", stage="scheduled"), command("grad_accum", id="b")]
    assert rollback.look(observation(60, knobs(16, 64), sent), overrides) == (), "a command is on its way"
    assert not rollback.done
    final = [structs.replace(record, stage="applied") for record in sent]
    assert rollback.look(observation(61, knobs(8, 64), final), overrides) == ()
    assert rollback.done
    assert rollback.outcome(observation(61), ()) is None
    assert not overrides.all


def test_a_refused_rollback_is_sent_again_and_then_its_knobs_are_frozen() -> None:
    rollback, overrides = Rollback.undo(TRIAL), KnobOverrides()
    sends = 0
    for second in range(round((TRIES + 2) * RETRY_S)):
        if changes := rollback.look(observation(second), overrides):
            sends += 1
            rollback.sent(ChangeSet(changes, ()), observation(second).t)
    assert (sends, rollback.done) == (TRIES, True)
    assert overrides.names == ("grad_accum", "micro_batch")
    told = rollback.outcome(observation(), ())
    assert told is not None
    assert (told.result, len(told.changes)) == ("failed", 2)


@pytest.mark.parametrize("fields", [{"state": "unresponsive"}, {"state": "exited"}])
def test_nothing_is_sent_while_nothing_can_be_set(fields: dict[str, Any]) -> None:
    rollback, overrides = Rollback.undo(TRIAL), KnobOverrides()
    for second in range(round(10 * RETRY_S)):
        assert rollback.look(observation(second, **fields), overrides) == ()
        assert rollback.waits == fact("rollback.once_possible")
    assert len(rollback.look(observation(1000), overrides)) == 2, "no try was spent"


def test_what_followed_a_users_change_stays_with_all_knobs_of_the_trial() -> None:
    followed = (Change(knob="micro_batch", before=16, value=4),)
    user = command("pieces", "person", followed=followed)
    rollback, overrides = Rollback.undo(TRIAL), KnobOverrides()
    assert rollback.look(observation(1, knobs(4, 32), [user]), overrides) == ()
    assert rollback.done
    assert overrides.chosen == {"micro_batch", "grad_accum"}


def test_a_choice_that_was_released_stays_and_holds_nothing() -> None:
    user = command("micro_batch", "person", released=Origin(kind="person"))
    rollback, overrides = Rollback.undo(TRIAL), KnobOverrides()
    assert rollback.look(observation(1, knobs(4, 32), [user]), overrides) == ()
    assert rollback.done
    assert not overrides.all


def test_what_a_user_chose_before_the_trial_does_not_stop_its_rollback() -> None:
    user = command("micro_batch", "person", t=BEGAN * SECOND - 1)
    assert len(Rollback.undo(TRIAL).look(observation(1, records=[user]), KnobOverrides())) == 2


def test_a_choice_is_overtaken_by_a_process_that_goes_back_to_the_trial() -> None:
    # A user sets a value, and the process ends. The next one resumes from a checkpoint of the trial.
    followed = (Change(knob="grad_accum", before=32, value=128),)
    user = command("micro_batch", "person", wanted=4, effective=4, followed=followed)
    overrides = KnobOverrides()
    overrides.choose(["micro_batch", "grad_accum"])
    back = Rollback.undo(TRIAL).look(observation(1, knobs(16, 32), [user], epoch=2), overrides)
    assert wanted(back) == {"micro_batch": 8, "grad_accum": 64}
    kept = Rollback.undo(TRIAL)
    assert kept.look(observation(1, knobs(4, 128), [user], epoch=2), overrides) == ()
    assert kept.done


@pytest.mark.parametrize(
    ("stage", "values"), [("applied", {}), ("failed", {"micro_batch": 8, "grad_accum": 64})]
)
def test_a_choice_that_the_run_has_not_answered_is_waited_for(stage: Any, values: dict[str, Any]) -> None:
    user = command("micro_batch", "person", stage="scheduled", wanted=4)
    rollback, overrides = Rollback.undo(TRIAL), KnobOverrides()
    overrides.choose(["micro_batch"])
    assert rollback.look(observation(1, records=[user]), overrides) == ()
    assert (rollback.done, rollback.waits) == (False, fact("rollback.once_answered"))
    answered = structs.replace(user, stage=stage)
    assert wanted(rollback.look(observation(2, records=[answered]), overrides)) == values
    assert rollback.done == (not values)


def test_values_of_which_none_is_of_the_trial_are_left() -> None:
    rollback = Rollback.undo(TRIAL)
    assert rollback.look(observation(1, knobs(48, 11)), KnobOverrides()) == ()
    assert rollback.done


@pytest.mark.parametrize("fields", [{"effective": 15}, {"stage": "reverted", "effective": 15}])
def test_a_knob_that_was_read_back_otherwise_is_of_the_trial_and_the_others_are_set_with_it(
    fields: dict[str, Any],
) -> None:
    changes = Rollback.undo(TRIAL).look(
        observation(1, knobs(15, 34), [command("micro_batch", **fields)]), KnobOverrides()
    )
    assert wanted(changes) == {"micro_batch": 8, "grad_accum": 64}


def test_knobs_that_are_not_declared_in_time_are_frozen_and_reported() -> None:
    rollback, overrides = Rollback.undo(TRIAL), KnobOverrides()
    alone = knobs()[:1]
    assert rollback.look(observation(1, alone), overrides) == ()
    assert rollback.waits == fact("rollback.once_declared", knobs=["grad_accum"])
    changes = rollback.look(observation(1 + DECLARED_S, alone), overrides)
    assert wanted(changes) == {"micro_batch": 8}
    rollback.look(observation(2 + DECLARED_S, knobs(8)[:1]), overrides)
    assert rollback.done
    assert overrides.names == ("grad_accum",)
    told = rollback.outcome(observation(), ())
    assert told is not None
    assert [change.knob for change in told.changes] == ["grad_accum"]


def test_a_command_of_another_daemon_may_still_come() -> None:
    unheard = [command("micro_batch", stage="sent")]
    rollback = Rollback.undo(TRIAL)
    before = knobs(8, 64)
    for seconds, step in ((1, 50), (2 + UNHEARD_S, 50), (3, 50 + UNHEARD_ITERATIONS)):
        rollback.look(observation(seconds, before, unheard, step=step), KnobOverrides())
        assert not rollback.done
    rollback.look(observation(2 + UNHEARD_S, before, unheard, step=50 + UNHEARD_ITERATIONS), KnobOverrides())
    assert rollback.done


def test_a_command_of_a_process_that_is_gone_cannot_come() -> None:
    old = [command("micro_batch", stage="scheduled", epoch=1)]
    assert len(Rollback.undo(TRIAL).look(observation(1, records=old, epoch=2), KnobOverrides())) == 2


def test_at_once_counts_what_is_on_its_way_as_carried_out() -> None:
    coming = [command("micro_batch", stage="sent", wanted=16)]
    rollback = Rollback.undo(TRIAL)
    assert wanted(rollback.at_once(knobs(8, 64), coming, ())) == {"micro_batch": 8}
    back = [*coming, command("micro_batch", id="back", stage="sent", wanted=8)]
    assert rollback.at_once(knobs(8, 64), back, ()) == ()
    user = command("micro_batch", "person", stage="sent")
    assert rollback.at_once(knobs(), [*coming, user], ()) == ()


def test_memory_is_freed_from_whatever_value_is_in_effect_and_reported_once_it_is() -> None:
    why = (fact("memory.peaks_near_limit"),)
    smaller = Trial(changes=(Change(knob="micro_batch", before=16, value=8),), t=BEGAN * SECOND, why=why)
    rollback, overrides = Rollback.free_memory(smaller), KnobOverrides()
    assert wanted(rollback.look(observation(1, knobs(12)), overrides)) == {"micro_batch": 8}
    rollback.look(observation(2, knobs(8)), overrides)
    told = rollback.outcome(observation(2, knobs(8)), overrides.chosen)
    assert rollback.done
    assert told is not None
    assert (told.result, told.why) == ("kept", why)


def test_a_trial_of_an_older_tuner_that_is_cut_off_keeps_its_words() -> None:
    older = TunerState(stand="trial", text="tries", trial=structs.replace(TRIAL, text="memory was free"))
    cause = fact("daemon.restarted")
    found = cut_off(older, cause)
    assert (found.facts, found.text, found.tried[-1].text) == ((cause,), "", "")
    assert found.tried[-1].why == (
        fact("trial.note", text="memory was free"),
        fact("trial.cut_off", cause=cause),
    )
