"""The runs screen: filter, order, groups, marks, and what it opens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hoptui.model.run_selection import Selection
from hoptui.node.addresses import addresses
from hoptui.tui.screens.charts.screen import ChartScreen
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.screens.runs import content
from hoptui.tui.screens.runs.content import MOST_MARKED, TableState
from hoptui.tui.screens.runs.screen import RunsScreen
from hoptui.tui.widgets import Lines
from tests.tui.conftest import RUN
from tests.tui.recorded_runs import record

MakeScene = Callable[..., Any]
Snapshot = Callable[..., None]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three recordings that differ in their configuration."""
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(tmp_path / "state"))
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return [
        record(folder, 1, config={"lr": 0.001, "layers": 12}, tags=("baseline",)),
        record(folder, 2, config={"lr": 0.0003, "layers": 12}, tags=("sweep",)),
        record(folder, 3, config={"lr": 0.01, "layers": 12}, tags=("sweep",)),
    ]


async def opened(app: Any, pilot: Any, count: int) -> RunsScreen:
    """The screen once it has so many runs."""
    await pilot.press("t")
    screen = app.screen
    assert isinstance(screen, RunsScreen)
    async with asyncio.timeout(30):
        while len(screen.rows(screen.view())) < count:
            app.tick()
            await asyncio.sleep(0.01)
    await pilot.pause()
    return screen


def names(screen: RunsScreen) -> list[str | None]:
    return [row.name for row in screen._shown()]


def drive(scene: MakeScene, count: int, steps: Callable[[Any, Any, RunsScreen], Any]) -> None:
    async def run() -> None:
        app = scene(gpus=1).live().app(run=None)
        async with app.run_test(size=(120, 40)) as pilot:
            await steps(app, pilot, await opened(app, pilot, count))

    asyncio.run(run())


def test_filter_order_and_group(scene: MakeScene, shelf: list[Path]) -> None:
    async def steps(app: Any, pilot: Any, screen: RunsScreen) -> None:
        await pilot.press("slash", *"config.lr<0.005", "enter")
        assert names(screen) == ["lm-1", "lm-2"]
        await pilot.press("s", *"lr", "enter")
        assert names(screen) == ["lm-2", "lm-1"]
        await pilot.press("s", *"lr", "enter")
        assert names(screen) == ["lm-1", "lm-2"]
        assert screen.table.selection.falling
        await pilot.press("b", *"tag", "enter")
        assert screen.table.selection.group == "tag"
        await pilot.press("slash", *" lr'", "escape")
        assert screen.table.typed == "config.lr<0.005"

    drive(scene, 4, steps)


def test_a_filter_says_what_is_wrong_with_it(
    scene: MakeScene, shelf: list[Path], read: Callable[[Any, str], str]
) -> None:
    async def steps(app: Any, pilot: Any, screen: RunsScreen) -> None:
        def help_line() -> str:
            return read(app, "filter-help")

        def table() -> str:
            return screen.query_one("#table-rows", Lines).text

        await pilot.press("slash", *"layer=")
        assert "'layer='" in help_line()
        await pilot.press("1")
        wrong = "no run has a value of layer (did you mean layers?)"
        assert wrong in help_line()
        assert wrong in table()
        assert "columns: name, run, state" in table()
        assert "layers" in table().partition("columns:")[2]
        await pilot.press("enter")
        assert wrong in str(screen.query_one("#table").border_subtitle)
        await pilot.press("slash", *("backspace",) * 7, *"layer!=1")
        assert wrong in help_line(), "also where it selects all"
        assert len(names(screen)) == 4
        await pilot.press(*("backspace",) * 3, *"s=12")
        assert wrong not in help_line()
        assert "columns:" not in table()

    drive(scene, 4, steps)


def test_marks_are_kept_and_limited(scene: MakeScene) -> None:
    table = TableState()
    for number in range(MOST_MARKED):
        assert table.mark(str(number)) == ""
    assert table.mark("one more") != ""
    assert table.mark("0") == ""
    assert len(table.marked) == MOST_MARKED - 1


def test_enter_opens_a_live_run_and_charts_a_recorded_one(scene: MakeScene, shelf: list[Path]) -> None:
    async def live(app: Any, pilot: Any, screen: RunsScreen) -> None:
        await pilot.press("enter")
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == RUN

    async def recorded(app: Any, pilot: Any, screen: RunsScreen) -> None:
        await pilot.press("end", "enter")
        assert isinstance(app.screen, ChartScreen)
        assert app.screen.run_id == screen.rows(screen.view())[-1].run
        await pilot.press("escape")
        shown: Any = app.screen
        assert shown is screen

    drive(scene, 4, live)
    drive(scene, 4, recorded)


@pytest.mark.parametrize("width", [56, 76, 116, 196])
def test_columns_fit(scene: MakeScene, shelf: list[Path], width: int) -> None:
    from hoptui.model.run_table import RecordedRuns

    rows, _ = RecordedRuns(addresses().state).rows()
    shown = content.columns(rows, Selection(), width)
    assert sum(column.width for column in shown) + content.MARGIN <= width
    assert [column.name for column in shown][:2] == ["state", "name"]
    if width == 196:
        assert {"lr", "verdict", "tags", "metric"} <= {column.name for column in shown}
        assert "layers" not in {column.name for column in shown}
