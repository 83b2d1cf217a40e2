"""Notes of users on a run, and why one is refused."""

from __future__ import annotations

from collections.abc import Mapping

from hoptui.presentation.sentences.template import Entry

SENTENCES: Mapping[str, Entry] = {
    "note.no_run": "no run of this node has the id {run:quoted}",
    "note.invalid": "a note has 1 to {most} characters",
    "note.old_daemon": "the daemon is older than notes",
    "note.too_many": "a run has at most {most} notes",
}
