"""The command palette has every action that works, on every screen, and nothing that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.command import CommandList, CommandPalette
from textual.worker import WorkerState

from hoptui.tui.actions import ACTIONS
from hoptui.tui.app import Palette

MakeScene = Callable[..., Any]
Play = Callable[..., None]
SHARED = ("list", "everywhere")
UNTITLED = {"app.commands", "app.leave_now", "app.help_now"}


def titles(screen: Any) -> set[str]:
    """What the palette offers that is, or would be, opened over a screen."""
    return {entry.title for entry in Palette(screen).entries()}


def test_every_key_that_works_is_in_it_by_its_name(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live().history()

    async def script(app: Any, pilot: Any) -> None:
        for way in ((), ("d",), ("escape", "f4"), ("escape", "g")):
            await pilot.press(*way)
            await pilot.pause()
            active = {one.binding.id for one in app.screen.active_bindings.values()}
            works = {a.id for a in ACTIONS if a.id in active and (a.scope in SHARED or app.screen.works(a))}
            assert len(works) > 10
            app.worked = app.working()
            assert {name.replace(".", ": ", 1).replace("_", " ") for name in works - UNTITLED} <= titles(
                app.screen
            )

    play(there.app(), script)


def test_what_does_not_work_now_is_not_in_it(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()
    there.client.read_only = True

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("ctrl+p", "ctrl+p")
        assert isinstance(app.screen, CommandPalette)
        offered = titles(app.screen_stack[-2])
        assert "view: gpus" in offered
        assert "panel: hide events" in offered
        for name in ("run: pause", "run: stop", "knob: undo", "knob: edit lr", "gpus: fast", "replay: play"):
            assert name not in offered

    play(there.app(), script)


def test_an_app_that_ends_as_it_opens_does_not_fall_over_its_list(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("ctrl+p")
        await app.screen.query_one(CommandList).remove()
        worker = app.screen._gather_commands("")
        await worker.wait()
        assert worker.state == WorkerState.SUCCESS

    play(there.app(), script)
