"""`hoptui note`: add a dated note to a live or recorded run, or list its notes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support import recordings
from hoptui.cli.support.options import Json, RunOrFile
from hoptui.cli.support.snapshot import look, refuse_read_only
from hoptui.cli.support.terminal import OK, REJECTED, Fail, dump, say, table, usage
from hoptui.domain.facts import Fact, fact
from hoptui.domain.run_notes import LONGEST_NOTE, MOST_NOTES, RunNote, is_note
from hoptui.model.runs import Ambiguous, NoSuchRun, find_run
from hoptui.node.processes import user_name
from hoptui.presentation import numbers, sentences
from hoptui.protocol.messages import RunState


def note(
    run: RunOrFile,
    text: Annotated[
        str | None, Parameter(show_default=False, help="The note. Without it, list them.")
    ] = None,
    /,
    *,
    json: Json = False,
) -> int:
    """Add a dated note by you to a live or recorded run; without a text, list its notes."""
    if text is not None and not is_note(text):
        raise usage(sentences.sentence(fact("note.invalid", most=LONGEST_NOTE)))
    state, notes = _at_daemon(run, text)
    if state is None:
        state, path = recordings.of_run(run)
        notes = state.notes if text is None else _add(path, state, text)
    if json:
        dump({"run": state.run, "notes": notes})
    elif notes:
        table(lines(notes))
    else:
        say(f"{numbers.clean(state.name)} has no notes")
    return OK


def lines(notes: tuple[RunNote, ...]) -> list[tuple[str, str, str]]:
    """The time, the author and the text of each note."""
    return [(numbers.day_clock(one.wall), one.by, numbers.clean(one.text, LONGEST_NOTE)) for one in notes]


def _at_daemon(name: str, text: str | None) -> tuple[RunState | None, tuple[RunNote, ...]]:
    """The run that the daemon knows and its notes, with the new one; None for a run that it does not know."""
    with look(steers=text is not None, readings=False) as seen:
        try:
            found = find_run(seen.node, seen.store.vitals, name)
        except NoSuchRun:
            return None, ()
        except Ambiguous:
            found = seen.find(name)
        if text is None:
            return found, found.notes
        answer = seen.session.add_note(found.run, text)
        if not answer.granted:
            raise Fail(sentences.sentence(Fact(answer.code, answer.fields)), REJECTED)
        return found, answer.notes


def _add(path: Path, state: RunState, text: str) -> tuple[RunNote, ...]:
    """Add a note to a recording that no process writes."""
    from hoptui.recording import RecordingError, library

    refuse_read_only("nothing is written")
    if len(state.notes) >= MOST_NOTES:
        raise Fail(sentences.sentence(fact("note.too_many", most=MOST_NOTES)), REJECTED)
    try:
        return library.add_note(path, RunNote(wall=time.time(), by=user_name(), text=text))
    except RecordingError as error:
        raise Fail(str(error), REJECTED) from None
