"""Diagnoses as text, also those of an older daemon, which have no facts."""

from __future__ import annotations

from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import fact
from hoptui.presentation import diagnosis

OLDER = Diagnosis(
    verdict="launch-bound",
    confidence=0.95,
    advice=(Advice(knob="grad_accum", direction="down", value=2), Advice()),
)


def test_advice_of_an_older_daemon_is_its_knob_and_value() -> None:
    assert diagnosis.tries(OLDER) == ["try grad_accum → 2"]
    assert diagnosis.line(OLDER) == "launch-bound, 95 % sure: try grad_accum → 2"
    assert diagnosis.line(OLDER, advises=False) == "launch-bound, 95 % sure"
    assert diagnosis.evidence(OLDER) == []


def test_brief_advice_is_the_change_alone() -> None:
    what = fact("advice.knob", knob="num_envs", before=2048, value=4096, effect="learning", cost="shape")
    advice = Advice(knob="num_envs", direction="up", value=4096, fact=what)
    brief = diagnosis.advice_text(advice, brief=True)
    assert brief == "num_envs 2 048 → 4 096"
    assert diagnosis.advice_text(advice).startswith(f"{brief} (")


def test_odd_fields_of_advice_never_raise() -> None:
    odd = Advice(knob="lr", direction="up", fact=fact("advice.knob", knob="lr"))
    assert "lr" in diagnosis.advice_text(odd)
    assert "lr" in diagnosis.advice_text(odd, brief=True)


def test_the_verdict_of_a_newer_daemon_is_named() -> None:
    newer = Diagnosis(verdict="moon-bound", confidence=0.9)
    assert diagnosis.sentence(newer).startswith("not known: ")
    assert "moon-bound" in diagnosis.sentence(newer)
