"""What a tuner has achieved, as a person reads it."""

from __future__ import annotations

from msgspec import structs

from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.domain.tuning import Change, Measured, Result, Trial, TunerState
from hoptui.presentation import tuner_report
from tests.tuner.simulated_run import knob

UNITS = {"samples_per_s": "samples/s"}


def trial(name: str, before: KnobValue, value: KnobValue, result: Result, was: float, gain: float) -> Trial:
    found = Measured(
        metric="samples_per_s", before=was, after=was * (1 + gain), gain=gain, interval=0.02, detectable=True,
        iterations=30, settled=True,
    )  # fmt: skip
    change = Change(knob=name, before=before, value=value)
    return Trial(changes=(change,), result=result, t=1, seconds=12.0, measured=found)


def knobs(**values: KnobValue) -> list[KnobState]:
    return [structs.replace(knob(name, 1), value=value) for name, value in values.items()]


STATE = TunerState(
    stand="holding",
    tried=(
        trial("rows", 2, 4, "kept", 100.0, 1.0),
        trial("rows", 4, 8, "kept", 200.0, 0.5),
        trial("fused", False, True, "reverted", 300.0, -0.1),
        trial("attention", "eager", "flash", "kept", 300.0, 0.1),
    ),
    spent=0.01,
    lived_s=1200.0,
)
IN_EFFECT = knobs(rows=8, fused=False, attention="flash", lr=0.1)


def test_the_values_to_copy_are_those_in_effect_that_trials_have_changed() -> None:
    values = tuner_report.improved(STATE, IN_EFFECT)
    assert tuner_report.copied(values) == "rows=8, attention='flash'"
    assert tuner_report.improved(STATE, knobs(rows=2, attention="flash")) == {"attention": "flash"}
    on_trial = Trial(changes=(Change(knob="rows", before=8, value=2),))
    trying = structs.replace(STATE, trial=on_trial)
    assert tuner_report.improved(trying, knobs(rows=2, attention="flash")) == values
    assert tuner_report.copied({"compile": True}) == "compile=True"


def test_gains_multiply_and_costs_are_in_the_work_not_done() -> None:
    assert tuner_report.gain(STATE) is not None
    assert round(1 + (tuner_report.gain(STATE) or 0.0), 2) == 3.3
    assert tuner_report.lost_units(STATE) == 12.0 * 300.0
    assert tuner_report.gain(TunerState()) is None
    assert tuner_report.lost_units(TunerState(spent=0.1, lived_s=10.0)) is None


def test_the_report_in_lines() -> None:
    lines = list(tuner_report.lines(STATE, IN_EFFECT, UNITS))
    assert lines[0] == "4 trials, 3 kept: 100 → 330 samples/s (+230 % by the measured gains)"
    assert lines[3] == "  ↶ reverted  fused off → on  -10.0 % ± 2.0  300 → 270 samples/s  12 s"
    assert lines[5].endswith("about 3.60 k samples not trained")
    assert lines[6] == "copy into your script: rows=8, attention='flash'"


def test_a_trial_without_a_figure_has_the_reason_of_its_end() -> None:
    why = (fact("trial.no_clear_limit"), fact("trial.disturbed", verb="pause"))
    void = structs.replace(STATE.tried[0], result="interrupted", why=why)
    lines = list(tuner_report.lines(structs.replace(STATE, tried=(void,)), IN_EFFECT, UNITS))
    assert lines[1] == "  » interrupted  rows 2 → 4  a user's pause disturbed it  12 s"


def test_a_tuner_that_found_nothing_says_so() -> None:
    lines = list(tuner_report.lines(TunerState(stand="holding"), IN_EFFECT, UNITS))
    assert lines[0] == "0 trials, 0 kept"
    assert len(lines) == 2
