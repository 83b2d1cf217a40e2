"""What a tuner has achieved, as a person reads it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.domain.tuning import WORK_PER_JOULE, Change, Limits, Measured, Result, Trial, TunerState
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
    assert lines[0] == "4 trials, 3 kept: 100 → 330 samples/s (+230.0 % ± 8.2 by the measured gains)"
    assert lines[3] == "  ↶ reverted  fused off → on  -10.0 % ± 2.0  300 → 270 samples/s  12 s"
    assert lines[5].endswith("about 3.60 k samples not trained")
    assert lines[6] == "regret: unknown"
    assert lines[7] == "copy into your script: rows=8, attention='flash'"


@pytest.mark.parametrize(
    ("lived_s", "share", "text"),
    [
        (1200.0, 0.02, "2 % of 20 m 0 s at the best known setting: 7.92 k samples"),
        (36_000.0, 0.02 / 3, "0.67 % of the first hour at the best known setting: 7.92 k samples"),
    ],
)
def test_regret_is_the_share_of_the_first_hour_at_the_best_known_setting(
    lived_s: float, share: float, text: str
) -> None:
    state = structs.replace(STATE, lived_s=lived_s, regret_units=7920.0, best_rate=330.0)
    found = tuner_report.regret(state)
    assert found is not None
    assert found.share == pytest.approx(share)
    assert tuner_report.regret_text(state, UNITS) == text


@pytest.mark.parametrize("missing", [{"regret_units": None}, {"best_rate": None}, {"lived_s": 0.0}])
def test_regret_is_unknown_without_any_of_its_parts(missing: dict[str, Any]) -> None:
    state = structs.replace(STATE, **({"regret_units": 7920.0, "best_rate": 330.0} | missing))
    assert tuner_report.regret(state) is None


def test_a_trial_without_a_figure_has_the_reason_of_its_end() -> None:
    why = (fact("trial.no_clear_limit"), fact("trial.disturbed", verb="pause"))
    void = structs.replace(STATE.tried[0], result="interrupted", why=why)
    lines = list(tuner_report.lines(structs.replace(STATE, tried=(void,)), IN_EFFECT, UNITS))
    assert lines[1] == "  » interrupted  rows 2 → 4  a user's pause disturbed the measurement  12 s"


@pytest.mark.parametrize(
    "values",
    [
        {"micro_batch": 32, "compile": True},
        {"optim.fused": False, "lr-scale": 0.5, "lambda": 1, "rows": 8},
        {"attention": "it's\n\u202e 'flash'", "lr": 1e-7},
        {"a" * 64: "x" * 200},
        {},
    ],
)
def test_what_is_copied_is_python(values: dict[str, KnobValue]) -> None:
    line = tuner_report.copied(values)
    assert line.isprintable()
    assert eval(f"dict({line})") == values


def test_gains_of_another_objective_do_not_multiply() -> None:
    energy = structs.replace(STATE, tried=(*STATE.tried, efficient(1.0, 0.25, 0.0)))
    assert tuner_report.gain(energy) == pytest.approx(0.25)
    assert tuner_report.lost_units(energy) == 12.0 * 512.0, "not in units per joule"


def efficient(before: float, gain: float, units: float, pace: float = -0.1) -> Trial:
    """A kept trial for energy, of a run at 512 samples/s that it changes by `pace`."""
    one = trial("micro_batch", 8, 16, "kept", before, gain)
    assert one.measured is not None
    measured = structs.replace(one.measured, metric=WORK_PER_JOULE, interval=0.01)
    speed = structs.replace(one.measured, before=512.0, after=512.0 * (1 + pace), gain=pace, interval=0.02)
    return structs.replace(one, measured=measured, throughput=speed, units=units)


SAVING = TunerState(
    stand="holding", tried=(efficient(1.0, 0.25, 10_000.0),), spent=0.01, lived_s=1200.0,
    limits=Limits(objective="energy"),
)  # fmt: skip


def test_energy_saved_and_throughput_lost_have_their_intervals() -> None:
    saving = tuner_report.saving(SAVING)
    assert saving is not None
    assert (saving.before, saving.after) == (1.0, 0.8)
    assert saving.share == pytest.approx(0.2)
    assert saving.interval == pytest.approx(1 / 1.24 - 0.8)
    assert saving.joules == pytest.approx(2_000.0)
    assert saving.joules_interval == pytest.approx(10_000 * (1 / 1.24 - 0.8))
    lost = tuner_report.throughput(SAVING)
    assert lost is not None
    assert lost.gain == pytest.approx(-0.1)
    assert (lost.before, lost.after) == (512.0, 460.8)
    assert lost.interval == pytest.approx(0.02)


def test_each_kept_change_saves_from_its_beginning_on() -> None:
    both = structs.replace(SAVING, tried=(efficient(1.0, 0.25, 10_000.0), efficient(1.25, 0.6, 5_000.0)))
    saving = tuner_report.saving(both)
    assert saving is not None
    assert saving.share == pytest.approx(0.5)
    assert saving.joules == pytest.approx(10_000 * 0.2 + 5_000 * 0.5)
    assert saving.interval == pytest.approx(0.5 * math.hypot(0.01 / 1.25, 0.01 / 1.6), rel=0.03)


def test_the_report_of_energy_in_lines() -> None:
    lines = list(tuner_report.lines(SAVING, knobs(micro_batch=16), UNITS))
    assert lines == [
        "1 trial, 1 kept: 1.00 → 1.25 units per joule (+25.0 % ± 1.0 by the measured gains)",
        "  ● kept  micro_batch 8 → 16  +25.0 % ± 1.0  1.00 → 1.25 units per joule  "
        "throughput -10.0 % ± 2.0  12 s",
        "energy: 1.00 kJ → 800 J per 1 000 samples (-20.0 % ± 0.6)",
        "saved: about 2.00 kJ ± 64.5 J since the change, while the tuner was on",
        "throughput: 512 → 461 samples/s (-10.0 % ± 2.0)",
        "cost: 8 % of the budget: 12 s of 2 m 24 s (4 % of the first hour), about 6.14 k samples not trained",
        "regret: unknown",
        "copy into your script: micro_batch=16",
    ]


def test_energy_that_was_not_counted_is_not_said_to_be_saved() -> None:
    uncounted = structs.replace(SAVING, tried=(efficient(1.0, 0.25, 0.0),))
    saving = tuner_report.saving(uncounted)
    assert saving is not None
    assert (saving.joules, saving.joules_interval) == (None, None)
    assert not any(line.startswith("saved") for line in tuner_report.lines(uncounted, IN_EFFECT, UNITS))
    assert tuner_report.saving(STATE) is None


def test_a_tuner_that_found_nothing_says_so() -> None:
    lines = list(tuner_report.lines(TunerState(stand="holding"), IN_EFFECT, UNITS))
    assert lines[0] == "0 trials, 0 kept"
    assert len(lines) == 3
