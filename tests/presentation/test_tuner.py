"""What is said of the tuner, the same in the command line and the dashboard."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec import structs

from hoptui.domain.facts import fact
from hoptui.domain.tuning import (
    WORK_PER_JOULE,
    Change,
    Limits,
    Measured,
    Objective,
    Result,
    Stand,
    Trial,
    Tuned,
    TunerState,
)
from hoptui.presentation import sentences, tuner, vocabulary
from hoptui.protocol.messages import CommandRecord, Event


def test_every_state_has_a_symbol_and_a_word() -> None:
    assert set(tuner.STANDS) == set(tuner.STANDS_FOR) == set(get_args(Stand))
    assert set(tuner.RESULTS) == set(get_args(Result))
    assert set(tuner.OBJECTIVES) == set(get_args(Objective))
    for found in (tuner.STANDS, tuner.RESULTS):
        symbols = [word.symbol for word in found.values()]
        assert len(set(symbols)) == len(symbols)


def test_changes_are_told_in_one_notation() -> None:
    found = (
        Change(knob="micro_batch", before=1024, value=2048),
        Change(knob="lr\x1b[31m", before=0.001, value=3e-4),
    )
    assert tuner.changes(found) == "micro_batch 1 024 → 2 048, lr[31m 1.0e-3 → 3.0e-4"
    assert tuner.changes(()) == ""


@pytest.mark.parametrize(
    ("within", "told"),
    [
        (Limits(), "memory up to 92 % · 4 % of the time · for throughput · speed knobs only"),
        (
            Limits(memory=0.8, power_w=600.0, budget=0.005, objective="energy", learning=("lr", "num_envs")),
            "memory up to 80 % · power up to 600 W · 0.5 % of the time · for energy · also lr and num_envs",
        ),
        (
            Limits(learning=("*",), dry=True),
            (
                "memory up to 92 % · 4 % of the time · for throughput · also all learning knobs except free "
                "ones · dry run: it tries nothing"
            ),
        ),
    ],
)
def test_limits(within: Limits, told: str) -> None:
    assert tuner.limits(within) == told


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (0.0, "0 %"),
        (8.4e-8, "under 0.01 %"),
        (0.0004, "0.04 %"),
        (0.005, "0.5 %"),
        (0.02, "2 %"),
        (0.0994, "9.9 %"),
        (0.2, "20 %"),
    ],
)
def test_small_shares_are_not_rounded_away(ratio: float, told: str) -> None:
    assert tuner.share(ratio) == told


@pytest.mark.parametrize(
    ("spent_s", "lived_s", "budget", "told"),
    [
        (0.0, 0.0, 0.02, "0 % of the budget: 0 s of 1 m 12 s (2 % of the first hour)"),
        (0.0005, 60.0, 0.02, "0 % of the budget: 0 s of 1 m 12 s (2 % of the first hour)"),
        (20.0, 300.0, 0.02, "28 % of the budget: 20 s of 1 m 12 s (2 % of the first hour)"),
        (72.0, 7200.0, 0.005, "200 % of the budget: 1 m 12 s of 36 s (0.5 % of the time)"),
    ],
)
def test_what_trials_cost_is_told_of_what_they_may(
    spent_s: float, lived_s: float, budget: float, told: str
) -> None:
    spent = spent_s / lived_s if lived_s else 0.0
    state = TunerState(spent=spent, lived_s=lived_s, limits=Limits(budget=budget))
    assert tuner.cost(state) == told
    assert tuner.used(state) == pytest.approx(spent_s / (budget * max(lived_s, 3600.0)))


AND_UNKNOWN = "and the excess of one trial; search time unknown"


@pytest.mark.parametrize(
    ("spent_s", "lived_s", "limits", "remaining"),
    [
        (0.0, 0.0, Limits(), f"at most 2 m 24 s (4 % of the first hour) {AND_UNKNOWN}"),
        (20.0, 300.0, Limits(budget=0.02), f"at most 52 s (2 % of the first hour) {AND_UNKNOWN}"),
        (0.0, 18_000.0, Limits(), f"at most 12 m 0 s (4 % of the time) {AND_UNKNOWN}"),
        (72.0, 7200.0, Limits(budget=0.005), f"at most 0 s (0.5 % of the time) {AND_UNKNOWN}"),
        (0.0, 0.0, Limits(dry=True), "nothing: a dry run tries nothing"),
    ],
)
def test_what_further_trials_may_cost(spent_s: float, lived_s: float, limits: Limits, remaining: str) -> None:
    spent = spent_s / lived_s if lived_s else 0.0
    assert tuner.remaining(TunerState(spent=spent, lived_s=lived_s, limits=limits)) == remaining


def test_the_brief_form_of_what_further_trials_may_cost() -> None:
    assert tuner.remaining(TunerState(), brief=True) == f"at most 2 m 24 s {AND_UNKNOWN}"


def test_what_further_trials_may_cost_is_unknown_with_an_older_daemon() -> None:
    assert tuner.remaining(TunerState(spent=0.01)).startswith("an unknown time")


def test_the_budget_of_an_hour_is_a_time() -> None:
    assert tuner.budget_of_an_hour(Limits()) == "4 % of the time: 2 m 24 s an hour"


def test_where_nothing_may_be_spent_no_share_of_it_is_told() -> None:
    nothing = TunerState(limits=Limits(budget=0.0))
    assert tuner.used(nothing) is None
    assert tuner.cost(nothing).startswith("– of the budget")


def test_a_trial_in_one_line() -> None:
    trial = Trial(
        changes=(Change(knob="micro_batch", before=32, value=64),),
        result="kept",
        iterations=1,
        seconds=41.0,
        measured=Measured(gain=0.061, interval=0.012, detectable=True, settled=True),
        text="faster beyond doubt",
    )
    assert tuner.sentence(trial) == "● kept  micro_batch 32 → 64  +6.1 % ± 1.2  faster beyond doubt"
    assert tuner.progress(trial) == "1 iteration, 41 s"


UP = (Change(knob="micro_batch", before=32, value=64),)
HARMFUL = fact("trial.harmful")


def test_a_state_in_words_has_the_sentences_of_its_facts() -> None:
    trial = Trial(changes=UP, why=(fact("trial.both"), HARMFUL))
    state = TunerState(facts=(fact("tuner.begins"),), trial=trial, tried=(trial,))
    found = tuner.in_words(state)
    assert found.trial is not None
    assert found.text == sentences.sentence(fact("tuner.begins"))
    assert found.trial.text == found.tried[0].text == sentences.joined(trial.why)
    assert (found.facts, found.trial.why) == (state.facts, trial.why)


def test_an_older_tuner_speaks_for_itself() -> None:
    trial = Trial(changes=UP, text="as it was written")
    state = TunerState(text="as it was written", tried=(trial,))
    assert tuner.in_words(state) == state
    assert tuner.standing(state).endswith("as it was written")
    assert tuner.sentence(trial).endswith("as it was written")
    assert sentences.refusal(Tuned(id=1, run="r", granted=False, reason="as it was written")) == (
        "as it was written"
    )
    record = CommandRecord(id="a", run="r", epoch=1, verb="set", why="as it was written")
    assert sentences.purpose(record) == "as it was written"


def test_a_refusal_and_a_purpose_are_the_sentences_of_their_facts() -> None:
    refused = Tuned(id=1, run="r", granted=False, code="tune.off", fields={"run": "ppo"})
    assert sentences.refusal(refused) == sentences.sentence(fact("tune.off", run="ppo"))
    record = CommandRecord(id="a", run="r", epoch=1, verb="set", purpose=(HARMFUL,))
    assert sentences.purpose(record) == sentences.sentence(HARMFUL)


@pytest.mark.parametrize(
    ("event", "mine"),
    [
        ({"code": "trial.ended", "fields": {"t": 7}}, True),
        ({"code": "trial.ended", "fields": {"t": 8}}, False),
        ({"code": "tuner.stopped", "fields": {"t": 7}}, False),
        ({"text": "kept micro_batch 32 → 64, +6.1 % ± 1.2: room"}, True),
        ({"text": "kept micro_batch 32 → 64, +6.1 % ± 1.2: other"}, False),
        ({"text": "reverted micro_batch 32 → 64: room"}, False),
    ],
)
def test_the_event_of_a_trial_is_known_by_its_time_or_by_an_older_text(
    event: dict[str, Any], mine: bool
) -> None:
    trial = Trial(changes=UP, result="kept", t=7, text="room")
    assert tuner.reports(Event(seq=1, t=9, wall=1.0, kind="tuner", **event), trial) == mine


def test_the_start_of_a_tuner_is_known_by_its_code_or_by_an_older_text() -> None:
    start = Event(seq=1, t=9, wall=1.0, kind="tuner", code="tuner.started", fields={"by": "", "dry": False})
    older = Event(seq=1, t=9, wall=1.0, kind="tuner", text="started by ana")
    assert tuner.starts(start)
    assert tuner.starts(older)
    assert not tuner.starts(structs.replace(start, code="tuner.stopped"))
    assert not tuner.starts(structs.replace(older, text="stopped by ana"))


def test_work_per_joule_is_a_unit_in_words() -> None:
    assert vocabulary.unit_of(WORK_PER_JOULE, {}) == "units per joule"
