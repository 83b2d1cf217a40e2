"""What a closed screen had drawn is let go of: a dashboard may be open for weeks. And one that never opened
is no fault."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from textual._styles_cache import StylesCache
from textual.messages import ExitApp
from textual.screen import Screen
from textual.widget import Widget

from hoptui.tui.screens.run.screen import RunScreen

MakeScene = Callable[..., Any]
Play = Callable[..., None]
LIMIT_S = 20.0
AROUND = ("h", "escape", "d", "escape", "e", "escape", "question_mark", "escape")


def test_nothing_drawn_outlives_its_screen(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=2).live().history()

    async def script(app: Any, pilot: Any) -> None:
        for key in AROUND:
            await pilot.press(key)
        async with asyncio.timeout(LIMIT_S):  # a screen is removed some time after its key
            while drawn_by_others(app.screen_stack):
                await pilot.pause(0.01)

    play(there.app(), script)


def drawn_by_others(screens: Sequence[Screen[Any]]) -> bool:
    """Return whether lines are kept that belong to no widget of these screens."""
    gc.collect()
    shown = {id(widget._styles_cache) for screen in screens for widget in (screen, *screen.query(Widget))}
    caches = [one for one in gc.get_objects() if type(one) is StylesCache]
    return any(one._cache for one in caches if id(one) not in shown)


def test_a_screen_that_is_about_to_open_as_the_app_is_told_to_leave_is_no_fault(
    scene: MakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose = RunScreen.compose

    def told_to_leave(screen: RunScreen) -> Any:
        screen.app.exit(return_code=143)
        screen._closing = True  # as the app does to all it has, on its way out
        return compose(screen)

    monkeypatch.setattr(RunScreen, "compose", told_to_leave)
    app = scene().live().app()
    asyncio.run(asyncio.wait_for(app.run_async(headless=True), 20))
    assert app.return_code == 143


def test_a_closed_browser_tab_while_a_screen_opens_is_no_fault(
    scene: MakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    compose = RunScreen._compose

    async def closed_tab(screen: RunScreen) -> None:
        screen.app.post_message(ExitApp())  # as Textual's driver does
        while not (screen._closing or screen._pruning):
            await asyncio.sleep(0)
        await compose(screen)

    monkeypatch.setattr(RunScreen, "_compose", closed_tab)
    app = scene().live().app()
    asyncio.run(asyncio.wait_for(app.run_async(headless=True), LIMIT_S))
    assert app._exception is None
