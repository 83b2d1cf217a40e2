"""The first frame: complete, painted once, and not kept waiting by what is not on it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from textual.app import App
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.pilot import Pilot
from textual.screen import Screen

from hoptui.tui.app import HoptuiApp
from hoptui.tui.render_loop import DrawnApp
from hoptui.tui.screen_base import LiveScreen
from hoptui.tui.widgets import Lines
from tests.tui.conftest import Play, Scene


def test_nothing_is_painted_before_it_is_drawn_and_the_first_frame_has_what_is_known(
    scene: Callable[..., Scene], play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    painted: list[tuple[str, str]] = []
    display = App._display

    def see(app: HoptuiApp, screen: Screen[Any], renderable: Any) -> None:
        if renderable is not None and isinstance(screen, LiveScreen):
            painted.append((type(screen).__name__, screen.query_one("#identity", Lines).text))
        display(app, screen, renderable)

    async def script(app: HoptuiApp, pilot: Pilot[None]) -> None:
        app.open_charts(app.screen.run_id, find=False)  # type: ignore[attr-defined]
        await pilot.pause()

    monkeypatch.setattr(App, "_display", see)
    follow: Play = script
    play(scene().live().app(), follow)
    firsts = dict(reversed(painted))
    assert "● live   iteration" in firsts["RunScreen"], "the client knew it before the app was there"
    assert "chart" in firsts["ChartScreen"]


def test_widgets_get_their_styles_once_and_one_layout_before_the_first_frame_is_drawn(
    scene: Callable[..., Scene], play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    styled: list[int] = []
    layouts: list[str] = []
    drawn: list[tuple[list[int], list[str]]] = []
    update, refresh, ready = Stylesheet.update_nodes, Screen._refresh_layout, DrawnApp.on_ready

    def see_styles(sheet: Stylesheet, nodes: Iterable[DOMNode], animate: bool = False) -> None:
        found = list(nodes)
        styled.append(len(found))
        update(sheet, found, animate)

    def see_layout(screen: Screen[Any], *size: Any, **more: Any) -> None:
        layouts.append(type(screen).__name__)
        refresh(screen, *size, **more)

    def see_ready(app: DrawnApp) -> None:
        drawn.append((styled[:], layouts[:]))
        ready(app)

    async def script(app: HoptuiApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert app.screen.classes >= {"-all", "-high", "-tall", "-wide"}

    monkeypatch.setattr(Stylesheet, "update_nodes", see_styles)
    monkeypatch.setattr(Screen, "_refresh_layout", see_layout)
    monkeypatch.setattr(DrawnApp, "on_ready", see_ready)
    follow: Play = script
    play(scene().live().app(), follow, size=(120, 40))
    (again, laid_out), *more = drawn
    assert not more
    assert laid_out == ["RunScreen"]
    assert again, "the screen gets the classes of its size"
    assert set(again) == {1}, "no change of the screen styles all of its widgets again"


def test_style_sheets_of_other_screens_are_read_after_the_first_frame(
    scene: Callable[..., Scene], play: Callable[..., None]
) -> None:
    async def script(app: HoptuiApp, pilot: Pilot[None]) -> None:
        def styles() -> list[dict[str, object]]:
            app.stylesheet.update(app.screen)
            return [dict(node.styles.base.get_rules()) for node in app.screen.walk_children(with_self=True)]

        assert "RunScreen" in app.stylesheet.rules_map
        assert not {"ChartScreen", "Finder", "OverviewScreen"} & set(app.stylesheet.rules_map)
        shown = styles()
        app.clock = lambda: time.monotonic() + 3600.0
        for _ in range(3):
            app.tick()
        assert {"ChartScreen", "Finder", "OverviewScreen"} <= set(app.stylesheet.rules_map)
        assert styles() == shown, "the run screen needs none of them"
        sheets = [path for path, _ in app.stylesheet.source if path.endswith(".tcss")]
        assert [path.rpartition("/tui/")[2] for path in sheets] == app.CSS_PATH

    follow: Play = script
    play(scene().live().app(), follow)


def test_the_sheet_of_a_screen_is_read_before_it_opens(
    scene: Callable[..., Scene], play: Callable[..., None]
) -> None:
    async def script(app: HoptuiApp, pilot: Pilot[None]) -> None:
        assert "ChartScreen" not in app.stylesheet.rules_map
        app.open_charts(app.screen.run_id, find=False)  # type: ignore[attr-defined]
        assert "ChartScreen" in app.stylesheet.rules_map
        await pilot.pause()

    follow: Play = script
    play(scene().live().app(), follow)


def test_screens_follow_the_size_of_the_terminal(
    scene: Callable[..., Scene], play: Callable[..., None]
) -> None:
    sized = {"-tiny", "-narrow", "-wide", "-flat", "-low", "-tall", "-high", "-roomy", "-vast"}

    async def script(app: HoptuiApp, pilot: Pilot[None]) -> None:
        for size, classes in (
            ((240, 60), {"-wide", "-tall", "-high", "-roomy", "-vast"}),
            ((80, 24), {"-narrow", "-low"}),
            ((40, 10), {"-tiny", "-flat"}),
            ((120, 40), {"-wide", "-tall", "-high"}),
        ):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert app.screen.classes & sized == classes
            assert app.screen.outer_size == size

    follow: Play = script
    play(scene().live().app(), follow)


def test_screens_that_are_not_shown_first_are_not_imported() -> None:
    found = _imported()
    assert "hoptui.tui.screens.run.screen" in found
    others = {name for name in found if name.startswith("hoptui.tui.screens.")}
    assert others <= {f"hoptui.tui.screens.run{part}" for part in ("", ".content", ".panels", ".screen")}


def test_libraries_that_the_first_frame_does_not_need_are_not_imported() -> None:
    found = _imported()
    assert {"textual.app", "zmq", "msgspec"} <= found
    needless = {
        "argparse",
        "email",
        "http",
        "importlib.metadata",
        "markdown_it",
        "multiprocessing",
        "numpy",
        "pkg_resources",
        "psutil",
        "pydantic",
        "pygments",
        "rich.markdown",
        "rich.pretty",
        "rich.progress",
        "rich.syntax",
        "rich.traceback",
        "sqlite3",
        "textual.document",
        "textual.widgets._data_table",
        "textual.widgets._markdown",
        "textual.widgets._text_area",
        "tree_sitter",
        "urllib.request",
    }
    assert not needless & found


def _imported() -> set[str]:
    """The modules that `hoptui attach` has imported before its app starts."""
    asked = (
        "import sys, hoptui.cli.launcher, hoptui.client.client, hoptui.tui.app; print(*sorted(sys.modules))"
    )
    command = [sys.executable, "-c", asked]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())
