"""What a recording looks like in the dashboard, and the screens that are about the dashboard itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from hoptui.client.replay import Replay
from hoptui.settings import Config, Remembered, read
from hoptui.tui.replay_app import ReplayApp
from tests.model import recorded_node
from tests.model.recorded_run import LENGTH_S, at
from tests.tui.conftest import Scene

Snapshot = Callable[..., None]


class Sitting:
    """A recording and the clock that it is played by, which stands still unless it is moved."""

    def __init__(self, path: Path) -> None:
        self.s = 100.0
        self.replay = Replay(path, clock=lambda: self.s)
        self.app = ReplayApp(self.replay, clock=lambda: self.s, frames=False, config=Config.of(theme="dark"))

    def go(self, seconds: float) -> Callable[[object], None]:
        """So many seconds after the start, and stand still."""

        def gone(app: object) -> None:
            self.replay.pause()
            self.replay.seek(at(seconds))

        return gone

    def play(self, seconds: float) -> Callable[[object], None]:
        """Play on for so long, at the pace of the replay."""

        def played(app: Any) -> None:
            self.replay.play()
            self.s += seconds
            app.tick()

        return played


@pytest.fixture
def sitting(recorded: Path) -> Sitting:
    return Sitting(recorded)


def test_replay_playing(snapshot: Snapshot, sitting: Sitting) -> None:
    """A recording is played, ten times as fast as it was."""
    snapshot(sitting.app, sitting.go(200.0), "right_square_bracket", sitting.play(4.0))


def test_replay_of_a_node(snapshot: Snapshot, tmp_path: Path) -> None:
    """A recording of a node without a run begins with the overview."""
    sitting = Sitting(recorded_node.write(tmp_path / "node.hoptui"))
    snapshot(sitting.app, sitting.go(90.0))


def test_replay_paused(snapshot: Snapshot, sitting: Sitting) -> None:
    """It stands still while a change of a knob was on its way."""
    snapshot(sitting.app, sitting.go(305.0))


def test_replay_end(snapshot: Snapshot, sitting: Sitting) -> None:
    """At the end of the recording the run has ended."""
    snapshot(sitting.app, sitting.go(LENGTH_S))


def test_replay_go_to(snapshot: Snapshot, sitting: Sitting) -> None:
    """The box that asks where to go, as it opens."""
    snapshot(sitting.app, sitting.go(305.0), "g")


def test_replay_go_to_somewhere(snapshot: Snapshot, sitting: Sitting) -> None:
    """A place that there is."""
    snapshot(sitting.app, sitting.go(305.0), "g", *"#400")


def test_replay_go_to_nowhere(snapshot: Snapshot, sitting: Sitting) -> None:
    """A time that is not in the recording."""

    def typed(app: Any) -> None:
        app.screen.query_one(Input).value = "2026-05-27 20:30"

    snapshot(sitting.app, sitting.go(305.0), "g", typed)


def test_replay_history(snapshot: Snapshot, sitting: Sitting) -> None:
    """The commands up to the position."""
    snapshot(sitting.app, sitting.go(405.0), "h")


def test_help(snapshot: Snapshot) -> None:
    """The keys that work on the run screen, and what it shows."""
    snapshot(Scene(gpus=1).live().history().app(), "question_mark")


def test_help_end(snapshot: Snapshot) -> None:
    """The end of the page: what is shown, and what it means."""

    def scrolled(app: Any) -> None:
        app.screen.query_one("#help-scroll").scroll_end(animate=False)

    snapshot(Scene().live(history=False).app(), "question_mark", scrolled)


def test_settings(snapshot: Snapshot) -> None:
    """What is set, and where, and what is hidden."""
    home = {"HOME": "/home/ana", "HOPTUI_THEME": "dark", "XDG_STATE_HOME": "/nowhere"}
    config = replace(read({}, home), remembered=Remembered(metric="value_loss", hidden=("run.phases",)))
    snapshot(Scene(gpus=1).live().app(config=config), "f4")


def test_settings_with_problems(snapshot: Snapshot) -> None:
    """Two things that are not as they were asked for."""
    problems = (
        "config.toml line 2: theme takes auto, dark, light, ansi or none, not 'pink'",
        "HOPTUI_MOUSE takes true or false, not 'perhaps'",
    )
    config = replace(
        Config.of(theme="dark"), problems=problems, file=Path("/home/ana/.config/hoptui/config.toml")
    )
    snapshot(Scene(gpus=1).live().app(config=config), "f4")


def test_palette(snapshot: Snapshot) -> None:
    """The command palette as it opens."""
    snapshot(lambda theme: Scene().live(history=False).app(theme=theme), "ctrl+p", searched)


def test_palette_typed(snapshot: Snapshot) -> None:
    """A few letters find a command."""
    snapshot(lambda theme: Scene(gpus=1).live().app(theme=theme), "ctrl+p", *"pause", searched)


async def searched(app: Any) -> None:
    """The palette has found what there is."""
    await app.workers.wait_for_complete()
