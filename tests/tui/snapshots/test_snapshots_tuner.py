"""What the tuner looks like: beside the knobs of a run, and on its own screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hoptui.client.replay import Replay
from hoptui.settings import Config
from hoptui.tui.replay_app import ReplayApp
from tests.model.recorded_run import COMMANDS, EVENTS, command, event, write
from tests.tui.conftest import Scene
from tests.tui.tuned_run import HOLDING, STOPPED, TUNER, measured, tuned

Snapshot = Callable[..., None]


def test_run_tuned(snapshot: Snapshot) -> None:
    """A run whose tuner tries a change; the diagnosis advises another."""
    snapshot(tuned().app())


def test_tuner_trial(snapshot: Snapshot) -> None:
    """In the middle of a trial, after three others."""
    snapshot(tuned().app(), "t")


def test_tuner_knobs(snapshot: Snapshot) -> None:
    """It holds what it found; the keys go to the knobs, one of which is frozen."""
    snapshot(tuned(HOLDING).app(), "t", "tab", "end", "up", "up")


def test_tuner_stopped(snapshot: Snapshot) -> None:
    """Somebody stopped it: what it found stays in sight."""
    snapshot(tuned(STOPPED, None).app(), "t")


def test_tuner_never_started(snapshot: Snapshot) -> None:
    """Nobody has started it."""
    snapshot(Scene(gpus=1).live().history().app(), "t")


def test_tuner_read_only(snapshot: Snapshot) -> None:
    """Somebody who only looks: no key that would tell it anything."""
    there = tuned()
    there.client.read_only = True
    snapshot(there.app(), "t", themes=("dark",))


def test_tuner_limits(snapshot: Snapshot) -> None:
    """Within what limits it is to be started."""
    snapshot(tuned(None, None).app(), "t", "s", "down", "right", "down", "down", "left")


def test_tuner_question(snapshot: Snapshot) -> None:
    """It would be allowed to change what is learned: that is asked first."""
    snapshot(tuned(None, None).app(), "t", "s", "end", "right", "enter")


def test_tuner_in_a_replay(snapshot: Snapshot, tmp_path: Path) -> None:
    """A recording knows what it set, and not how it stood."""
    moves = (
        command(
            "t1",
            200,
            201,
            knob="grad_accum",
            before=4,
            wanted=8,
            effective=8,
            version=1,
            origin=TUNER,
            measured=measured(0.061, 0.012),
            why="half of the memory is unused",
        ),
        command(
            "t2",
            300,
            301,
            knob="grad_accum",
            before=8,
            wanted=16,
            effective=16,
            version=2,
            origin=TUNER,
            measured=measured(-0.03, 0.01),
            why="one notch up",
        ),
        command(
            "t3",
            320,
            321,
            knob="grad_accum",
            before=16,
            wanted=8,
            effective=8,
            version=3,
            origin=TUNER,
            why="back: it was slower",
        ),
    )
    said = event(330, "tuner", "nothing better was found in 2 trials")
    replay = Replay(
        write(tmp_path / "rec01.hoptui", commands=(*COMMANDS, *moves), events=(*EVENTS, said)),
        clock=lambda: 100.0,
    )
    app = ReplayApp(replay, clock=lambda: 100.0, frames=False, config=Config.of(theme="dark"))
    snapshot(app, lambda _: replay.pause(), "end", "t")
