"""What spares tests of the dashboard their waiting: style sheets that are parsed once, and no naps after
keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import textual.app
import textual.pilot
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from hoptui.tui.app import HoptuiApp


@pytest.fixture(scope="session", autouse=True)
def style_sheets_parsed_once() -> Iterator[None]:
    """Every app of a test would parse the same style sheets again: a fifth of its short life."""
    parse = Stylesheet._parse_rules
    parsed: dict[tuple[Any, ...], list[RuleSet]] = {}

    def once(sheet: Stylesheet, css: str, *rest: Any, **named: Any) -> list[RuleSet]:
        key = (css, rest, tuple(named.items()), tuple(sheet._variables.items()))
        if key not in parsed:
            parsed[key] = parse(sheet, css, *rest, **named)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", once)
        yield


FRAMES = 8
"""So often at most a screen lays itself out anew before it is at rest."""


@pytest.fixture(scope="session", autouse=True)
def no_naps() -> Iterator[None]:
    """Textual's pilot sleeps 20 ms after each key, to be sure that everything has happened; here everything
    is made to happen."""
    run = HoptuiApp.run_test
    apps: list[HoptuiApp] = []

    def known(app: HoptuiApp, **options: Any) -> Any:
        apps[:] = [app]
        return run(app, **options)

    async def settled(*seconds: float) -> None:
        """Nothing is ready any more, and what the timers of screens would do a sixtieth of a second later is
        done."""
        for _ in range(FRAMES):
            await quiet()
            for app in apps:
                app._check_resize()  # Textual would wait a moment for another size
            screens = [screen for app in apps for screen in app.screen_stack]
            waiting = [s for s in screens if s._layout_required or s._callbacks or s._dirty_widgets]
            if not waiting:
                return
            for screen in waiting:
                screen._on_timer_update()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HoptuiApp, "run_test", known)
        for module in (textual.app, textual.pilot):
            patch.setattr(module, "wait_for_idle", settled)
        yield
        apps.clear()


async def quiet(*_: float) -> None:
    """Return when no callback of the event loop is ready any more: only timers and other threads could make
    it go on."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    while ready:
        await asyncio.sleep(0)
