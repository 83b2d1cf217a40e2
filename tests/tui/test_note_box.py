"""Notes of users in the dashboard: the box that lists and adds them, the history, the marks in charts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.widgets import Input

from hoptui.domain.run_notes import NoteAdded, RunNote
from hoptui.tui.components import runs
from hoptui.tui.note_box import NoteBox, lines
from hoptui.tui.run_control import ANSWER_S, Steering
from tests.tui.conftest import RUN, Scene, rendered

Play = Callable[..., None]
Read = Callable[[Any, str], str]
WALL = 1_780_000_000.0
NOTES = (RunNote(wall=WALL, by="ana", text="a bad shard"), RunNote(wall=WALL + 60, by="ben", text="x " * 60))


def test_the_newest_note_is_first_and_long_ones_are_wrapped() -> None:
    shown = rendered(lines(NOTES, 60), 60)
    assert shown[0] == f"2026-05-28 20:27  ben  {'x ' * 19}".rstrip()
    assert shown[-1] == "2026-05-28 20:26  ana  a bad shard"
    assert all(len(line) <= 60 for line in shown)
    assert rendered(lines((), 60), 60) == ["no notes yet"]


def test_a_note_is_typed_sent_and_listed(scene: Callable[..., Scene], play: Play, read: Read) -> None:
    there = scene().live()

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("number_sign")
        await pilot.pause()
        assert isinstance(app.screen, NoteBox)
        assert read(app, "note-lines") == "no notes yet"
        await pilot.press(*"a bad q", "enter")
        assert there.client.noted == [(RUN, "a bad q")]
        assert app.screen.query_one(Input).value == ""
        there.update(run={"notes": NOTES})
        app.screen.redraw()
        await pilot.pause()
        assert "a bad shard" in read(app, "note-lines")
        await pilot.press("escape", "h")
        await pilot.pause()
        assert "a bad shard" in read(app, "note-lines")
        assert app.screen.query_one("#notes").size.height
        await pilot.press("number_sign")
        await pilot.pause()
        assert isinstance(app.screen, NoteBox)
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(app.screen, NoteBox)

    play(there.app(), script)


def test_without_notes_the_history_gives_them_no_room(scene: Callable[..., Scene], play: Play) -> None:
    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("h")
        await pilot.pause()
        await pilot.pause()
        assert not app.screen.query_one("#notes").size.height

    play(scene().live().app(), script)


def test_a_dashboard_that_only_looks_lists_notes(scene: Callable[..., Scene], play: Play, read: Read) -> None:
    there = scene().live()
    there.client.read_only = True
    there.update(run={"notes": NOTES})

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("number_sign")
        await pilot.pause()
        assert "a bad shard" in read(app, "note-lines")
        assert not app.screen.query_one("#note-entry").display
        await pilot.press(*"abc", "enter")
        assert there.client.noted == []

    play(there.app(), script, size=(50, 12))


def test_what_became_of_a_note_is_told(scene: Callable[..., Scene]) -> None:
    there = scene().live()
    steering, view = Steering(there.client), there.app().view(RUN)
    assert "1 to 500 characters" in steering.note(view, " ", 0.0)
    assert steering.note(view, "good", 0.0) == ""
    assert steering.answers(1.0) == []
    there.client.store.apply_noted(NoteAdded(id=1, run=RUN, granted=True))
    assert steering.answers(2.0) == steering.answers(ANSWER_S + 9) == []
    assert steering.note(view, "good", 20.0) == ""
    refused = NoteAdded(id=2, run=RUN, granted=False, code="note.too_many", fields={"most": 50})
    there.client.store.apply_noted(refused)
    assert steering.answers(21.0) == ["the note was not added: a run has at most 50 notes"]
    assert steering.note(view, "good", 30.0) == ""
    assert steering.answers(30.0 + ANSWER_S) == ["nobody answered: the note may not have been added"]
    assert steering.answers(31.0 + ANSWER_S) == []


@pytest.mark.parametrize("exited", [False, True])
def test_a_run_that_has_ended_takes_notes_too(scene: Callable[..., Scene], exited: bool) -> None:
    there = scene().live()
    there.update(run={"exit_reason": "finished" if exited else ""})
    assert Steering(there.client).note(there.app().view(RUN), "good", 0.0) == ""
    assert there.client.noted == [(RUN, "good")]


def test_notes_are_marks_in_charts(scene: Callable[..., Scene]) -> None:
    there = scene().live()
    view = there.app().view(RUN)
    assert runs.note_marks(view) == []
    there.update(run={"notes": (RunNote(wall=view.wall - 60, by="ana", text="x"),)})
    (mark,) = runs.note_marks(there.app().view(RUN))
    assert mark.x == pytest.approx(view.now - 60e9, abs=1e6)
    assert mark.sign == "N"
