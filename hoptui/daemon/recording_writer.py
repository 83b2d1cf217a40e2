"""Writes the recording of one run, and keeps in memory what the disk does not take.

Only the archive's thread uses it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from hoptui.domain.columns import Columns
from hoptui.domain.run_notes import RunNote
from hoptui.node.addresses import AddressError, secure
from hoptui.protocol.messages import CommandRecord, Event, NodeState
from hoptui.recording import Recording, RecordingError, stored_json
from hoptui.recording.ingest import MAX_RECORDS, Pending
from hoptui.recording.library import NODE, RUN, KnownRun, encode_node, known_run
from hoptui.recording.timed_states import StateKind

log = logging.getLogger("hoptui.daemon")

NOT_WRITTEN = "they could not be written for too long"


class RecordingWriter:
    """The recording of a run. What comes before its file can be opened waits. So do rows of a source whose
    newest row in the file cannot be read.

    Memory is bounded: beyond that the oldest items are dropped and counted. `recording` is None until the
    file is open. `found_t` is the stamp of the newest row of the run that it had then, 0 for none. `sources`
    are those that had rows. `ended` is set when the run has exited. `known` and `node` are the newest states;
    a flush writes them.
    """

    def __init__(self, run: str, path: Path) -> None:
        self.run = run
        self.path = path
        self.recording: Recording | None = None
        self.sources: set[str] = set()
        self.found_t: int | None = None
        self.ended = False
        self.known: KnownRun | None = None
        self.node: NodeState | None = None
        self._remembered: dict[str, bytes] = {}
        self._notes: tuple[RunNote, ...] = ()  # those that the file had
        self._states: dict[StateKind, tuple[int, bytes]] = {}  # that wait for the file
        self._waiting = Pending()
        self._asked: dict[str, int] = {}  # by id: the number of the record whose writing is reported
        self._on_disk: dict[str, int] = {}
        self._lost = 0
        self._problem = ""
        self._reported, self._sentence = 0, ""

    @property
    def problem(self) -> str:
        """Why the run's history is not being kept, or what is missing in it; "" if nothing is wrong."""
        return self._problem or self._sentence

    @property
    def unwritten(self) -> int:
        """Number of rows, events and commands that are in memory only."""
        found = len(self._waiting)
        return found + self.recording.unwritten if self.recording is not None else found

    @property
    def missing(self) -> int:
        """Number of rows, events and commands that are lost, also to earlier writers of the file."""
        found = self._lost + self._waiting.dropped
        return found + self.recording.missing if self.recording is not None else found

    def append(self, parts: Sequence[Columns]) -> None:
        """Add rows of any sources. Those that the file has are skipped."""
        for columns in parts:
            self.sources.add(columns.source)
            self._waiting.add(columns)
        if self.recording is not None:
            self._pass_on(self.recording)

    def event(self, event: Event) -> None:
        """Add an event."""
        if self.recording is not None:
            self.recording.event(event)
        else:
            self._waiting.add_event(event)

    def command(self, record: CommandRecord, *, report: bool = False) -> None:
        """Add the newest state of a command. `report`: `take_reported` has it once it is on disk."""
        record = structs.replace(record, unsaved=False)
        if report:
            self._asked.pop(record.id, None)
            self._asked[record.id] = record.seq
            if len(self._asked) > MAX_RECORDS:
                del self._asked[next(iter(self._asked))]
        if self.recording is not None:
            self.recording.command(record)
        else:
            self._waiting.add_command(record)

    def stacks(self, t: int, body: bytes, samples: int) -> None:
        """Add the encoded stack samples of the time up to the stamp `t`, and their number."""
        if self.recording is not None:
            self.recording.stacks(t, body, samples)
        else:
            self._waiting.add_minute(t, body, samples)

    def state(self, kind: StateKind, t: int, body: bytes) -> None:
        """Add a state at the stamp `t`. Before the file is open, the newest one of each kind waits."""
        if self.recording is not None:
            self.recording.state(kind, t, body)
        else:
            self._states[kind] = (t, body)

    def lose(self, count: int) -> None:
        """Count rows, events or commands that were lost before they came here."""
        self._lost += count

    def flush(self, most_bytes: int) -> bool:
        """Open the file if it is not, write what waits, and keep the file within `most_bytes`.

        Returns whether all is written. If not, `problem` gives the reason, and the rest waits.
        """
        try:
            recording = self._opened()
            problem = self._pass_on(recording)
            recording.lose(self._lost + self._waiting.dropped)
            self._lost = self._waiting.dropped = 0
            self._remember(recording)
            wrote = recording.flush(summarise=False)
            self._look_for(recording)
            if wrote and recording.used_bytes > most_bytes:
                recording.thin(most_bytes)
        except (AddressError, RecordingError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("history is not being kept: %s", problem)
        if self._problem and not problem:
            log.warning("history is being kept again in %s", self.path)
        self._problem = problem
        self._report()
        return not problem

    def summarise(self) -> bool:
        """Make one block of the pyramid. Return False if none is due, or the disk does not take it now."""
        with suppress(RecordingError):  # the next flush gives the reason
            return self.recording is not None and self.recording.summarise()
        return False

    def _remember(self, recording: Recording) -> None:
        """Pass on the states that have changed. A burst of changes is encoded once."""
        values = {}
        if self.known is not None:
            values[RUN] = stored_json.encode(self._with_notes(self.known))
        if self.node is not None:
            values[NODE] = encode_node(self.node)
        self.known = self.node = None
        for key, value in values.items():
            if value != self._remembered.get(key):
                self._remembered[key] = value
                recording.remember(key, value)

    def _with_notes(self, known: KnownRun) -> KnownRun:
        """Return a state with the notes that the file had: the daemon may not have known the run then."""
        found = tuple(note for note in self._notes if note not in known.state.notes)
        return (
            structs.replace(known, state=structs.replace(known.state, notes=(*found, *known.state.notes)))
            if found
            else known
        )

    def take_reported(self) -> dict[str, int]:
        """Return the numbers of the commands that are on disk since the last call, by id."""
        found, self._on_disk = self._on_disk, {}
        return found

    def _look_for(self, recording: Recording) -> None:
        """Ask the file for the commands that are to be reported: one may be left out of a flush."""
        for command, number in list(self._asked.items()):
            if recording.number_of(command) >= number:
                self._on_disk[command] = self._asked.pop(command)

    def close(self) -> int:
        """Close the file. What still waits is lost. Returns how many lost items the file does not count."""
        if self.recording is not None:
            try:
                self.recording.close()
            except RecordingError as error:
                log.warning("the end of a recording is lost: %s", error.reason)
        self._lost += self.unwritten
        self._report()
        self._problem = ""
        unrecorded = self._lost + self._waiting.dropped
        return unrecorded + self.recording.unrecorded if self.recording is not None else unrecorded

    def _opened(self) -> Recording:
        """Return the open recording, to which all but rows has been passed on.

        Raises:
            AddressError: the directory is not private.
            RecordingError: the file cannot be opened.
        """
        if self.recording is None:
            secure(self.path.parent)
            self.recording = Recording.create(self.path)
            with suppress(RecordingError):  # it is new
                before = known_run(self.recording)
                self._notes = before.state.notes if before is not None else ()
            for event in self._waiting.events.values():
                self.recording.event(event)
            for record in self._waiting.commands.values():
                self.recording.command(record)
            for t, (body, samples) in self._waiting.minutes.items():
                self.recording.stacks(t, body, samples)
            self._waiting.clear_records()
            for kind, (t, body) in self._states.items():
                self.recording.state(kind, t, body)
            self._states.clear()
        return self.recording

    def _pass_on(self, recording: Recording) -> str:
        """Pass on the rows that wait, in order. Returns why some still wait, "" if none do."""
        if self.found_t is None:
            with suppress(RecordingError):  # then nothing is added to these rows now
                self.found_t = recording.last_t(f"run/{self.run}")
        unread: dict[str, str] = {}
        for part in self._waiting.take_rows():
            if part.source in unread:
                self._waiting.add(part)
                continue
            try:
                recording.append(part)
            except RecordingError as error:  # which of them the file has is not known
                unread[part.source] = error.reason
                self._waiting.add(part)
            except Exception:  # odd rows must not cost others
                log.exception("rows of %s cannot be recorded", part.source)
                self.lose(len(part))
        return next(iter(unread.values()), "")

    def _report(self) -> None:
        missing = self.missing
        if missing > self._reported:
            refused = self.recording.refused_because if self.recording is not None else ""
            why = refused or self._problem or NOT_WRITTEN
            self._sentence = (
                f"{missing} rows, events, commands or stack samples are missing in {self.path}: {why}"
            )
            log.warning("%s", self._sentence)
            self._reported = missing
