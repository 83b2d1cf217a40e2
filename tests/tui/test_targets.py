"""The targets of a run on the run screen and in the list of runs: missed ones first, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hoptui.domain.enumerations import convert
from hoptui.domain.targets import Target, TargetState
from hoptui.tui.components import runs, targets
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, width_of
from tests.golden import Golden, sheet
from tests.tui.conftest import RUN, Scene

MakeScene = Callable[..., Scene]
TARGETS = (
    TargetState(target=Target(reading="power_w", value=600.0), standing="met", mean=642.0, gpu="GPU-0"),
    TargetState(target=Target(reading="busy", value=90.0), standing="missed", mean=71.2, gpu="GPU-3"),
    TargetState(target=Target(reading="memory_temperature_c", value=95.0, side="most")),
    TargetState(target=Target(reading="nvlink_rx_bytes_per_s", value=2e10), standing="missed", mean=1e9),
)


def aimed(there: Scene, states: tuple[TargetState, ...] = TARGETS) -> View:
    there.update(run={"targets": states, "gpus": tuple(gpu.uuid for gpu in there.gpus)})
    return there.app().view(RUN)


def text(line: Line) -> str:
    return "".join(span.text for span in line)


def test_as_many_as_fit_and_the_number_of_the_others(scene: MakeScene, golden: Golden) -> None:
    view = aimed(scene(gpus=8).live())
    widths = (160, 120, 100, 80, 60, 56, 40, 30, 12)
    found = {f"{width} columns": "".join(map(text, targets.line(view, width))) for width in widths}
    golden(sheet(found))


@pytest.mark.parametrize("width", range(12, 200, 3))
def test_the_line_is_never_wider_than_its_room(scene: MakeScene, width: int) -> None:
    view = aimed(scene(gpus=8).live())
    [line] = targets.line(view, width)
    assert width_of(line) <= width


def test_a_run_without_targets_has_no_line(scene: MakeScene) -> None:
    assert targets.line(aimed(scene(gpus=1).live(), ()), 100) == []


def test_the_gpu_is_named_where_there_are_several(scene: MakeScene) -> None:
    assert "busy ≥ 90 %: 71 % on GPU 3" in text(targets.line(aimed(scene(gpus=8).live()), 200)[0])
    one = (TARGETS[0],)
    assert text(targets.line(aimed(scene(gpus=1).live(), one), 200)[0]) == "✓ power ≥ 600 W: 642 W"


def test_a_standing_that_only_a_newer_hoptui_knows_is_shown_after_misses(scene: MakeScene) -> None:
    newer = convert({"target": {"reading": "busy", "value": 90.0}, "standing": "surpassed"}, TargetState)
    [line] = targets.line(aimed(scene(gpus=1).live(), (TARGETS[0], newer, TARGETS[1])), 200)
    order = [text(line).index(symbol) for symbol in ("⚠ busy", "? busy", "✓ power")]
    assert order == sorted(order)


def test_the_list_of_runs_has_what_is_missed_in_place_of_the_last_effect(scene: MakeScene) -> None:
    view = aimed(scene(gpus=8).live().history())
    [wide], [narrow] = (runs.rows(view, width, -1) for width in (140, 80))
    assert text(wide).rstrip().endswith("⚠ busy ≥ 90 %: 71 % on GPU 3")
    assert "⚠" not in text(narrow)
    [without] = runs.rows(aimed(scene(gpus=8).live().history(), TARGETS[:1]), 140, -1)
    assert "⚠" not in text(without)
