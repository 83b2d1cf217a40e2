"""Notes of users on a run, and the request that adds one. The script's own notes are in its details."""

from __future__ import annotations

from typing import Any

import msgspec

MOST_NOTES, LONGEST_NOTE = 50, 500
"""Notes of a run, and characters of one."""


class RunNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a user wrote on a run: `wall` is in seconds since 1970, `by` the user's name."""

    wall: float
    by: str
    text: str


class AddNote(msgspec.Struct, frozen=True, kw_only=True, tag="note.add"):
    """A request of a viewer: add a note to a run, which may have exited."""

    id: int
    run: str
    text: str


class NoteAdded(msgspec.Struct, frozen=True, kw_only=True, tag="note.added"):
    """The answer to AddNote: `granted`, or a refusal whose reason is in `code` and `fields`.

    `notes` are those of the run after it.
    """

    id: int
    run: str
    granted: bool
    code: str = ""
    fields: dict[str, Any] = {}
    notes: tuple[RunNote, ...] = ()


def is_note(text: str) -> bool:
    """Return whether a text can be a note: a viewer may send anything."""
    return bool(text.strip()) and len(text) <= LONGEST_NOTE
