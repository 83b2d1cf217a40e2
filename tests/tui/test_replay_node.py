"""The dashboard on a recording of a node without a run: it begins with the overview, and no screen needs a
run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hoptui.model.recorded.store import RecordedStore
from hoptui.tui.replay_app import ReplayApp
from hoptui.tui.screens.gpu.screen import GpusScreen
from hoptui.tui.screens.overview import OverviewScreen
from hoptui.tui.widgets import Panel
from tests.model import recorded_node
from tests.tui.replay_player import COMPACT, FULL, TINY, Player

Read = Callable[[Any, str], str]
KEYS = (
    *(
        "d",
        "escape",
        "h",
        "escape",
        "t",
        "escape",
        "slash",
        "escape",
        "f4",
        "escape",
        "question_mark",
        "escape",
    ),
    *("enter", "escape", "p", "s", "e", "g", "escape", "full_stop", "comma", "ctrl+p", "escape", "1", "tab"),
    *("enter", "escape", "tab", "enter", "escape", "space", "right", "end", "home"),
)


@pytest.fixture
def player(tmp_path: Path) -> Player:
    return Player(recorded_node.write(tmp_path / "node.hoptui"))


def test_it_begins_with_the_overview(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 60)
        assert isinstance(app.screen, OverviewScreen)
        assert "this recording has no run" in read(app, "run-list")
        assert "replay" in read(app, "identity")
        await pilot.press("d")
        await player.go(pilot, 80)
        assert isinstance(app.screen, GpusScreen)
        assert "held by power" in read(app, "reading-list")

    player.play(script)


def test_who_was_on_the_gpus_is_shown_with_its_age_and_without_arguments(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 70)
        listed = read(app, "process-list")
        assert "python train.py" in listed
        assert "s3cret" not in listed
        assert [str(line).split()[1] for line in listed.splitlines()[:2]] == ["4711", "815"]
        assert "10 s old" in str(app.screen.query_one("#processes", Panel).border_title)

    player.play(script, FULL)


def test_processes_beyond_the_recorded_ones_are_counted(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordedStore, "processes_left_out", property(lambda _: 44))

    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 70)
        title = str(app.screen.query_one("#processes", Panel).border_title)
        assert "44 more not recorded · 10 s old" in title
        await pilot.press("d")
        await player.go(pilot, 71)
        assert "44 more not recorded" in str(app.screen.query_one("#processes", Panel).border_title)

    player.play(script, FULL)


@pytest.mark.parametrize("size", [FULL, COMPACT, TINY])
def test_every_key_works_without_a_run(player: Player, size: tuple[int, int]) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 60)
        for key in KEYS:
            await pilot.press(key)
            await player.wait(pilot, 0.3)
        assert app.is_running
        while len(app.screen_stack) > 1:
            app.pop_screen()
        await pilot.pause()
        assert isinstance(app.screen, OverviewScreen)

    player.play(script, size)
