"""The finder of the chart screen, as it opens from the run screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hoptui.tui import actions
from hoptui.tui.dialogs import Finder
from hoptui.tui.screens.charts.screen import ChartScreen
from hoptui.tui.widgets import Panel

MakeScene = Callable[..., Any]
Play = Callable[..., None]


def test_a_series_can_go_into_the_first_chart_at_once(scene: MakeScene, play: Play) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("slash")
        await pilot.pause()
        assert isinstance(app.screen, Finder)
        (together,) = (action for action in actions.of("finder") if action.id == "finder.together")
        assert f"tab {together.label}" in str(app.screen.query_one(Panel).border_subtitle)
        await pilot.press(*"loss", "tab")
        await pilot.pause()
        assert isinstance(app.screen, ChartScreen)
        assert [pick.metric for pick in app.screen.board.charts[0].picks] == [
            "env_steps_per_s",
            "policy_loss",
        ]

    play(scene(gpus=1).live().app(), script)
