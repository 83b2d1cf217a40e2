"""What the chart screen and the finder look like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tui.conftest import START, Scene
from tests.tui.recorded_runs import record

Snapshot = Callable[..., None]
CHARTS = ("slash", "escape")


def working(gpus: int = 1) -> Scene:
    return Scene(gpus=gpus).live().history()


def test_charts(snapshot: Snapshot) -> None:
    """The charts to begin with, of a run on one GPU."""
    snapshot(working().app(), *CHARTS)


def test_chart_of_one_series(snapshot: Snapshot) -> None:
    """One chart alone, with the changes of knobs as marks."""
    snapshot(working().app(), *CHARTS, "enter")


def test_chart_of_several_series(snapshot: Snapshot) -> None:
    """Three readings of a GPU in one chart, and the crosshair."""
    snapshot(working().app(), *CHARTS, "down", "down", "enter", "h")


def test_chart_logarithmic(snapshot: Snapshot) -> None:
    """A logarithmic value axis."""
    snapshot(working().app(), "slash", *"vloss", "enter", "enter", "y")


def test_charts_by_iteration(snapshot: Snapshot) -> None:
    """Iterations on the x axis."""
    snapshot(working().app(), *CHARTS, "a", "x")


def test_charts_frozen(snapshot: Snapshot) -> None:
    """A part of before is kept while the run goes on."""
    there = working()

    def goes_on(app: object) -> None:
        there.client.ns += 20_000_000_000
        there.rows(20)

    snapshot(there.app(), *CHARTS, "plus", "plus", "H", goes_on)


def test_charts_of_all_history(snapshot: Snapshot) -> None:
    """All history, from the first row on."""
    snapshot(working().app(), *CHARTS, "a")


def test_charts_crosshair_where_nothing_is_known(snapshot: Snapshot) -> None:
    """The crosshair stands before the first row."""

    def before_all(app: Any) -> None:
        app.screen.board.timeline.cross = START - 280_000_000_000

    snapshot(working().app(), *CHARTS, before_all)


def test_charts_compared(snapshot: Snapshot, recorded: Path) -> None:
    """A recording beside the run, from the start of both."""
    snapshot(working().app(), *CHARTS, lambda app: app.screen.compare(recorded), "a")


def test_charts_of_a_node(snapshot: Snapshot) -> None:
    """One curve a GPU, of a node with eight."""
    snapshot(working(gpus=8).app(run=None), *CHARTS)


def test_charts_none(snapshot: Snapshot) -> None:
    """All charts were taken away."""
    snapshot(working().app(), *CHARTS, *"dddd")


def test_finder(snapshot: Snapshot) -> None:
    """All that can be charted, before a letter is typed."""
    snapshot(working().app(), "slash")


def test_finder_typed(snapshot: Snapshot) -> None:
    """A few letters find a series."""
    snapshot(working().app(), "slash", *"power")


def test_finder_nothing(snapshot: Snapshot) -> None:
    """Nothing is called so."""
    snapshot(working().app(), "slash", *"qqq")


def test_charts_of_eight_runs(snapshot: Snapshot, tmp_path: Path) -> None:
    """Eight runs in the charts of one series: four inks, and the same dashed."""
    paths = [record(tmp_path, number) for number in range(1, 8)]

    snapshot(working().app(), *CHARTS, lambda app: app.screen.compare_all(paths), "x", "down", "enter")
