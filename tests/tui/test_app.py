"""The app around the screens: themes, ASCII, the client's thread, and what a tick may cost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rich.style import Style
from textual.widgets import Input

from hoptui.client.client import Link
from hoptui.tui import preferences
from hoptui.tui.actions import ACTIONS
from hoptui.tui.app_protocol import Frame
from hoptui.tui.render_loop import TURN_S
from hoptui.tui.screens.knob_editor.screen import KnobEditor
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.widgets import Lines

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]
SECOND = 1_000_000_000


@pytest.mark.parametrize("theme", list(preferences.LOOKS))
def test_every_theme_draws(scene: MakeScene, play: Play, read: Read, theme: str) -> None:
    async def script(app: Any, pilot: Any) -> None:
        name = app.theme
        assert app.theme == preferences.LOOKS[theme].theme.name
        assert "502 k" in read(app, "speed")
        await pilot.press("f2")
        await pilot.pause()
        assert (app.theme != name) == (theme in ("dark", "light")), "sixteen colours stay sixteen colours"
        assert "502 k" in read(app, "speed")

    play(scene(gpus=1).live().app(theme=theme), script)


@pytest.mark.parametrize(
    ("word", "sure", "term", "chosen"),
    [
        ("auto", True, "xterm-256color", "dark"),
        ("auto", True, "xterm", "ansi"),
        ("auto", True, "linux", "ansi"),
        ("light", True, "xterm", "light"),
        ("light", False, "xterm", "ansi"),
        ("light", False, "xterm-256color", "light"),
        ("none", False, "xterm-256color", "none"),
    ],
)
def test_the_theme_fits_the_terminal_unless_the_person_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, word: str, sure: bool, term: str, chosen: str
) -> None:
    monkeypatch.delenv("COLORTERM", raising=False)
    monkeypatch.setenv("TERM", term)
    assert preferences.choose(word, sure=sure) == preferences.LOOKS[chosen]


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {}])
def test_no_colour_means_none_at_all(
    scene: MakeScene, play: Play, read: Read, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    async def script(app: Any, pilot: Any) -> None:
        filtered = [strip for line in app.screen._compositor.render_strips() for strip in line]
        for one in app.get_line_filters():
            filtered = one.apply(filtered, app.screen.styles.background)
        colours = {
            colour.name for s in filtered for colour in (s.style.color, s.style.bgcolor) if s.style and colour
        }
        assert colours <= {"default"}
        assert "● live" in read(app, "identity")

    play(scene(gpus=1).live().app(theme="none"), script)


@pytest.mark.parametrize("theme", ["none", "ansi"])
def test_what_is_chosen_and_typed_is_seen_without_colours_and_on_any_ground(
    scene: MakeScene, play: Play, theme: str
) -> None:
    def grounded(app: Any) -> str:
        """The text that does not lie on the terminal's own ground."""
        found = []
        for line in app.screen._compositor.render_strips():
            strip = list(line)
            for one in app.get_line_filters():
                strip = one.apply(strip, app.screen.styles.background)
            found += [s.text for s in strip if s.style and (s.style.reverse or _has_ground(s.style))]
        return "".join(found)

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("ctrl+p")
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "knob: edit" in grounded(app)
        await pilot.press("escape")
        await pilot.press("e")
        await pilot.pause()
        app.screen.query_one(Input).select_all()
        await pilot.pause()
        assert grounded(app).strip() == "2048"

    play(scene(gpus=1).live().app(theme=theme), script)


def test_without_colours_that_mix_what_lies_under_a_box_is_seen_and_dim(scene: MakeScene, play: Play) -> None:
    async def script(app: Any, pilot: Any) -> None:
        def keys() -> list[Style]:
            """The styles of the keys of the run screen, as they are on screen."""
            rows = [list(line) for line in app.screen._compositor.render_strips()]
            return [s.style for s in rows[-1] if s.style and s.text.strip()]

        assert not any(style.dim for style in keys())
        await pilot.press("e")
        await pilot.pause()
        await pilot.pause()
        assert isinstance(app.screen, KnobEditor)
        assert keys()
        assert all(style.dim for style in keys())
        await pilot.press("escape")
        await pilot.pause()
        await pilot.pause()
        assert not any(style.dim for style in keys())

    play(scene(gpus=1).live().app(theme="ansi"), script)


def _has_ground(style: Style) -> bool:
    return style.bgcolor is not None and not style.bgcolor.is_default


def test_a_theme_that_is_asked_for_is_stronger_than_no_color(
    scene: MakeScene, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def script(app: Any, pilot: Any) -> None:
        assert [type(one).__name__ for one in app.get_line_filters()] == ["ANSIToTruecolor"]

    play(scene(gpus=1).live().app(theme="dark"), script)


@pytest.mark.parametrize("theme", [preferences.DARK, preferences.LIGHT])
def test_colours_survive_256_colours(theme: Any) -> None:
    """Greys are R = G = B and accents on the cube, so nothing shifts where only 256 colours are."""
    levels = {0, 95, 135, 175, 215, 255}
    named = (theme.background, theme.surface, theme.panel, theme.foreground, theme.success, theme.warning)
    for colour in (*named, theme.error, theme.primary, *theme.variables.values()):
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        assert red == green == blue or {red, green, blue} <= levels, colour


def test_ascii_needs_nothing_else(scene: MakeScene, play: Play, read_all: ReadAll) -> None:
    there = scene(gpus=1).live().history()
    there.record(id="p", ago_s=1.0, knob="grad_accum", before=4, wanted=8, stage="scheduled", step=1205)

    async def script(app: Any, pilot: Any) -> None:
        shown = read_all(app)
        assert shown.isascii()
        assert "->8" in shown
        assert "+6.1 % +-1.2" in shown
        svg = app.export_screenshot()
        assert not set(svg) & set("╭╮╰╯│⣿●")

    play(there.app(plain=True), script)


def test_changes_told_in_the_clients_thread_reach_the_screen(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        there.update(vital={"step": 1205})
        thread = threading.Thread(target=app.client.on_change, args=("vitals",))
        thread.start()
        thread.join()
        await pilot.pause()
        assert "1 205" in read(app, "identity")

    play(there.app(), script)


def test_a_tick_refreshes_only_the_lines_that_changed(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        await pilot.pause()
        refreshed: list[tuple[str, int]] = []
        for widget in app.screen.query(Lines):
            widget.refresh = lambda *regions, who=widget, **_: refreshed.append((who.id, len(regions)))
        for _ in range(20):
            there.client.ns += SECOND // 1000
            app.tick()
        assert refreshed == []
        there.update(vital={"step": 1205})
        there.client.ns += SECOND // 4
        app.tick()
        assert refreshed == [("identity", 1)]

    play(there.app(), script)


def test_where_nothing_changes_a_second_is_drawn_once(
    scene: MakeScene, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.pause()
        drawn: list[object] = []
        draw = RunScreen.draw

        def counted(screen: RunScreen, frame: Frame) -> None:
            drawn.append(frame)
            draw(screen, frame)

        monkeypatch.setattr(RunScreen, "draw", counted)

        def ticks(count: int) -> int:
            drawn.clear()
            for _ in range(count):
                there.client.ns += SECOND // 8
                app.tick()
            return len(drawn)

        ticks(8)  # what was opened just now is drawn once more
        assert ticks(80) <= 2 * 10, "numbers and charts, and lists at another beat"
        there.rows(1)
        assert ticks(2) >= 1, "a new row is seen at once"
        there.client.link = Link("lost", 88.0, "the daemon (pid 77) does not answer")
        assert ticks(2) >= 1

    play(there.app(), script)


def test_a_tick_changes_no_layout(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live().history()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.pause()
        app.tick()
        await pilot.pause()
        layouts: list[object] = []
        app.screen.screen_layout_refresh_signal.subscribe(app.screen, layouts.append, immediate=True)
        for second in range(8):
            there.client.ns += SECOND
            there.rows(1)
            there.update(vital={"step": 1205 + second})
            app.tick()
            await pilot.pause()
        assert layouts == []

    play(there.app(), script)


def test_a_second_in_full_swing_stays_within_its_bytes(scene: MakeScene, play: Play) -> None:
    there = scene(gpus=1).live().history()
    seconds, budget = 5, 30_000

    async def script(app: Any, pilot: Any) -> None:
        await pilot.pause()
        written: list[str] = []
        app._display = lambda screen, update: written.append(update.render_segments(app.console))
        for quarter in range(4 * seconds):
            there.client.ns += SECOND // 4
            if quarter % 4 == 0:
                there.rows(1)
            there.update(vital={"step": 1205 + quarter})
            app.tick()
            await pilot.pause()
        assert 0 < len("".join(written).encode()) < seconds * budget

    play(there.app(), script)


def test_a_hidden_screen_is_not_drawn(scene: MakeScene, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    there = scene(gpus=1).live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("f4")
        drawn: list[object] = []
        monkeypatch.setattr(RunScreen, "draw", lambda self, frame: drawn.append(frame))
        there.client.ns += SECOND
        app.tick()
        assert drawn == []
        await pilot.press("escape")
        await pilot.pause()
        assert drawn
        await pilot.press("question_mark")
        drawn.clear()
        there.client.ns += SECOND
        app.tick()
        assert drawn, "it is seen around the box"

    play(there.app(), script)


def test_every_action_has_an_id_a_key_and_a_sentence() -> None:
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    for action in ACTIONS:
        assert action.keys
        assert action.help[0].isupper()


def test_inks_are_styles_of_the_theme() -> None:
    app_inks = preferences.inks(
        {**preferences.DARK.to_color_system().generate(), **preferences.DARK.variables}
    )
    assert set(app_inks) == set(preferences.INKS)
    assert all(isinstance(style, Style) for style in app_inks.values())


def test_importing_the_dashboard_needs_no_numpy_and_nothing_above_it() -> None:
    code = (
        "import sys, hoptui.tui.app;"
        "print(*sorted(m for m in sys.modules if m in ('numpy', 'torch', 'pynvml') or"
        " m.startswith(('hoptui.cli.', 'hoptui.daemon', 'hoptui.sdk', 'hoptui.tuner', 'hoptui.telemetry'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("alone", [True, False])
def test_threads_take_turns_more_often_where_the_process_is_ours(
    scene: MakeScene, play: Play, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", asked.append)
    monkeypatch.setattr("gc.freeze", lambda: None)  # this process is the tests'
    app = scene(gpus=1).live().app()
    app.alone = alone

    async def script(app: Any, pilot: Any) -> None:
        assert asked == ([TURN_S] if alone else [])

    play(app, script)
