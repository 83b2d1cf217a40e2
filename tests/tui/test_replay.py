"""The dashboard on a recording: what is shown as of a position, the keys that move it, and that nothing is steered."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot

from hoptui.recording import Recording, RecordingError
from hoptui.tui import app as dashboard
from hoptui.tui.actions import of
from hoptui.tui.lines import lay
from hoptui.tui.replay import ReplayApp
from hoptui.tui.screens.gpus import GpusScreen
from hoptui.tui.screens.help import Help
from hoptui.tui.screens.overview import OverviewScreen
from hoptui.tui.screens.replay_go_to import GoTo
from hoptui.tui.screens.run import RunScreen
from hoptui.tui.widgets.key_bar import KeyBar
from hoptui.tui.widgets.time_bar import TimeBar, elapsed, track
from hoptui.viewer.config import Asked, Config
from hoptui.viewer.replay import Reel, Replay, Tick
from tests.tui.test_terminal import Screen, assert_restored
from tests.viewer.recorded_run import FIRST, ID, LENGTH_S, SECOND, at, write

Read = Callable[[Any, str], str]
Script = Callable[[ReplayApp, Pilot[None]], Awaitable[None]]
FULL, COMPACT, TINY = (120, 40), (80, 24), (58, 14)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("shown") / f"{ID}.hoptui")


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Player:
    """A replay on a clock that stands still unless `wait` moves it."""

    def __init__(self, path: Path) -> None:
        self.s = 100.0
        self.replay = Replay(path, clock=lambda: self.s)

    def play(
        self, script: Script, size: tuple[int, int] = FULL, *, playing: bool = False, **options: Any
    ) -> None:
        """Open the dashboard at a size, paused unless `playing`, and follow a script."""
        self.app = ReplayApp(
            self.replay, clock=lambda: self.s, frames=False, **{"config": Config.of(theme="dark"), **options}
        )

        async def main() -> None:
            async with self.app.run_test(size=size, notifications=True) as pilot:
                await pilot.pause()
                if not playing:
                    self.replay.pause()
                await script(self.app, pilot)

        asyncio.run(main())

    async def wait(self, pilot: Pilot[None], seconds: float) -> None:
        """Let time pass and draw a frame."""
        self.s += seconds
        self.app.tick()
        await pilot.pause()

    async def go(self, pilot: Pilot[None], seconds: float) -> None:
        """Go to so many seconds after the start, and draw."""
        self.replay.seek(at(seconds))
        await self.wait(pilot, 2.0)

    @property
    def seconds(self) -> float:
        return (self.replay.position - FIRST) / SECOND


@pytest.fixture
def player(path: Path) -> Player:
    return Player(path)


def test_the_run_is_shown_as_it_was(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 305)
        identity = read(app, "identity")
        assert identity.startswith(" hoptui  ppo-recorded · gpu07 · epoch 1")
        assert "‖ replay   iteration 304 / 1 000   5 m 5 s   ETA 11 m 38 s" in identity
        assert "live" not in identity
        assert read(app, "speed").startswith("1.30 k env steps/s")
        knobs = read(app, "knob-list")
        assert "3.0e-4" in knobs
        assert "4  → 8  ◷ scheduled for 310" in knobs, "it was on its way then"
        events = read(app, "event-lines")
        assert "grad_accum 4 → 8  scheduled for 310" in events
        assert "learning rate is high" in events
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


def test_at_the_end_the_run_is_shown_as_it_ended(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, LENGTH_S)
        assert read(app, "progress").startswith(" ✕ exited: finished at 20:36:40, last iteration 599")
        assert "‖ replay" in read(app, "identity")
        assert "end" in read(app, "speed-chart")

    player.play(script)


def test_a_pause_of_then_is_told_without_advice(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 470)
        assert read(app, "progress").strip() == "‖ paused"

    player.play(script)


def test_it_plays_from_the_start_and_stops_at_the_end(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        assert player.seconds == 0
        assert "no iteration has ended yet" in read(app, "phase-lines")
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


def test_keys_move_in_time(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        moves = [
            ("right", 10), ("right", 20), ("shift+right", 80), ("left", 70), ("shift+left", 10), ("left", 0), ("end", 600),
            ("comma", 480), ("full_stop", 600), ("home", 0), ("full_stop", 100), ("full_stop", 200.3), ("comma", 100),
        ]  # fmt: skip
        for key, seconds in moves:
            await pilot.press(key)
            assert player.seconds == seconds, key
        assert "iteration 99" in read(app, "identity"), "a key draws at once"
        assert "1:40 / 10:00" in read(app, "time-bar")

    player.play(script)


def test_there_is_nothing_beyond_the_last_event(player: Player) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await pilot.press("end", "full_stop")
        await pilot.pause()
        assert [n.message for n in app._notifications] == ["there is no event or command after this"]

    player.play(script)


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


def test_going_to_a_time(player: Player, read: Read) -> None:
    config = replace(Config.of(theme="dark"), keys={"goto.close": Asked("ctrl+g", "here")})

    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await pilot.press("g")
        assert isinstance(app.screen, GoTo)
        assert app.screen.query_one("#go-to").border_subtitle == "enter go  ^g close"
        await pilot.press(*"+1m30s")
        await pilot.pause()
        assert read(app, "where-verdict") == "✓ 2026-05-28 20:28:10, 1:30 after the start"
        verdict, box = app.screen.query_one("#where-verdict"), app.screen.query_one("#go-to")
        assert box.content_region.contains_region(verdict.region), "all of it is seen"
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert player.seconds == 90
        assert "iteration 89" in read(app, "identity")
        await pilot.press("g", *"#9999")
        await pilot.pause()
        assert read(app, "where-verdict") == "✕ the run did not come to iteration 9 999"
        app.screen.query_one("#where").value = "2026-05-27 20:30"  # type: ignore[attr-defined]
        await pilot.pause()
        told = " ".join(read(app, "where-verdict").split())
        assert told.startswith("✕ 20:30:00 is not in this recording")
        assert told.endswith("of 2026-05-28 20:26:40 to 2026-05-28 20:36:40"), "all of it is seen"
        await pilot.press("enter")
        assert isinstance(app.screen, GoTo), "what cannot be is not a way out"
        await pilot.press("ctrl+g")
        assert player.seconds == 90
        await pilot.press("g", "enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen), "with nothing typed, enter stays"
        assert player.seconds == 90

    player.play(script, config=config)


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


def test_nothing_is_steered(player: Player, read: Read) -> None:
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        await player.go(pilot, 320)
        keys = read(app, "keys")
        for word in ("edit knob", "undo", "checkpoint", "stop", "freeze", "overview"):
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
        app.open_overview()
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
        assert read(app, "keys").split()[:6] == ["space", "play", "g", "go", "to", "d"]
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
        assert "Ten seconds ahead" in shown
        assert "Pause the run" not in shown
        assert "Sample GPUs" not in shown
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


@pytest.mark.parametrize(
    ("size", "rows", "parts"),
    [(FULL, 2, ("20:28:20", "2026-05-28 20:26:40 … 20:36:40 · rec01.hoptui")), (COMPACT, 1, ("20:28:20", "●")), (TINY, 1, ("1:40", "●"))],
)  # fmt: skip
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
    async def script(app: ReplayApp, pilot: Pilot[None]) -> None:
        def broken(*arguments: object, **more: object) -> None:
            raise RecordingError("rec01.hoptui cannot be used: the disk is gone")

        monkeypatch.setattr(Recording, "rows", broken)
        monkeypatch.setattr(Recording, "buckets", broken)
        await player.go(pilot, 305)
        assert "the disk is gone" in read(app, "progress")

    player.play(script)


# the time bar, without a screen ----------------------------------------------------------------------------------------


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


def test_every_key_of_the_replay_is_bound_once() -> None:
    keys = [key for action in of("replay") for key in action.keys.split(",")]
    assert len(keys) == len(set(keys))


# a terminal ------------------------------------------------------------------------------------------------------------


def test_it_opens_and_leaves_a_real_terminal(path: Path, tmp_path: Path) -> None:
    script = f"import sys; from hoptui.tui import app; sys.exit(app.replay({str(path)!r}))"
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
        dashboard.replay(str(tmp_path / "notes.txt"))
