"""The dashboard on a recording: what is shown as of a position, the keys that move it, and that nothing is
steered."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot

from hoptui.presentation import vocabulary
from hoptui.recording import Recording, RecordingError
from hoptui.settings import Config
from hoptui.tui import replay_app
from hoptui.tui.actions import ACTIONS, of
from hoptui.tui.dialogs import Help
from hoptui.tui.replay_app import ReplayApp, TimeBar
from hoptui.tui.screens.gpu.screen import GpusScreen
from hoptui.tui.screens.overview import OverviewScreen
from hoptui.tui.screens.run.screen import RunScreen
from tests.golden import Golden, sheet
from tests.model.recorded_run import LENGTH_S, at
from tests.tui.replay_player import COMPACT, Player
from tests.tui.test_terminal import Screen, assert_restored

Read = Callable[[Any, str], str]


def test_the_run_is_shown_as_it_was(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 305)
        identity = read(app, "identity")
        assert identity.startswith(" hoptui  ppo-recorded · gpu07")
        assert "‖ replay   iteration 305 / 1 000   5 m 5 s   ETA 11 m 35 s" in identity
        assert "live" not in identity
        assert read(app, "speed").startswith("1.30 k env steps/s")
        knobs = read(app, "knob-list")
        assert "3.0e-4" in knobs
        assert "4  → 8  ◷ scheduled for 310" in knobs, "it was on its way then"
        events = read(app, "event-lines")
        assert "grad_accum 4 → 8  scheduled for 310" in events
        (note,) = (event for event in app.replay.store.events if event.level == "warning")
        assert vocabulary.happened(note) in events
        assert "rejected" not in events, "that is in the future"
        assert "20:31:45" in read(app, "speed-chart"), "charts end at the position"
        assert "now" not in read(app, "speed-chart")
        assert "GPU" in app.screen.query_one("#hardware").title  # type: ignore[attr-defined]

    player.play(script)


def test_the_future_of_a_chart_is_not_drawn(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 600)
        whole = read(app, "speed-chart")
        await player.go(pilot, 30)
        early = read(app, "speed-chart")
        assert "1.6 k" in whole
        assert "1.04 k" in early
        for later in ("1.2 k", "1.4 k", "1.6 k"):
            assert later not in early

    player.play(script)


def test_at_the_end_the_run_is_shown_as_it_ended(player: Player, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}

    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, LENGTH_S)
        shown["progress"] = read(app, "progress")
        assert "‖ replay" in read(app, "identity")
        assert "end" in read(app, "speed-chart")

    player.play(script)
    golden(sheet(shown))


def test_a_pause_of_then_is_told_without_advice(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 470)
        assert read(app, "progress").strip() == "‖ paused"

    player.play(script)


def test_it_plays_from_the_start_and_stops_at_the_end(player: Player, read: Read, golden: Golden) -> None:
    shown: dict[str, str] = {}

    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        assert player.seconds == 0
        shown["phases at the start"] = read(app, "phase-lines")
        await player.wait(pilot, 10)
        assert player.seconds == 50
        assert "▶ replay 5×" in read(app, "identity")
        assert "space pause" in read(app, "keys")
        await player.wait(pilot, 1000)
        assert player.seconds == LENGTH_S
        assert "‖ replay" in read(app, "identity")
        assert "space play" in read(app, "keys")
        await pilot.press("space")
        assert player.seconds == 0
        assert player.replay.playing

    player.play(script, playing=True)
    golden(sheet(shown))


def test_keys_move_in_time(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        moves = [
            ("right", 10),
            ("right", 20),
            ("shift+right", 80),
            ("left", 70),
            ("shift+left", 10),
            ("left", 0),
            ("end", 600),
            ("comma", 480),
            ("full_stop", 600),
            ("home", 0),
            ("full_stop", 100),
            ("full_stop", 200.3),
            ("comma", 100),
        ]
        for key, seconds in moves:
            await pilot.press(key)
            assert player.seconds == seconds, key
        assert "iteration 100" in read(app, "identity"), "a key draws at once"
        assert "1:40 / 10:00" in read(app, "time-bar")

    player.play(script)


def test_there_is_nothing_beyond_the_last_event(player: Player, golden: Golden) -> None:
    shown: dict[str, str] = {}

    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await pilot.press("end", "full_stop")
        await pilot.pause()
        (shown["notice"],) = (str(notice.message) for notice in app._notifications)

    player.play(script)
    golden(sheet(shown))


def test_speed_and_pause(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await pilot.press("right_square_bracket", "right_square_bracket")
        assert player.replay.speed == 20
        await pilot.press("left_square_bracket")
        assert player.replay.speed == 10
        await pilot.press("space")
        await player.wait(pilot, 3)
        assert player.seconds == 30
        assert "▶ 10×" in read(app, "time-bar")
        await pilot.press("space")
        await player.wait(pilot, 3)
        assert player.seconds == 30
        assert "‖ 10×" in read(app, "time-bar")

    player.play(script)


def test_nothing_is_steered(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 320)
        keys = read(app, "keys")
        for word in ("edit knob", "undo", "checkpoint", "stop", "freeze"):
            assert word not in keys
        assert "enter edits" not in str(app.screen.query_one("#knobs").border_subtitle)
        count = len(player.replay.store.commands)
        await pilot.press("e", "enter", "u", "p", "c", "s", "f")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert len(player.replay.store.commands) == count
        assert app._notifications._notifications == {}

    player.play(script)


def test_gpus_and_overview_are_shown_in_replay_too(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 123)
        await pilot.press("d")
        await pilot.pause()
        await player.wait(pilot, 2)
        assert isinstance(app.screen, GpusScreen)
        assert "2:03 / 10:00" in read(app, "time-bar")
        assert "‖ replay" in read(app, "identity")
        await pilot.press("right")
        assert player.seconds == 133, "arrows move in time here, too"
        assert "esc back" in read(app, "keys")
        await pilot.press("escape")
        await pilot.press("O")
        await pilot.pause()
        await player.wait(pilot, 2)
        assert isinstance(app.screen, OverviewScreen)
        assert "‖ replay" in read(app, "identity")
        assert "ppo-recorded" in read(app, "run-list")
        assert "2:13 / 10:00" in read(app, "time-bar")
        assert len(app.screen.query(TimeBar)) == 1

    player.play(script)


def test_a_narrow_key_bar_has_room_for_the_keys_of_the_screen(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 123)
        assert read(app, "keys").split()[:6] == ["space", "play", "g", "go", "to", "t"]
        await pilot.press("d")
        await pilot.pause()
        await player.wait(pilot, 2)
        assert isinstance(app.screen, GpusScreen)
        assert "esc back" in read(app, "keys")

    player.play(script, COMPACT)


def test_lists_are_of_the_same_moment_as_the_numbers(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 201)
        assert "applied at 202" not in read(app, "event-lines")
        player.replay.seek(at(240))
        await player.wait(pilot, 0.3)
        assert "+5.0 % ± 1.0" in read(app, "speed")
        assert "applied at 202" in read(app, "event-lines"), "before a second is over"

    player.play(script)


def test_help_and_palette_are_of_the_replay(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        shown = read(app, "help-lines")
        told = " ".join(shown.split())
        assert all(action.help in told for action in of("replay") if action.help)
        steering = [action for action in ACTIONS if action.id in ("run.pause", "gpus.fast")]
        assert len(steering) == 2
        assert not any(action.help in told for action in steering)
        await pilot.press("escape", "ctrl+p")
        assert isinstance(app.screen, CommandPalette)
        await pilot.press(*"replay: end", "enter")
        await pilot.pause(0.3)
        for _ in range(100):
            if player.seconds == LENGTH_S:
                break
            await pilot.press("enter")
            await pilot.pause(0.05)
        assert player.seconds == LENGTH_S

    player.play(script)


def test_ascii_is_enough(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 305)
        await pilot.press("space")
        shown = "\n".join(read(app, name) for name in ("identity", "time-bar", "keys", "speed-chart"))
        assert shown.isascii()
        assert "> replay 5x" in shown
        assert "?" not in read(app, "time-bar")

    player.play(script, config=Config.of(theme="dark", ascii=True))


def test_a_recording_that_cannot_be_read_any_more_says_so(
    player: Player, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "the disk is gone"

    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        def broken(*arguments: object, **more: object) -> None:
            raise RecordingError(f"rec01.hoptui cannot be used: {why}")

        monkeypatch.setattr(Recording, "rows", broken)
        monkeypatch.setattr(Recording, "buckets", broken)
        await player.go(pilot, 305)
        assert why in read(app, "progress")

    player.play(script)


def test_every_key_of_the_replay_is_bound_once() -> None:
    keys = [key for action in of("replay") for key in action.keys.split(",")]
    assert len(keys) == len(set(keys))


def test_it_opens_and_leaves_a_real_terminal(recorded: Path, tmp_path: Path) -> None:
    script = f"import sys; from hoptui.tui import replay_app; sys.exit(replay_app.replay({str(recorded)!r}))"
    screen = Screen(tmp_path, script=script)
    try:
        screen.until("replay 5×".encode())
        screen.press(b"\x1b[F", b"exited: finished")
        os.write(screen.master, b"q")
        assert screen.ended() == 0
        assert_restored(screen)
    finally:
        screen.close()


def test_a_file_that_is_no_recording_is_refused_before_the_screen(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(RecordingError, match=r"notes\.txt"):
        replay_app.replay(str(tmp_path / "notes.txt"))
