"""What a closed screen had drawn is let go of: a dashboard may be open for weeks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from textual._styles_cache import StylesCache

MakeScene = Callable[..., Any]
Play = Callable[..., None]
AROUND = ("h", "escape", "d", "escape", "e", "escape", "question_mark", "escape")


def test_nothing_drawn_outlives_its_screen(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=2).live().history()

    async def script(app: Any, pilot: Any) -> None:
        for key in AROUND:
            await pilot.press(key)
        gc.collect()
        shown = {id(widget._styles_cache) for screen in app.screen_stack for widget in screen.walk_children()}
        shown |= {id(screen._styles_cache) for screen in app.screen_stack}
        left = [one for one in gc.get_objects() if type(one) is StylesCache and id(one) not in shown]
        assert not any(one._cache for one in left)

    play(there.app(), script)
