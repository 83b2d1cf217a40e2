"""A text in the border of a panel is drawn without what is in the panel."""

from __future__ import annotations

import asyncio

from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.pilot import Pilot

from hoptui.tui.widgets import Panel

SIZE = (40, 8)


class Framed(App[None]):
    """One panel, over the whole screen."""

    CSS = "Panel { border: round white; padding: 0 1; }"
    ascii = False
    colours = True

    def compose(self) -> ComposeResult:
        yield Panel(name="framed")


def shown(app: App[None]) -> list[str]:
    """The lines of the screen."""
    lines = app.screen._compositor.render_strips()
    return [strip.text for strip in lines]


def test_a_new_text_in_the_border_draws_its_line_alone() -> None:
    async def main() -> None:
        app = Framed()
        async with app.run_test(size=SIZE) as pilot:
            await check(app, pilot)

    async def check(app: Framed, pilot: Pilot[None]) -> None:
        panel = app.query_one(Panel)
        texts = {"title": "", "subtitle": ""}
        for text, which, row in (
            ("one", "title", 0),
            ("two", "subtitle", SIZE[1] - 1),
            ("three", "title", 0),
        ):
            await pilot.pause()
            panel._exchange_repaint_regions()
            texts[which] = text
            panel.label(**texts)
            assert list(panel._exchange_repaint_regions()) == [Region(0, row, SIZE[0], 1)]
            assert text in shown(app)[row]
        panel.label("three", "")
        assert "two" not in shown(app)[-1]

    asyncio.run(main())


def test_all_of_it_is_drawn_for_anything_else() -> None:
    async def main() -> None:
        app = Framed()
        async with app.run_test(size=SIZE):
            panel = app.query_one(Panel)
            panel._exchange_repaint_regions()
            panel.refresh()
            assert list(panel._exchange_repaint_regions()) == [Region(0, 0, *SIZE)]

    asyncio.run(main())
