from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import replace

from hoptui.domain.facts import fact
from hoptui.domain.knobs import Cost, Effect, KnobSpec, KnobState
from hoptui.domain.tuning import Change, Measured
from hoptui.presentation import vocabulary
from hoptui.protocol.messages import CommandRecord, Event, Origin, Stage, State, Vital
from tests import factories


def test_every_state_and_stage_has_a_word() -> None:
    assert set(vocabulary.STATES) == set(get_args(State))
    assert set(vocabulary.STAGES) == set(get_args(Stage))
    assert set(vocabulary.EFFECTS) == set(get_args(Effect))
    assert set(vocabulary.COSTS) == set(get_args(Cost))
    assert all(
        len(word.symbol) == 1 and word.text
        for word in (*vocabulary.STATES.values(), *vocabulary.STAGES.values())
    )


GAIN = Measured(gain=0.061, interval=0.012, detectable=True, iterations=45, settled=True)


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (factories.change(measured=GAIN), "ana (pid 4121)  grad_accum 4 → 8  applied at 1 205  +6.1 % ± 1.2"),
        (
            factories.change(stage="scheduled", effective=None),
            "ana (pid 4121)  grad_accum 4 → 8  scheduled for 1 205",
        ),
        (
            factories.change(
                stage="rejected", effective=None, step=None, reason="grad_accum = 8 is out of bounds"
            ),
            "ana (pid 4121)  grad_accum 4 → 8  rejected: grad_accum = 8 is out of bounds",
        ),
        (factories.change(effective=6), "ana (pid 4121)  grad_accum 4 → 8 (in effect: 6)  applied at 1 205"),
        (factories.change(took_s=0.00099), "ana (pid 4121)  grad_accum 4 → 8  applied at 1 205"),
        (factories.change(took_s=0.213), "ana (pid 4121)  grad_accum 4 → 8  applied at 1 205, took 213 ms"),
        (
            factories.change(released=Origin(user="kim", pid=1)),
            "ana (pid 4121)  grad_accum 4 → 8  applied at 1 205: kim (pid 1) released it to the tuner",
        ),
        (
            factories.change(followed=(Change(knob="micro_batch", before=16, value=8),)),
            "ana (pid 4121)  grad_accum 4 → 8  applied at 1 205: micro_batch 16 → 8 followed",
        ),
        (
            factories.change(stage="reverted", effective=4, reason="out of memory"),
            "ana (pid 4121)  grad_accum 4 → 8 (in effect: 4)  reverted: out of memory",
        ),
        (
            factories.change(verb="profile", knob="", wanted=20, step=9),
            "ana (pid 4121)  profile 20 iterations  applied at 9",
        ),
        (factories.change(verb="pause", knob="", step=9), "ana (pid 4121)  pause  applied at 9"),
        (
            factories.change(origin=Origin(kind="tuner", user="ana")),
            "tuner  grad_accum 4 → 8  applied at 1 205",
        ),
        (
            factories.change(stage="voided", code="", reason="the run restarted", origin=Origin()),
            "somebody  grad_accum 4 → 8  voided: the run restarted",
        ),
    ],
)
def test_sentence(record: CommandRecord, sentence: str) -> None:
    assert vocabulary.sentence(record) == sentence


def test_what_the_tuner_says_has_a_subject() -> None:
    said = Event(seq=1, t=1, wall=1.0, kind="tuner", text="kept grad_accum 4 → 8\x1b[31m")
    assert vocabulary.happened(said) == "tuner: kept grad_accum 4 → 8[31m"
    assert vocabulary.happened(replace(said, kind="note")) == "kept grad_accum 4 → 8[31m"


def test_a_cost_is_told_beforehand_and_as_it_was_measured() -> None:
    spec = KnobSpec(name="micro_batch", kind="int", default=8, cost="shape")
    assert vocabulary.cost(KnobState(spec=spec, value=8)) == vocabulary.COSTS["shape"]
    assert vocabulary.cost(KnobState(spec=spec, value=8, took_s=0.0004)) == vocabulary.COSTS["shape"]
    measured = vocabulary.cost(KnobState(spec=spec, value=8, took_s=2.5))
    assert measured == f"2.50 s last time; {vocabulary.COSTS['shape']}"


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        (None, ""),
        (GAIN, "+6.1 % ± 1.2"),
        (Measured(gain=-0.12, interval=0.02, detectable=True), "-12.0 % ± 2.0"),
        (Measured(gain=0.003, interval=0.018), "no detectable change (± 1.8 %)"),
        (Measured(iterations=7, note="measuring: 7 of 15 iterations"), "measuring: 7 of 15 iterations"),
        (Measured(gain=0.9, interval=33.5), "too uneven to measure (± over 100 %)"),
        (Measured(gain=0.9, interval=33.5, iterations=15, until=90), "measuring: 15 of up to 90 iterations"),
        (
            Measured(gain=0.9, interval=33.5, iterations=15, until=90, settled=True),
            "too uneven to measure (± over 100 %)",
        ),
        (
            Measured(gain=0.9, interval=0.5, iterations=15, until=90, detectable=True),
            "+90.0 % ± 50.0",
        ),
        (
            Measured(gain=4.0, interval=7.5, iterations=30, until=90, detectable=True),
            "+400.0 % (at least +100.0 %)",
        ),
        (
            Measured(gain=0.003, interval=0.4, iterations=90, until=180, note="together with lr"),
            "measuring: 90 of up to 180 iterations, together with lr",
        ),
        (Measured(iterations=2), "measuring: 2 iterations"),
        (Measured(iterations=1), "measuring: 1 iteration"),
        (
            Measured(gain=0.061, interval=0.012, detectable=True, note="together with lr"),
            "+6.1 % ± 1.2, together with lr",
        ),
        (
            Measured(gain=0.003, interval=0.018, note="together with lr"),
            "no detectable change (± 1.8 %), together with lr",
        ),
    ],
)
def test_effect(measured: Measured | None, shown: str) -> None:
    assert vocabulary.effect_text(measured) == shown


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        (GAIN, "+6.1 %"),
        (Measured(gain=0.003, interval=0.018), "no detectable change"),
        (Measured(iterations=2), "measuring"),
        (Measured(gain=0.9, interval=33.5, iterations=15, until=90), "measuring"),
        (Measured(gain=0.061, interval=0.012, detectable=True, note="together with lr"), ""),
    ],
)
def test_a_brief_effect_is_without_its_interval_but_never_without_its_note(
    measured: Measured, shown: str
) -> None:
    assert vocabulary.effect_text(measured, brief=True) == shown


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        (None, ""),
        (Measured(metric="tokens_per_s"), ""),
        (Measured(metric="tokens_per_s", before=512_000.0, after=543_000.0), "512 k → 543 k tokens/s"),
        (Measured(metric="env_steps_per_s", before=512_000.0, after=0.5), "512 k → 0.500 steps/s"),
        (Measured(metric="tokens_per_s", before=512_000.0), "512 k → – tokens/s"),
        (Measured(metric="x\x07", before=1.0, after=2.0), "1.00 → 2.00 x"),
    ],
)
def test_both_sides_of_the_throughput(measured: Measured | None, shown: str) -> None:
    assert vocabulary.speeds(measured, {"env_steps_per_s": "steps/s"}) == shown


@pytest.mark.parametrize(
    ("vital", "shown"),
    [
        (None, "unknown"),
        (Vital(state="live", because=fact("state.no_pulse", age_s=9.0)), "live"),
        (
            Vital(state="busy", because=fact("state.in_phase", phase="checkpoint", age_s=140.0)),
            "busy: in checkpoint for 140 s",
        ),
        (Vital(state="busy", phase="checkpoint", phase_age_s=140), "busy: in checkpoint for 2 m 20 s"),
        (Vital(state="paused", paused_left_s=42), "paused: resumes in 42 s"),
        (Vital(state="unresponsive", pulse_age_s=7.2), "not answering: no pulse for 7 s"),
    ],
)
def test_state(vital: Vital | None, shown: str) -> None:
    assert vocabulary.state_text(vital, factories.run()) == shown


def test_an_end_that_nobody_saw_is_said_once() -> None:
    run = factories.run(exit_reason="exited", exit_detail="its process is gone")
    assert vocabulary.state_text(Vital(state="exited"), run) == "exited: its process is gone"


def test_an_exited_run_says_why() -> None:
    run = factories.run(exit_reason="exception", exit_detail="RuntimeError: \x1b[31mCUDA")
    assert vocabulary.state_text(Vital(state="exited"), run) == "exited: exception: RuntimeError: [31mCUDA"


def test_a_name_from_outside_is_clean() -> None:
    record = factories.change(knob="lr\x1b]0;x\x07", origin=Origin(user="a\nb", pid=1), reason="\x9b2J")
    assert vocabulary.sentence(record).isprintable()


def test_both_sides_of_a_change_are_in_one_notation() -> None:
    assert (
        vocabulary.change(factories.change(knob="lr", before=1e-3, wanted=3e-4, effective=3e-4))
        == "lr 1.0e-3 → 3.0e-4"
    )
    assert (
        vocabulary.change(factories.change(knob="clip_range", before=0.2, wanted=0.3, effective=0.3))
        == "clip_range 0.2 → 0.3"
    )


def test_an_effect_that_other_processes_may_have_caused_is_unclear() -> None:
    measured = Measured(
        metric="env_steps_per_s",
        gain=-0.309,
        interval=0.246,
        detectable=True,
        settled=True,
        remarks=(fact("effect.load_changed", before=0.12, after=0.81),),
    )
    text = vocabulary.effect_text(measured)
    assert text.startswith("unclear: ")
    assert "other processes used 12 % of the CPUs before and 81 % after" in text
    assert vocabulary.effect_text(measured, brief=True) == "unclear"
    alone = replace(measured, remarks=())
    assert vocabulary.effect_text(alone) == "-30.9 % ± 24.6"
