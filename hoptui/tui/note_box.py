"""The box with the notes of users on a run, and a line to type a new one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input

from hoptui.domain.run_notes import LONGEST_NOTE, RunNote
from hoptui.presentation import numbers
from hoptui.tui.actions import Action, bindings, of
from hoptui.tui.app_protocol import Frame
from hoptui.tui.screen_base import LiveBox, set_height
from hoptui.tui.styled_text import Line, Span
from hoptui.tui.widgets import Lines, Panel

WHEN = 18  # cells of the day and the time, with the gap after it
LEAST_TEXT = 20


def lines(notes: Sequence[RunNote], width: int) -> list[Line]:
    """Each note with its time and its author, the newest first."""
    found: list[Line] = []
    for note in sorted(notes, key=lambda one: -one.wall):
        by = f"{numbers.clean(note.by, 24)}  "
        parts = textwrap.wrap(numbers.clean(note.text, LONGEST_NOTE), max(LEAST_TEXT, width - WHEN - len(by)))
        found.append((Span(numbers.day_clock(note.wall)[:16], "dim", WHEN), Span(by, "dim"), Span(parts[0])))
        found += [(Span("", "", WHEN + len(by)), Span(part)) for part in parts[1:]]
    return found or [(Span("no notes yet", "dim"),)]


class NoteBox(LiveBox[None]):
    """The notes of the run with the id `run`. A dashboard that only looks shows no line to type one."""

    BINDINGS = bindings("note")

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def compose(self) -> ComposeResult:
        with Panel(name="notes", kind="box"):
            with Horizontal(id="note-entry"):
                yield Lines("note-prompt")
                yield Input(id="note-text", compact=True, max_length=LONGEST_NOTE)
            yield VerticalScroll(Lines("note-lines"), id="note-scroll", can_focus=False)

    def on_mount(self) -> None:
        view = self.hoptui.view(self._run)
        name = numbers.clean(view.run.name, 40) if view.run is not None else self._run
        self._panel("notes").label(f"Notes of {name}", self.hoptui.legend(self._actions()))
        self._lines("note-prompt").show([(Span("note", "dim"),)])
        entry = self.query_one("#note-entry")
        entry.display = not view.read_only
        if entry.display:
            self.query_one(Input).focus()
        self.redraw()

    def _actions(self) -> list[Action]:
        return [one for one in of("note") if one.id != "note.add" or not self.hoptui.view(None).read_only]

    def draw(self, frame: Frame) -> None:
        shown = self._lines("note-lines")
        view = self.hoptui.view(self._run)
        if shown.size.width and view.run is not None:
            text = lines(view.run.notes, shown.size.width)
            set_height(shown, len(text))
            shown.show(text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not self.hoptui.view(None).read_only if action == "add" else True

    def action_add(self) -> None:
        """Send the note. It is in the list once the daemon has it."""
        entry = self.query_one(Input)
        if not entry.value.strip():
            self.dismiss(None)
            return
        refused = self.hoptui.steering.note(self.hoptui.view(self._run), entry.value, self.hoptui.clock())
        self.hoptui.tell(refused)
        if not refused:
            entry.value = ""
