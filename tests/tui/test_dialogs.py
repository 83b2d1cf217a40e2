"""Boxes over a screen, and over each other: what lies below stays alive as far as it is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual._compositor import LayoutUpdate

from hoptui.tui.screens.knob_editor.screen import KnobEditor
from hoptui.tui.widgets import Lines

MakeScene = Callable[..., Any]
Play = Callable[..., None]
EDIT_LR = ("down", "down", "down", "e")


def painted(app: Any) -> str:
    """What the terminal shows: the screen on top with everything that is seen through it."""
    update = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    assert isinstance(update, LayoutUpdate)
    return "\n".join("".join(segment.text for segment in strip) for strip in update.strips)


@pytest.mark.parametrize(
    ("keys", "above", "told"),
    [(("up", "enter"), "Confirm", "after iteration 1 299"), (("f1",), "Help", "what is learned")],
)
def test_a_box_over_another_leaves_the_run_alive(
    scene: MakeScene, play: Play, keys: tuple[str, ...], above: str, told: str
) -> None:
    there = scene().live().history()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press(*EDIT_LR, *keys)
        await pilot.pause()
        editor, top = app.screen_stack[-2:]
        assert (type(editor), type(top).__name__) == (KnobEditor, above)
        assert "iteration 1 204 /" in painted(app)
        for step in (1298, 1299):
            there.update(vital={"step": step})
            there.client.on_change("node")
            await pilot.pause()
            await pilot.pause()
            assert f"iteration 1 {step - 1000} /" in painted(app)  # the header of the run, through both
        assert told in editor.query_one("#about", Lines).text

    play(there.app(), script)
