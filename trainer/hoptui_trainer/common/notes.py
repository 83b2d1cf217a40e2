"""What a state has measured or chosen by itself, as events of its run."""

from __future__ import annotations

from collections.abc import Sequence

import hoptui


class NoteEvents:
    """Reports `notes`, a list that grows, each note once."""

    def __init__(self, run: hoptui.Run, notes: Sequence[str]) -> None:
        self._run, self._notes = run, notes
        self._reported = 0

    def report(self) -> None:
        """Report the notes that are new."""
        for note in self._notes[self._reported :]:
            self._run.event(note)
        self._reported = len(self._notes)
