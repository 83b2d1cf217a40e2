"""The line that says what holds a run back: only what is measured, its age, and what is not known as such."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from hoptui.tui.panels import phases, verdict
from hoptui.wire.columns import pack
from tests.tui.conftest import RUN, SECOND, Scene

MakeScene = Callable[..., Scene]


def told(there: Scene, width: int = 120) -> str:
    view = there.app().view(RUN)
    return "".join(span.text for span in verdict.line(view, phases.measured(view), width))


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
