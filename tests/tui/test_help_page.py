"""The help page is made of what really works on a screen, and says of every reading what it is and what is
good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hoptui.presentation.gpu_readings import GPU
from hoptui.tui.actions import ACTIONS, DEFAULT_KEYS
from hoptui.tui.components import help_page
from hoptui.tui.components.help_page import NOTES, READINGS, TITLES
from hoptui.tui.dialogs import Help
from hoptui.tui.screens.knob_editor.screen import KnobEditor
from hoptui.tui.styled_text import Line, width_of

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
HELP = {action.id: action.help for action in ACTIONS}
ON_A_RUN = [
    ("e", "knob.edit"),
    ("p", "run.pause"),
    ("space", "view.freeze"),
    ("up", "list.up"),
    ("k", "list.up"),
    ("q", "app.leave"),
]


def text(lines: list[Line]) -> str:
    return "\n".join("".join(s.text.ljust(s.width) for s in line).rstrip() for line in lines)


def test_it_lists_what_works_with_its_keys_and_marks_what_does_not_now() -> None:
    page = help_page.page(ON_A_RUN, DEFAULT_KEYS)
    assert [title for title, _ in page.sections] == [TITLES[scope] for scope in ("run", "list", "everywhere")]
    shown = {action.id: (action.keys, works) for _, actions in page.sections for action, works in actions}
    assert shown["knob.edit"] == ("e", True)
    assert shown["list.up"] == ("up,k", True)
    assert shown["run.stop"] == ("s", False)
    whole = text(help_page.lines(page, 80))
    assert f"s               (not now) {HELP['run.stop']}" in whole
    assert f"p               {HELP['run.pause']}" in whole


def test_a_key_that_something_else_has_here_is_left_out() -> None:
    page = help_page.page([("d", "view.gpus"), ("space", "replay.play"), ("g", "replay.go_to")], DEFAULT_KEYS)
    shown = {action.id: action.keys for _, actions in page.sections for action, _ in actions}
    assert "view.freeze" not in shown
    assert shown["replay.play"] == "space"


def test_read_only_shows_no_key_that_would_send_something() -> None:
    page = help_page.page([("d", "view.gpus"), ("m", "view.metric")], DEFAULT_KEYS, read_only=True)
    assert [action.id for _, actions in page.sections for action, _ in actions] == [
        "view.gpus",
        "view.metric",
    ]


def test_enter_is_told_as_what_the_box_around_a_list_does_with_it() -> None:
    active = [("escape", "limits.close"), ("up", "list.up"), ("enter", "list.pick")]
    page = help_page.page(active, DEFAULT_KEYS)
    shown = {action.id: (action.keys, works) for _, actions in page.sections for action, works in actions}
    assert shown["limits.start"] == ("enter", True)
    assert "list.pick" not in shown
    moved = help_page.page([*active[:2], ("o", "list.pick")], {**DEFAULT_KEYS, "list.pick": "o"})
    shown = {action.id: (action.keys, works) for _, actions in moved.sections for action, works in actions}
    assert shown["list.pick"] == ("o", True)


def test_keys_of_ones_own_are_told() -> None:
    page = help_page.page([("f5", "run.pause")], {**DEFAULT_KEYS, "run.pause": "f5"})
    assert f"f5              {HELP['run.pause']}" in text(help_page.lines(page, 80))


@pytest.mark.parametrize("width", [28, 36, 54, 76])
def test_no_key_is_cut_off_from_what_it_does(width: int) -> None:
    active = [(action.keys.partition(",")[0], action.id) for action in ACTIONS if action.scope != "confirm"]
    page = help_page.page(active, DEFAULT_KEYS)
    lines = help_page.lines(page, width)
    assert max(width_of(line) for line in lines) <= width
    told = " ".join(text(lines).split())
    for _, actions in page.sections:
        for action, works in actions:
            assert f"{'' if works else '(not now) '}{action.help}" in told


@pytest.mark.parametrize("width", [40, 76, 120])
def test_every_reading_has_its_meaning_its_source_and_what_is_good(width: int) -> None:
    page = help_page.page([("d", "view.gpus")], DEFAULT_KEYS)
    lines = help_page.lines(page, width)
    whole = " ".join(text(lines).split())
    for name in ("sm_active", "throttle", "power_w"):
        for said in (GPU[name].long, f"from {GPU[name].source}", f"good {GPU[name].good}"):
            assert " ".join(said.split()) in whole or width < 60
    assert max(sum(max(len(s.text), s.width) for s in line) for line in lines if len(line) == 2) <= max(
        width, 80
    )


def test_every_scope_has_a_title_and_every_note_and_reading_a_scope() -> None:
    scopes = {action.scope for action in ACTIONS}
    assert scopes == set(TITLES)
    assert set(NOTES) | set(READINGS) <= scopes


def test_question_mark_is_about_the_screen_and_f1_about_the_box(
    scene: MakeScene, play: Play, read: Read
) -> None:
    there = scene(gpus=1).live()

    async def opened(pilot: Any, *keys: str) -> None:
        await pilot.press(*keys)
        await pilot.pause()
        await pilot.pause()

    async def script(app: Any, pilot: Any) -> None:
        await opened(pilot, "question_mark")
        assert isinstance(app.screen, Help)
        first = read(app, "help-lines").splitlines()
        assert first[0] == TITLES["run"]
        await pilot.press("space", "j", "k", "pagedown", "up")
        assert app.screen.query_one("#help-scroll").scroll_y > 10
        await opened(pilot, "escape", "d", "question_mark")
        assert read(app, "help-lines").startswith(TITLES["gpus"])
        await opened(pilot, "escape", "escape", "e", "f1")
        assert isinstance(app.screen, Help)
        assert read(app, "help-lines").startswith(TITLES["editor"])
        await opened(pilot, "f1")
        assert isinstance(app.screen, KnobEditor), "again closes it"

    play(there.app(), script)


def test_a_key_that_would_only_say_why_nothing_happens_does_not_work_now(
    scene: MakeScene, play: Play, read: Read
) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        await pilot.pause()
        told = " ".join(read(app, "help-lines").split())
        for key, action in (
            ("u (not now)", "knob.undo"),
            ("a (not now)", "knob.staged"),
            ("e", "knob.edit"),
        ):
            assert f" {key} {HELP[action]}" in told

    play(scene(gpus=1).live().app(), script)


def test_home_and_end_go_to_its_ends(scene: MakeScene, play: Play) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        scroll = app.screen.query_one("#help-scroll")
        await pilot.press("end")
        await pilot.pause()
        assert scroll.scroll_y == scroll.max_scroll_y > 0
        await pilot.press("home")
        await pilot.pause()
        assert scroll.scroll_y == 0

    play(scene().live(history=False).app(), script)
