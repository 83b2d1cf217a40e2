"""The line that says what holds a run back: only what is measured, its age, and what is not known as such."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from msgspec import structs

from hoptui.domain.columns import pack
from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import fact
from hoptui.tui.components import phases, runs
from tests.golden import Golden, sheet
from tests.tui.conftest import RUN, SECOND, Scene
from tests.tui.tuned_run import advises

MakeScene = Callable[..., Scene]


def told(there: Scene, width: int = 120) -> str:
    view = there.app().view(RUN)
    return "".join(span.text for span in runs.diagnosis_line(view, phases.measured(view), width))


def iterations(there: Scene, rows: Iterable[dict[str, float]], every_s: float, ago_s: float = 0.0) -> Scene:
    """Iterations of the run, the last one so long ago."""
    made = list(rows)
    end = there.client.ns - int(ago_s * SECOND)
    stamps = [end - int((len(made) - 1 - i) * every_s * SECOND) for i in range(len(made))]
    there.tell(
        columns=(
            pack(f"run/{RUN}", [(t, i, row) for i, (t, row) in enumerate(zip(stamps, made, strict=True))]),
        )
    )
    return there


def test_the_largest_phase_and_its_largest_part(scene: MakeScene, golden: Golden) -> None:
    there = scene().live()
    golden(sheet({f"{width} columns": told(there, width) for width in (120, 70, 58, 48, 40)}))


def test_time_outside_of_every_phase_may_be_the_largest_part(scene: MakeScene, golden: Golden) -> None:
    there = iterations(scene().live(history=False), [{"iteration_s": 1.0, "phase/update": 0.2}] * 10, 1.0)
    golden([told(there)])


def test_what_is_not_known_is_said(scene: MakeScene, golden: Golden) -> None:
    there = scene(runs=False).live(history=False)
    assert told(there) == ""
    there = scene().live(history=False)
    shown = {"no iteration": told(there)}
    iterations(there, [{"iteration_s": 0.1}], 1.0)
    shown |= {f"no phases, {width} columns": told(there, width) for width in (120, 70)}
    golden(sheet(shown))


def test_a_silent_run_keeps_its_phases_with_their_age(scene: MakeScene, golden: Golden) -> None:
    there = scene().live()
    there.client.ns += 120 * SECOND
    there.update(vital={"state": "unresponsive", "pulse_age_s": 120.0})
    golden([told(there)])
    view = there.app().view(RUN)
    lines = phases.lines(view, phases.measured(view), 60, 5)
    assert "".join(span.text for span in lines[0]).startswith("rollout")


@pytest.mark.parametrize("count", [1, 9])
def test_iterations_longer_than_the_window_are_not_forgotten(
    scene: MakeScene, count: int, golden: Golden
) -> None:
    row = {"iteration_s": 40.0, "phase/rollout": 30.0, "phase/update": 10.0}
    there = iterations(scene().live(history=False), [row] * count, 40.0, ago_s=35.0)
    there.update(vital={"iteration_s": 40.0})
    shown = {"live": told(there)}
    there.update(vital={"state": "unresponsive"})
    shown["it does not answer"] = told(there)
    golden(sheet(shown))


def test_few_iterations_are_counted(scene: MakeScene, golden: Golden) -> None:
    row = {"iteration_s": 9.0, "phase/rollout": 6.0}
    there = iterations(scene().live(history=False), [row] * 9, 12.0)
    shown = {"of 12 s": told(there)}
    there = iterations(scene().live(history=False), [{"iteration_s": 0.5, "phase/rollout": 0.4}] * 8, 0.5)
    shown["of 0.5 s"] = told(there)
    golden(sheet(shown))


def test_a_rare_phase_does_not_change_the_inks_of_the_others(scene: MakeScene) -> None:
    often, rarely = {"iteration_s": 1.0, "phase/rollout": 0.6}, {"phase/evaluation": 0.4}
    there = iterations(
        scene().live(history=False),
        [often | rarely | {"phase/update": 0.1}, *[often | {"phase/update": 0.1}] * 60],
        1.0,
    )
    view = there.app().view(RUN)
    inks = {phase.path: phase.ink for phase in phases.measured(view).phases}
    assert inks.keys() == {"rollout", "update", "other"}
    assert inks["update"] == phases.outermost(view)["update"] == "3"


LAUNCHES = Diagnosis(
    verdict="launch-bound",
    confidence=0.95,
    facts=(
        fact("gpu.sm_active", share=0.056),
        fact("gpu.any_kernel", share=0.32),
        fact("gpu.kernel_fill", share=0.18),
        fact("gpu.power", watts=144, limit_w=700),
    ),
    advice=(advises("gone", 1, 2, cost="free"), advises("grad_accum", 4, 2)),
    t=1_000 * SECOND,
)


def diagnosed(there: Scene, found: Diagnosis = LAUNCHES) -> Scene:
    there.update(run={"diagnosis": found})
    return there


def test_a_diagnosis_with_its_evidence_and_the_knob_to_turn(scene: MakeScene, golden: Golden) -> None:
    there = diagnosed(scene().live())
    golden(sheet({f"{width} columns": told(there, width) for width in (160, 100, 70, 60, 50, 20)}))


def test_a_diagnosis_fits_into_every_width(scene: MakeScene) -> None:
    there = diagnosed(scene().live())
    view = there.app().view(RUN)
    split = phases.measured(view)
    for width in range(60, 241):
        line = "".join(span.text for span in runs.diagnosis_line(view, split, width))
        assert len(line) <= width
        assert "try grad_accum" in line


def test_a_doubtful_diagnosis_says_so(scene: MakeScene, golden: Golden) -> None:
    there = diagnosed(scene().live(), structs.replace(LAUNCHES, confidence=0.6, advice=()))
    shown = {"60 % sure": told(there, 60)}
    diagnosed(there, Diagnosis(verdict="healthy", confidence=0.8, facts=(fact("gpu.sm_active", share=0.94),)))
    shown["healthy"] = told(there)
    golden(sheet(shown))


def test_the_line_of_the_script_is_named_at_every_width(scene: MakeScene) -> None:
    line = {
        "kind": "input",
        "share": 0.83,
        "file": "/job/data.py",
        "line": 37,
        "function": "augment",
        "inside": "x",
    }
    found = Diagnosis(
        verdict="data-bound",
        confidence=0.9,
        facts=(
            fact("gpu.idle_share", share=0.86),
            fact("line.hot", **line),
            fact("host.cpu", share=1.0, cores=2),
        ),
        advice=(Advice(fact=fact("advice.without_a_knob", verdict="data-bound")),),
    )
    there = diagnosed(scene().live(), found)
    for width in range(42, 241):
        assert "data.py:37 augment" in told(there, width)
        assert len(told(there, width)) <= width
    assert told(there, 42) == "▸ data-bound: data.py:37 augment 83 %"
    assert told(there, 62) == "▸ data-bound: GPU idle 86 % · data.py:37 augment 83 %"


def test_where_no_knob_helps_it_says_what_would(scene: MakeScene, golden: Golden) -> None:
    found = Diagnosis(
        verdict="env-bound",
        confidence=0.9,
        facts=(fact("phase.share", phase="env", share=0.7),),
        advice=(Advice(fact=fact("advice.without_a_knob", verdict="env-bound")),),
    )
    there = diagnosed(scene().live(), found)
    golden([told(there)])


def test_an_unknown_diagnosis_leaves_the_line_to_the_phases(scene: MakeScene) -> None:
    there = diagnosed(
        scene().live(),
        Diagnosis(facts=(fact("gpu.no_readings", problem=fact("recorded", text="no driver")),)),
    )
    assert told(there) == told(scene().live()) != ""


def test_an_old_diagnosis_says_how_old_and_advises_nothing(scene: MakeScene, golden: Golden) -> None:
    there = diagnosed(scene().live())
    there.client.ns += 120 * SECOND
    there.update(vital={"state": "unresponsive", "pulse_age_s": 120.0})
    golden([told(there, 70)])
    assert "try" not in told(there, 240)
