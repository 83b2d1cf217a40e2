"""A run with a tuner that is at work: what tests of its panels, its screen and its pictures look at."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import fact
from hoptui.domain.knobs import Cost, Effect, KnobValue
from hoptui.domain.tuning import Change, Limits, Measured, Trial, TunerState
from hoptui.protocol.messages import Origin
from tests.tui.conftest import SECOND, START, Scene

TUNER = Origin(kind="tuner", user="ana", client="tuner")


def change(knob: str, before: KnobValue, value: KnobValue) -> Change:
    return Change(knob=knob, before=before, value=value)


def measured(gain: float, interval: float, *, detectable: bool = True, iterations: int = 45) -> Measured:
    return Measured(
        metric="env_steps_per_s",
        before=480e3,
        after=480e3 * (1 + gain),
        gain=gain,
        interval=interval,
        detectable=detectable,
        iterations=iterations,
        settled=True,
    )


TRIED = (
    Trial(
        changes=(change("grad_accum", 2, 4),), result="kept", t=START - 900 * SECOND, step=700, iterations=45,
        seconds=58.0, measured=measured(0.061, 0.012), text="faster beyond doubt",
    ),
    Trial(
        changes=(change("rollout_len", 64, 128), change("grad_accum", 4, 2)), result="reverted",
        t=START - 600 * SECOND, step=860, iterations=30, seconds=41.0,
        measured=measured(0.001, 0.018, detectable=False, iterations=30),
        text="no gain beyond 2 %: the smaller setting is preferred",
    ),
    Trial(
        changes=(change("precision", "bf16", "fp32"),), result="failed", t=START - 300 * SECOND, step=1010,
        seconds=3.0, text="the run refused it: out of memory; not tried again for 10 m",
    ),
)  # fmt: skip
STATE = TunerState(
    stand="trial",
    text="trying grad_accum 8: half of the memory is unused",
    limits=Limits(learning=("num_envs",)),
    trial=Trial(
        changes=(change("grad_accum", 4, 8),), t=START - 20 * SECOND, step=1190, iterations=23, seconds=20.0,
        measured=measured(0.041, 0.02, iterations=23), text="larger pieces, fewer launches",
    ),
    next=(change("rollout_len", 64, 128),),
    tried=TRIED,
    frozen=("lr",),
    spent=0.008,
    lived_s=1200.0,
    regret_units=2.1e6,
    best_rate=6.2e5,
    started=START - 1200 * SECOND,
    user="ana",
)  # fmt: skip
HOLDING = replace(STATE, stand="holding", text="nothing better was found in 9 trials", trial=None, next=())
STOPPED = replace(STATE, stand="off", text="stopped by ana", trial=None, next=())


def advises(knob: str, before: int, value: int, *, effect: Effect = "speed", cost: Cost = "shape") -> Advice:
    """Advice to turn a knob from one value to another."""
    what = fact("advice.knob", knob=knob, before=before, value=value, effect=effect, cost=cost)
    return Advice(knob=knob, direction="up" if value > before else "down", value=value, fact=what)


ADVICE = (
    advises("grad_accum", 4, 2, cost="free"),
    advises("num_envs", 2048, 4096, effect="learning"),
)
DIAGNOSIS = Diagnosis(
    verdict="launch-bound", confidence=0.9, advice=ADVICE,
    facts=(fact("gpu.sm_active", share=0.12), fact("gpu.any_kernel", share=0.99)),
    seconds=20.0, t=START,
)  # fmt: skip


def tuned(state: TunerState | None = STATE, diagnosis: Diagnosis | None = DIAGNOSIS, **options: Any) -> Scene:
    """A scene with one GPU, two changes of a person and one of the tuner."""
    there = Scene(gpus=1, **options).live().history()
    there.record(
        id="t1",
        ago_s=20.0,
        knob="grad_accum",
        before=2,
        wanted=4,
        effective=4,
        version=3,
        step=1190,
        origin=TUNER,
        measured=measured(0.061, 0.012),
        why="half of the memory is unused",
    )
    there.update(run={"tuner": state, "diagnosis": diagnosis})
    return there
