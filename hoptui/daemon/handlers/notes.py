"""The requests of viewers for notes on a run."""

from __future__ import annotations

from msgspec import structs

from hoptui.daemon.state.node import Node
from hoptui.domain.facts import Fact, fact
from hoptui.domain.run_notes import LONGEST_NOTE, MOST_NOTES, AddNote, NoteAdded, RunNote, is_note
from hoptui.protocol.authors import author
from hoptui.protocol.messages import Origin


class NoteDesk:
    """Adds notes to runs and brings them to the disk. The training process takes no part."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def receive(self, request: AddNote, who: Origin) -> NoteAdded:
        """Carry out a request of a viewer. If it is refused, the answer has the reason."""
        node, run = self._node, self._node.registry.get(request.run)
        if run is None:
            return _refused(request, fact("note.no_run", run=request.run[:40]))
        if not is_note(request.text):
            return _refused(request, fact("note.invalid", most=LONGEST_NOTE))
        if len(run.shown.notes) >= MOST_NOTES:
            return _refused(request, fact("note.too_many", most=MOST_NOTES))
        by = author(structs.replace(who, pid=0))
        node.add_notes(run, (RunNote(wall=node.clock.wall(), by=by, text=request.text),))
        return NoteAdded(id=request.id, run=run.id, granted=True, notes=run.shown.notes)


def _refused(request: AddNote, why: Fact) -> NoteAdded:
    return NoteAdded(id=request.id, run=request.run, granted=False, code=why.code, fields=why.fields)
