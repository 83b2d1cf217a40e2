"""Commands, knobs and the run as they were at a moment, from records alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.facts import Fact, fact
from hoptui.domain.tuning import Change, TunerState
from hoptui.model.recorded.point_in_time import Chronicle, command_as_of, diagnosis_of, knob_as_of
from hoptui.protocol.messages import CommandRecord, Event, RunState
from tests.model.recorded_run import ANA, COMMANDS, EVENTS, KNOBS, LENGTH_S, STATE, at, command, event

LR, GRAD_ACCUM, EPOCHS = KNOBS
CHANGE = COMMANDS[1]


def chronicle(**fields: Any) -> Chronicle:
    state: RunState = fields.get("state", STATE)
    events: tuple[Event, ...] = fields.get("events", EVENTS)
    commands: tuple[CommandRecord, ...] = fields.get("commands", COMMANDS)
    return Chronicle(state, events, commands, at(LENGTH_S))


def test_a_command_is_in_flight_until_it_settles() -> None:
    early, done = command_as_of(CHANGE, at(305), 305), command_as_of(CHANGE, at(310), 310)
    assert (early.stage, early.step, early.effective, early.version, early.settled) == (
        "scheduled",
        310,
        None,
        None,
        0,
    )
    assert done == CHANGE


def test_one_without_a_boundary_was_only_sent() -> None:
    late = command("x", 10, 20, knob="lr", wanted=1.0, stage="expired", reason="its time to live ended")
    assert (command_as_of(late, at(15), 0).stage, command_as_of(late, at(15), 0).reason) == ("sent", "")
    assert command_as_of(late, at(20), 0) == late


def test_one_that_never_settled_stays_as_it_was() -> None:
    pending = command("x", 10, knob="lr", wanted=1.0, stage="scheduled", step=12)
    assert command_as_of(pending, at(500), 500) == pending


def test_an_effect_is_known_once_it_was_measured() -> None:
    change = COMMANDS[0]
    measuring = command_as_of(change, at(210), 210).measured
    assert measuring is not None
    assert (measuring.gain, measuring.iterations) == (None, 8)
    assert command_as_of(change, at(217), 217) == change
    assert chronicle().measuring(at(210), 210)
    assert not chronicle().measuring(at(217), 217)


@pytest.mark.parametrize(
    ("seconds", "value", "version"), [(0, 4, 1), (309.9, 4, 1), (310, 8, 2), (LENGTH_S, 8, 2)]
)
def test_a_knob_has_the_value_that_changes_left(seconds: float, value: int, version: int) -> None:
    knob = knob_as_of(GRAD_ACCUM, COMMANDS, at(seconds), 1)
    assert (knob.value, knob.version) == (value, version)


def test_a_knob_that_followed_another_had_the_value_of_then() -> None:
    moved = (Change(knob="epochs", before=3, value=6),)
    commands = (
        command("e", 100, 101, knob="epochs", before=2, wanted=3, effective=3, version=1, took_s=0.5),
        command("g", 300, 310, knob="grad_accum", before=8, wanted=4, effective=4, version=3, followed=moved),
    )
    told = {t: knob_as_of(EPOCHS, commands, at(t), 1) for t in (50, 200, 400)}
    assert [told[t].value for t in (50, 200, 400)] == [2, 3, 6]
    assert [(k.version, k.took_s) for k in told.values()] == [(0, None), (1, 0.5), (1, 0.5)]
    assert command_as_of(commands[1], at(305), 305).followed == ()


def test_a_knob_that_nobody_changed_keeps_its_last_value() -> None:
    assert knob_as_of(EPOCHS, COMMANDS, at(1), 1) == EPOCHS


def test_a_failed_change_left_the_old_value_and_nobody_set_it() -> None:
    failed = command(
        "f", 5, 6, knob="lr", wanted=9.0, before=1e-3, effective=1e-3, version=1, stage="failed",
        reason="the setter raised"
    )  # fmt: skip
    knob = knob_as_of(LR, [failed], at(7), 1)
    assert (knob.value, knob.in_effect, knob.by) == (1e-3, False, "")


def test_who_changed_a_knob_is_known_from_then_on() -> None:
    assert knob_as_of(LR, COMMANDS, at(201), 1).by == ""
    assert knob_as_of(LR, COMMANDS, at(203), 1).by == f"ana (pid {ANA.pid})"


def test_how_long_a_change_took_is_known_once_it_was_made() -> None:
    set_ = command(
        "f", 5, 6, knob="lr", wanted=9.0, before=1e-3, effective=9.0, version=1, took_s=1.5, released=ANA
    )
    last = msgspec.structs.replace(LR, value=9.0, took_s=1.5)
    assert knob_as_of(last, [set_], at(5), 1).took_s is None
    now = knob_as_of(last, [set_], at(7), 1)
    assert (now.took_s, now.in_effect) == (1.5, True)  # to whom it was given later says nothing of the value


def test_changes_of_its_own_epoch_come_first() -> None:
    first = command("a", 10, 11, knob="lr", wanted=9.0, before=1e-3, effective=9.0, version=1, epoch=1)
    second = command("b", 50, 51, knob="lr", wanted=5.0, before=2.0, effective=5.0, version=1, epoch=2)
    values = [
        knob_as_of(LR, [first, second], at(s), epoch).value
        for s, epoch in ((5, 1), (20, 1), (40, 2), (60, 2))
    ]
    assert values == [1e-3, 9.0, 2.0, 5.0]


def test_the_run_ends_when_it_ended() -> None:
    assert chronicle().run_at(at(599.9)).exit_reason == ""
    ended = chronicle().run_at(at(600))
    assert (ended.exit_reason, ended.exited_wall) == ("finished", STATE.exited_wall)
    assert ended.can == (), "nothing can be asked of a recording"


def test_an_end_without_an_event_is_the_recordings_end() -> None:
    told = chronicle(events=EVENTS[:-1])
    assert told.run_at(at(599)).exit_reason == ""
    assert told.run_at(at(600)).exit_reason == "finished"


@pytest.mark.parametrize(
    ("text", "reason", "detail"),
    [
        ("exception: ValueError: no", "exception", "ValueError: no"),
        ("stopped by kim (pid 7)", "stopped", "by kim (pid 7)"),
    ],
)
def test_a_restarted_run_had_another_epoch_before(text: str, reason: str, detail: str) -> None:
    events = (
        EVENTS[0],
        event(200, "exited", text),
        event(220, "restarted", "restarted as epoch 2 (pid 78)", step=150),
        EVENTS[-1],
    )
    state = msgspec.structs.replace(STATE, epoch=2, started_wall=events[2].wall)
    told = chronicle(state=state, events=events)
    first, between, second = told.run_at(at(199)), told.run_at(at(210)), told.run_at(at(220))
    assert (first.epoch, first.started_wall, first.exit_reason) == (1, events[0].wall, "")
    assert (between.exit_reason, between.exit_detail, between.exited_wall) == (reason, detail, events[1].wall)
    assert (second.epoch, second.started_wall, second.exit_reason) == (2, events[2].wall, "")
    assert told.run_at(at(600)).exit_reason == "finished"


def test_a_pause_holds_until_it_is_resumed() -> None:
    told = chronicle()
    assert told.paused_at(at(449.5)) is None
    assert told.paused_at(at(470)) == at(450.6)
    assert told.paused_at(at(480)) is None


def test_events_and_commands_come_when_they_happened() -> None:
    told = chronicle()
    assert [e.kind for e in told.events_at(at(150))] == ["started", "note"]
    assert list(told.commands_at(at(300), 300)) == ["lr", "ga"]
    assert told.moments == tuple(sorted(told.moments))
    assert {at(200), at(202), at(200.3), at(600)} <= set(told.moments)


def in_words(text: str) -> Fact:
    """A figure of a recording by hoptui 0.1."""
    return fact("diagnosis.text", text=text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "launch-bound: SM active 5.6 %; 144 of 700 W",
            Diagnosis(
                verdict="launch-bound", facts=(in_words("SM active 5.6 %"), in_words("144 of 700 W")), t=3
            ),
        ),
        ("healthy", Diagnosis(verdict="healthy", t=3)),
        ("something else", Diagnosis(facts=(in_words("something else"),), t=3)),
    ],
)
def test_the_diagnosis_of_an_event_in_words(text: str, expected: Diagnosis) -> None:
    assert diagnosis_of(Event(seq=1, t=3, wall=0.0, kind="diagnosis", text=text)) == expected


@pytest.mark.parametrize("verdict", ["launch-bound", "moon-bound"])
def test_the_diagnosis_of_an_event_of_facts(verdict: str) -> None:
    facts = (fact("gpu.sm_active", share=0.056), fact("gpu.shared", gpus=[0, 1]))
    what = fact("diagnosis.verdict", verdict=verdict, facts=facts)
    written = Event(seq=1, t=3, wall=0.0, kind="diagnosis", code=what.code, fields=what.fields)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=Event)
    assert diagnosis_of(read) == Diagnosis(verdict=verdict, facts=facts, t=3)


@pytest.mark.parametrize("fields", [{}, {"verdict": 3, "facts": ["x", {"code": 1}]}, {"facts": 7}])
def test_the_diagnosis_of_odd_fields_is_unknown(fields: dict[str, object]) -> None:
    odd = Event(seq=1, t=3, wall=0.0, kind="diagnosis", code="diagnosis.verdict", fields=fields)
    assert diagnosis_of(odd).verdict == "unknown"


def test_the_verdict_of_a_moment_is_that_of_the_newest_event() -> None:
    events = (
        event(0, "started", "started (pid 77)"),
        event(30, "diagnosis", "launch-bound: SM active 5.6 %; busy 32 %"),
        event(60, "note", "checkpoint written"),
        event(90, "diagnosis", "power-limited: 691 of 700 W"),
        event(120, "restarted", "epoch 2 began"),
        event(150, "diagnosis", "healthy"),
    )
    last = msgspec.structs.replace(STATE, epoch=2, diagnosis=Diagnosis(verdict="healthy", confidence=0.9))
    told = chronicle(state=last, events=events)

    def verdict(seconds: float) -> str | None:
        found = told.run_at(at(seconds)).diagnosis
        return found.verdict if found else None

    assert [verdict(s) for s in (29, 30, 89, 90, 119, 120, 150)] == [
        None,
        "launch-bound",
        "launch-bound",
        "power-limited",
        "power-limited",
        None,
        "healthy",
    ]
    found = told.run_at(at(61)).diagnosis
    assert found == Diagnosis(
        verdict="launch-bound", facts=(in_words("SM active 5.6 %"), in_words("busy 32 %")), t=at(30)
    )
    assert told.run_at(at(LENGTH_S)).diagnosis == last.diagnosis, "of the very last all is recorded"
    worded = (*events, event(160, "diagnosis", "healthy: SM active 94 %"))
    assert chronicle(state=last, events=worded).run_at(at(LENGTH_S)).diagnosis == Diagnosis(
        verdict="healthy", confidence=0.9, facts=(in_words("SM active 94 %"),)
    ), "an older recording has its evidence in the event alone"
    other = msgspec.structs.replace(last, diagnosis=Diagnosis(verdict="data-bound", confidence=0.9))
    assert chronicle(state=other, events=events, commands=()).run_at(at(LENGTH_S)).diagnosis == Diagnosis(
        verdict="healthy", t=at(150)
    )


def test_a_verdict_is_stale_once_a_knob_has_another_value() -> None:
    """The same verdict with newer figures is not recorded again."""
    events = (event(0, "started", "started (pid 77)"), event(30, "diagnosis", "healthy"))
    change = command("g", 40, 60, knob="grad_accum", before=8, wanted=4, effective=4, version=2)
    refused = command("r", 35, 36, knob="grad_accum", before=8, wanted=99, stage="rejected")
    told = chronicle(events=(*events, event(90, "diagnosis", "launch-bound")), commands=(refused, change))
    found = [(one.verdict, one.stale) for s in (59, 60, 90) if (one := told.run_at(at(s)).diagnosis)]
    assert found == [("healthy", False), ("healthy", True), ("launch-bound", False)]


def test_how_the_tuner_stood_before_the_end_is_not_known() -> None:
    tuner = TunerState(stand="off", started=at(10))
    told = chronicle(state=msgspec.structs.replace(STATE, tuner=tuner))
    assert told.run_at(at(LENGTH_S)).tuner == tuner
    assert told.run_at(at(LENGTH_S - 1)).tuner is None
