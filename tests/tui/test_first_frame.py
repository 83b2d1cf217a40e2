"""The first frame: complete, painted once, and not kept waiting by what is not on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen

from hoptui.tui.app import HoptuiApp
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


def test_screens_that_are_not_shown_first_are_not_imported() -> None:
    asked = (
        "import sys, hoptui.tui.app; "
        "print(sorted(m for m in sys.modules if m.startswith('hoptui.tui.screens.')))"
    )
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert "hoptui.tui.screens.run.screen" in found
    for screen in ("charts", "gpu", "help", "history", "knob_editor", "overview", "settings"):
        assert f"'hoptui.tui.screens.{screen}.screen'" not in found
