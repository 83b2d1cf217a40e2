"""The time bar of a replay: where one is in it, what happened where, and going to a place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from hoptui.client.replay import Reel, Tick
from hoptui.settings import Config, KeyBinding
from hoptui.tui.replay_app import GoTo, ReplayApp, TimeBar, elapsed, track
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.styled_text import lay
from hoptui.tui.widgets import KeyBar
from tests.golden import Golden, sheet
from tests.model.recorded_run import LENGTH_S, at
from tests.tui.replay_player import COMPACT, FULL, TINY, Player

Read = Callable[[Any, str], str]


def test_a_click_on_the_track_goes_there(player: Player) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        app.tick()
        await pilot.click(TimeBar, offset=(118, 0))
        await pilot.pause()
        assert player.seconds == LENGTH_S
        await pilot.click(TimeBar, offset=(60, 0))
        await pilot.pause()
        assert player.seconds == pytest.approx(LENGTH_S / 2, abs=5)
        await pilot.click(TimeBar, offset=(60, 1))
        await pilot.pause()
        assert player.seconds == pytest.approx(LENGTH_S / 2, abs=5), "only the track is"

    player.play(script)


def test_going_to_a_time(player: Player, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}
    config = replace(Config.of(theme="dark"), keys={"goto.close": KeyBinding("ctrl+g", "here")})

    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await pilot.press("g")
        assert isinstance(app.screen, GoTo)
        assert app.screen.query_one("#go-to").border_subtitle == "enter go  ^g close"
        await pilot.press(*"+1m30s")
        await pilot.pause()
        shown["+1m30s"] = read(app, "where-verdict")
        verdict, box = app.screen.query_one("#where-verdict"), app.screen.query_one("#go-to")
        assert box.content_region.contains_region(verdict.region), "all of it is seen"
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert player.seconds == 90
        assert "iteration 90" in read(app, "identity")
        await pilot.press("g", *"#9999")
        await pilot.pause()
        shown["#9999"] = read(app, "where-verdict")
        app.screen.query_one("#where").value = "2026-05-27 20:30"  # type: ignore[attr-defined]
        await pilot.pause()
        shown["2026-05-27 20:30"] = read(app, "where-verdict")
        await pilot.press("enter")
        assert isinstance(app.screen, GoTo), "what cannot be is not a way out"
        await pilot.press("ctrl+g")
        assert player.seconds == 90
        await pilot.press("g", "enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen), "with nothing typed, enter stays"
        assert player.seconds == 90

    player.play(script, config=config)
    golden(sheet(shown))


def test_an_input_keeps_the_keys_of_the_replay(player: Player) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await pilot.press("g", "1", "0", "left", "5", "home", "+", "end", "s", "space")
        assert app.screen.query_one("#where").value == "+150s "  # type: ignore[attr-defined]
        assert not player.replay.playing
        assert player.seconds == 0

    player.play(script)


def test_control_c_leaves_while_it_asks_where_to_go(player: Player) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await pilot.press("g", "5", "ctrl+c")
        assert app.return_code == 0, "it has been left"

    player.play(script)


@pytest.mark.parametrize(
    ("size", "rows", "parts"),
    [
        (FULL, 2, ("20:28:20", "2026-05-28 20:26:40 … 20:36:40 · rec01.hoptui")),
        (COMPACT, 1, ("20:28:20", "●")),
        (TINY, 1, ("1:40", "●")),
    ],
)
def test_the_time_bar_at_every_size(
    player: Player, read: Read, size: tuple[int, int], rows: int, parts: tuple[str, ...]
) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 100)
        bar = app.screen.query_one(TimeBar)
        assert bar.size.height == rows
        assert bar.region.bottom == size[1] - app.screen.query_one(KeyBar).size.height
        shown = read(app, "time-bar")
        for part in parts:
            assert part in shown
        if size == TINY:
            assert read(app, "keys").startswith(" space ")
            assert read(app, "keys").endswith("q leave")

    player.play(script, size)


def reel(position: float, *ticks: Tick) -> Reel:
    return Reel(False, 1.0, at(position), at(0), at(100), 0, "r.hoptui", ticks)


def drawn(shown: Reel, width: int = 21) -> str:
    return "".join(text for text, _ in lay(track(shown, width), width))


def test_the_track_shows_what_is_behind_and_where_something_happened() -> None:
    assert drawn(reel(0)) == "●" + "─" * 20
    assert drawn(reel(100)) == "━" * 20 + "●"
    ticks = (Tick(at(20), "command"), Tick(at(80), "warning"), Tick(at(200), "alarm"))
    assert drawn(reel(50, *ticks)) == "━━━━┆━━━━━●─────│───│"
    assert track(reel(50), 1) == ()


def test_of_several_ticks_in_a_cell_the_worst_is_seen() -> None:
    spans = track(reel(0, Tick(at(50), "info"), Tick(at(50), "alarm"), Tick(at(51), "command")), 21)
    assert [s.ink for s in spans if s.text == "│"] == ["bad"]


def test_times_are_as_wide_as_the_longest() -> None:
    assert (elapsed(5, 65), elapsed(65, 65)) == ("0:05", "1:05")
    assert (elapsed(5, 700), elapsed(650, 700)) == (" 0:05", "10:50")
    assert (elapsed(5, 36_000), elapsed(4000, 36_000)) == (" 0:00:05", " 1:06:40")
