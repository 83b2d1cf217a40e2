"""The line that says what holds a run back: only what is measured, its age, and what is not known as such."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from msgspec import structs

from hoptui.domain.columns import pack
from hoptui.domain.tuning import Advice, Diagnosis
from hoptui.tui.components import diagnosis_line, phases
from tests.tui.conftest import RUN, SECOND, Scene

MakeScene = Callable[..., Scene]


def told(there: Scene, width: int = 120) -> str:
    view = there.app().view(RUN)
    return "".join(span.text for span in diagnosis_line.line(view, phases.measured(view), width))


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


def test_the_largest_phase_and_its_largest_part(scene: MakeScene) -> None:
    there = scene().live()
    assert told(there) == "▸ largest phase: rollout 61 % of an iteration (env 38 %) · over the last 30 s"
    assert told(there, 70) == "▸ largest phase: rollout 61 % of an iteration · over the last 30 s"
    assert told(there, 58) == "▸ largest phase: rollout 61 % · over the last 30 s"
    assert told(there, 48) == "▸ largest phase: rollout 61 % of an iteration"
    assert told(there, 40) == "▸ largest phase: rollout 61 %"


def test_time_outside_of_every_phase_may_be_the_largest_part(scene: MakeScene) -> None:
    there = iterations(scene().live(history=False), [{"iteration_s": 1.0, "phase/update": 0.2}] * 10, 1.0)
    assert told(there).startswith("▸ largest part: in no named phase 80 % of an iteration · over")


def test_what_is_not_known_is_said(scene: MakeScene) -> None:
    there = scene(runs=False).live(history=False)
    assert told(there) == ""
    there = scene().live(history=False)
    assert told(there) == "▸ what holds the run back is not known: no iteration has ended yet"
    iterations(there, [{"iteration_s": 0.1}], 1.0)
    why = "▸ what holds the run back is not known: this run names no phases"
    assert told(there) == f'{why}, as run.phase("rollout") does'
    assert told(there, 70) == why


def test_a_silent_run_keeps_its_phases_with_their_age(scene: MakeScene) -> None:
    there = scene().live()
    there.client.ns += 120 * SECOND
    there.update(vital={"state": "unresponsive", "pulse_age_s": 120.0})
    assert told(there).endswith("rollout 61 % of an iteration (env 38 %) · over 30 s until 2 m 0 s ago")
    view = there.app().view(RUN)
    lines = phases.lines(view, phases.measured(view), 60, 5)
    assert "".join(span.text for span in lines[0]).startswith("rollout")


@pytest.mark.parametrize("count", [1, 9])
def test_iterations_longer_than_the_window_are_not_forgotten(scene: MakeScene, count: int) -> None:
    row = {"iteration_s": 40.0, "phase/rollout": 30.0, "phase/update": 10.0}
    there = iterations(scene().live(history=False), [row] * count, 40.0, ago_s=35.0)
    there.update(vital={"iteration_s": 40.0})
    assert told(there) == "▸ largest phase: rollout 75 % of an iteration · in the last iteration"
    there.update(vital={"state": "unresponsive"})
    assert told(there).endswith("· in an iteration that ended 35 s ago")


def test_few_iterations_are_counted(scene: MakeScene) -> None:
    row = {"iteration_s": 9.0, "phase/rollout": 6.0}
    there = iterations(scene().live(history=False), [row] * 9, 12.0)
    assert told(there).endswith("· over the last 3 iterations")
    there = iterations(scene().live(history=False), [{"iteration_s": 0.5, "phase/rollout": 0.4}] * 8, 0.5)
    assert told(there).endswith("· over the last 4 s")


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
    evidence=("SM active 5.6 %", "busy 32 %", "a kernel fills 18 % of the GPU", "144 of 700 W"),
    advice=(
        Advice(knob="gone", direction="up", value=2, text="gone 1 → 2 (takes effect at once)"),
        Advice(knob="grad_accum", direction="down", value=2, text="grad_accum 4 → 2 (may compile anew)"),
    ),
    t=1_000 * SECOND,
)


def diagnosed(there: Scene, found: Diagnosis = LAUNCHES) -> Scene:
    there.update(run={"diagnosis": found})
    return there


def test_a_diagnosis_with_its_evidence_and_the_knob_to_turn(scene: MakeScene) -> None:
    there = diagnosed(scene().live())
    trying = "try grad_accum 4 → 2"
    assert told(there, 160) == (
        "▸ launch-bound: SM active 5.6 % · busy 32 % · a kernel fills 18 % of the GPU · 144 of 700 W  "
        f"{trying} (may compile anew)  o does it"
    )
    assert (
        told(there, 100)
        == f"▸ launch-bound: SM active 5.6 % · busy 32 %  {trying} (may compile anew)  o does it"
    )
    assert told(there, 70) == f"▸ launch-bound: SM active 5.6 %  {trying}  o does it"
    assert told(there, 60) == f"▸ launch-bound: SM active 5.6 %  {trying}"
    assert told(there, 50) == "▸ launch-bound: SM active 5.6 % · busy 32 %"
    assert told(there, 20) == "▸ launch-bound"


def test_a_diagnosis_fits_into_every_width(scene: MakeScene) -> None:
    there = diagnosed(scene().live())
    view = there.app().view(RUN)
    split = phases.measured(view)
    for width in range(60, 241):
        line = "".join(span.text for span in diagnosis_line.line(view, split, width))
        assert len(line) <= width
        assert "try grad_accum" in line


def test_a_doubtful_diagnosis_says_so(scene: MakeScene) -> None:
    there = diagnosed(scene().live(), structs.replace(LAUNCHES, confidence=0.6, advice=()))
    assert told(there, 60) == "▸ perhaps launch-bound: SM active 5.6 % · busy 32 %"
    diagnosed(there, Diagnosis(verdict="healthy", confidence=0.8, evidence=("SM active 94 %",)))
    assert told(there) == "▸ nothing stands out: SM active 94 %"


def test_where_no_knob_helps_it_says_what_would(scene: MakeScene) -> None:
    text = "step environments in several processes, or on the GPU"
    found = Diagnosis(
        verdict="env-bound", confidence=0.9, evidence=("env 70 %",), advice=(Advice(text=text),)
    )
    there = diagnosed(scene().live(), found)
    assert told(there) == f"▸ env-bound: env 70 %  {text}"


def test_an_unknown_diagnosis_leaves_the_line_to_the_phases(scene: MakeScene) -> None:
    there = diagnosed(scene().live(), Diagnosis(evidence=("no GPU readings: no driver",)))
    assert told(there).startswith("▸ largest phase: rollout 61 %")


def test_an_old_diagnosis_says_how_old_and_advises_nothing(scene: MakeScene) -> None:
    there = diagnosed(scene().live())
    there.client.ns += 120 * SECOND
    there.update(vital={"state": "unresponsive", "pulse_age_s": 120.0})
    assert told(there, 70) == "▸ launch-bound: SM active 5.6 % · busy 32 % · as of 2 m 0 s ago"
    assert "try" not in told(there, 240)
