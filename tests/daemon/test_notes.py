"""Notes of users on a run: who may add one, and that it is kept."""

from __future__ import annotations

import pytest

from hoptui.daemon.handlers.notes import NoteDesk
from hoptui.domain.run_notes import LONGEST_NOTE, MOST_NOTES, AddNote, NoteAdded, RunNote
from tests.daemon.quiet_node import ANA, RUN, QuietNode


class Noted(QuietNode):
    """A live run, and the desk for its notes."""

    def __init__(self) -> None:
        super().__init__()
        self.hello()
        self.notes = NoteDesk(self.node)

    def add(self, text: str, run: str = RUN) -> NoteAdded:
        return self.notes.receive(AddNote(id=1, run=run, text=text), ANA)


def test_a_note_has_its_time_and_its_author_and_is_written() -> None:
    noted = Noted()
    noted.keeper.log.clear()
    answer = noted.add("the loss spike is a bad shard")
    assert answer.granted
    assert answer.notes == (RunNote(wall=noted.wall(), by="ana", text="the loss spike is a bad shard"),)
    assert noted.keeper.states[-1].notes == answer.notes
    assert noted.keeper.log == ["run -", "keep"]


def test_a_run_that_has_exited_takes_notes_and_its_recording_is_closed_again() -> None:
    noted = Noted()
    noted.runs.end(noted.run, "finished", "")
    noted.keeper.log.clear()
    assert noted.add("good").granted
    assert noted.keeper.log == ["run -", "finish"]


def test_notes_stay_over_a_restart_of_the_run() -> None:
    noted = Noted()
    noted.add("before")
    noted.runs.end(noted.run, "exception", "")
    noted.hello(nonce="n2")
    assert [note.text for note in noted.run.state.notes] == ["before"]


@pytest.mark.parametrize(
    ("text", "run", "code"),
    [
        ("good", "nobody", "note.no_run"),
        ("  ", RUN, "note.invalid"),
        ("x" * (LONGEST_NOTE + 1), RUN, "note.invalid"),
    ],
)
def test_what_is_refused_changes_nothing(text: str, run: str, code: str) -> None:
    noted = Noted()
    noted.keeper.log.clear()
    answer = noted.add(text, run)
    assert (answer.granted, answer.code) == (False, code)
    assert noted.keeper.log == []
    assert noted.run.state.notes == ()


def test_a_run_has_a_limited_number_of_notes() -> None:
    noted = Noted()
    for number in range(MOST_NOTES):
        assert noted.add(str(number)).granted
    assert noted.add("one more").code == "note.too_many"
    assert len(noted.run.state.notes) == MOST_NOTES
