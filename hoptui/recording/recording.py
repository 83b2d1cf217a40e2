"""The recording of one run."""

from __future__ import annotations

import os
import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from hoptui.domain.columns import Columns
from hoptui.protocol.messages import Buckets, CommandRecord, Event
from hoptui.recording import ingest, limits, pyramid, stack_minutes, timed_states
from hoptui.recording.database import (
    RecordingError,
    damage_named,
    errors_named,
    open_for_reading,
    open_for_writing,
    transaction,
)
from hoptui.recording.ingest import Boot, ClockShift, Pending, Record, added, moved, shifted
from hoptui.recording.pyramid import Summary
from hoptui.recording.stack_minutes import StackMinute
from hoptui.recording.tables import Records, Tables
from hoptui.recording.timed_states import StateKind, StoredState

UNWRITABLE = (
    OverflowError,
    TypeError,
    ValueError,
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""Errors of the data that is written, not of the disk: trying again would fail again."""


class Recording:
    """A run's rows, events and commands in one SQLite file. One thread at a time may use it.

    Appended data waits in memory for `flush`. Every reading method sees it at once, flushed or not. A failed
    flush keeps the waiting data, and the next flush tries again. Beyond a bound, the oldest items are
    discarded and counted in `dropped`. Flushed data survives a SIGKILL of the writer. What no file can hold,
    such as a number of more than 64 bits, is left out and counted in `refused`. The file has the sum, as
    `missing`.

    Stamps are on the caller's clock. A writer uses this boot's monotonic nanoseconds; stamps of an earlier
    boot lie in the past and may be negative. A reader uses the recording's own clock (see `ingest`)
    unless it passes a boot.
    """

    def __init__(
        self, path: Path, db: sqlite3.Connection, frame: ClockShift, *, lock: int | None = None
    ) -> None:
        self.path = path
        self._db = db
        self._lock = lock
        self._tables = Tables(path, db)
        self._records = Records(path, db)
        self._frame = frame
        self._writer = self._writable = lock is not None
        self._pending = Pending()
        self.refused, self.refused_because = 0, ""
        self._lost = self._counted = 0
        self._newest: dict[str, int] = {}  # source -> stored stamp of its newest row, flushed or waiting

    @classmethod
    def create(cls, path: Path, *, boot: Boot | None = None) -> Recording:
        """Open for writing, and continue where an earlier writer stopped.

        Creates the file (0600) and its directory (0700) if they are missing. Only one writer can have it
        open. Another one waits a few seconds for the first to close it.

        Raises:
            RecordingError: it cannot be written, has a writer, is another kind of file, or was made by a
                newer hoptui.
        """
        db, lock = open_for_writing(path)
        try:
            with damage_named(path), transaction(db):
                frame = ingest.enter_boot(db, boot or ingest.this_boot())
            recording = cls(path, db, frame, lock=lock)
            recording._lost = recording._counted = recording._counted_missing()
            return recording
        except BaseException:
            db.close()
            os.close(lock)
            raise

    @classmethod
    def open(cls, path: Path, *, boot: Boot | None = None, still: bool = False) -> Recording:
        """Open for reading, also while another process writes it. With `boot`, stamps are on that boot's
        clock.

        SQLite leaves two small files beside it. It does not if `still` is set: a promise that no process
        writes the recording and that it was closed properly (it has no -wal).

        Raises:
            RecordingError: it is missing, damaged, not a recording, or was made by a newer hoptui.
        """
        db = open_for_reading(path, still=still)
        try:
            with damage_named(path):
                frame = ingest.frame_of(db, boot)
        except BaseException:
            db.close()
            raise
        return cls(path, db, frame)

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # writing

    def append(self, columns: Columns) -> None:
        """Add rows of a source. Rows that are not newer than its newest row are skipped.

        A run sends some rows again when it reconnects.
        """
        self._check_writable()
        part = shifted(columns, self._frame.shift_ns).after(self._newest_stored(columns.source))
        if len(part):
            self._newest[part.source] = part.last_t
            self._pending.add(part)

    def event(self, event: Event) -> None:
        """Add an event. It replaces one with the same `seq`."""
        self._check_writable()
        self._pending.add_event(moved(event, self._frame.shift_ns))

    def command(self, record: CommandRecord) -> None:
        """Store the newest state of a command. It replaces the record with the same `id`."""
        self._check_writable()
        self._pending.add_command(moved(record, self._frame.shift_ns))

    def remember(self, key: str, value: bytes | str) -> None:
        """Store a value of the run, such as its declaration. It replaces the value of the same key."""
        self._check_writable()
        self._pending.remembered[key] = value

    def stacks(self, t: int, body: bytes, samples: int) -> None:
        """Add the stack samples of the time up to the stamp `t`, as `stack_minutes.encode` returns them, and
        their number."""
        self._check_writable()
        self._pending.add_minute(t + self._frame.shift_ns, body, samples)

    def state(self, kind: StateKind, t: int, body: bytes) -> None:
        """Add a state at the stamp `t`. One of each slot is kept, for hours."""
        stored = t + self._frame.shift_ns
        self.remember(kind.key(stored), timed_states.pack(stored, body))

    def flush(self, *, summarise: bool = True) -> bool:
        """Write all waiting data to the file, in one transaction. Return whether there was any.

        With `summarise`, a block of the pyramid is made if one is due (see `summarise`).

        Raises:
            RecordingError: the disk is full or failing; the data still waits.
        """
        if not self._pending and not self.unrecorded:
            return False
        with errors_named(self.path):
            try:
                with transaction(self._db):
                    for source, columns in self._pending.sources():
                        self._tables.add(source, columns)
                    if summarise:
                        self._tables.raise_one()
                    self._records.add_events(self._pending.events.values())
                    self._records.add_commands(self._pending.commands.values())
                    self._records.remember(self._pending.remembered)
                    self._records.remember(self._minutes())
                    self._records.remember({_MISSING: str(self.missing)} if self.unrecorded else {})
            except UNWRITABLE:
                before = self.refused
                try:
                    with transaction(self._db):
                        self._write_one_by_one()
                        self._records.remember({_MISSING: str(self.missing)})
                except BaseException:
                    self.refused = before  # nothing is written yet, and all of it waits
                    raise
        self._counted = self.missing
        self._pending.clear()
        return True

    def summarise(self) -> bool:
        """Make one block of the pyramid, which takes a tenth of a second. Return False if none is due.

        Raises:
            RecordingError: the disk is full or failing; it is made later.
        """
        self._check_writable()
        if not self._tables.grown:
            return False
        with errors_named(self.path), transaction(self._db):
            return self._tables.raise_one()

    def _write_one_by_one(self) -> None:
        """Write all waiting data except what no file can hold. That is counted in `refused`."""
        waiting = self._pending
        for source, columns in waiting.sources():
            self._write_rows(source, columns)
        values = (*waiting.remembered.items(), *self._minutes().items())
        for item in (*waiting.events.values(), *waiting.commands.values(), *values):
            self._attempt(lambda item=item: self._records.write(item))  # type: ignore[misc]

    def _minutes(self) -> dict[str, bytes]:
        """Return the stack samples that wait, by their keys."""
        return {stack_minutes.key(t): body for t, (body, _) in self._pending.minutes.items()}

    def _write_rows(self, source: str, columns: Columns) -> None:
        """Write rows, in halves if they cannot be written together."""
        half = len(columns) // 2
        if not self._attempt(lambda: self._tables.add(source, columns), alone=half == 0) and half:
            self._write_rows(source, columns.slice(0, half))
            self._write_rows(source, columns.slice(half))

    def _attempt(self, write: Callable[[], object], *, alone: bool = True) -> bool:
        """Write something, or nothing of it. Return whether it is written; count it if it is one item."""
        self._db.execute("SAVEPOINT one")
        try:
            write()
            written = True
        except UNWRITABLE as error:
            self._db.execute("ROLLBACK TO one")
            self.refused += alone
            self.refused_because = f"{type(error).__name__}: {error}"[:200]
            written = False
        self._db.execute("RELEASE one")
        return written

    def thin(self, limit_bytes: int) -> int:
        """Delete the oldest rows, but keep their summaries, so that the recording fits into `limit_bytes`.

        Stack samples that are older than the rows are deleted too.

        Returns the number of bytes freed. The file does not shrink: later data reuses the freed pages.
        auto_vacuum would move a page for every page written from then on, without a benefit while the run
        lives. Rows without a summary (the newest 16,384 or more of a source) are never deleted.

        Raises:
            RecordingError: the disk is failing; nothing is deleted.
        """
        self._check_writable()
        with errors_named(self.path):
            used = self._tables.used_bytes()
            if used <= limit_bytes:
                return 0
            with transaction(self._db):
                before = self._tables.thin(limit_bytes - limit_bytes // 20)
                if before is not None:
                    self._records.remember({_THINNED: str(before)})
                    self._records.forget_minutes(before)
            return used - self._tables.used_bytes()

    def close(self) -> None:
        """Flush and close. The file is closed even if the flush fails.

        Raises:
            RecordingError: as `flush`.
        """
        try:
            if self._writable:
                self.flush()
        finally:
            self._writable = False
            try:
                with errors_named(self.path):
                    self._db.close()
            finally:
                if self._lock is not None:
                    os.close(self._lock)
                    self._lock = None

    @property
    def dropped(self) -> int:
        """Number of rows, events and commands lost because they could not be flushed for too long."""
        return self._pending.dropped

    def lose(self, count: int) -> None:
        """Count rows, events or commands that were lost before they could be added."""
        self._lost += count

    @property
    def unwritten(self) -> int:
        """Number of rows, events and commands that wait for a flush."""
        return len(self._pending)

    @property
    def unrecorded(self) -> int:
        """How many of `missing` the file of this writer does not count yet."""
        return self.missing - self._counted

    # reading

    @property
    def missing(self) -> int:
        """Number of rows, events and commands that came and are not in this recording, whoever wrote it."""
        if self._writer:
            return self._lost + self.dropped + self.refused
        return self._counted_missing()

    @property
    def wall_offset_ns(self) -> int:
        """Add this to a stamp of this recording to get nanoseconds since 1970."""
        return self._frame.wall_offset_ns

    @property
    def used_bytes(self) -> int:
        """The size of the recording on disk, without its free pages."""
        with errors_named(self.path):
            return self._tables.used_bytes()

    @property
    def thinned_before(self) -> int | None:
        """Rows stamped before this may be deleted, with only summaries left. None: all rows are there."""
        found = self.recall(_THINNED)
        with damage_named(self.path):
            return None if found is None else limits.stamp(int(found)) - self._frame.shift_ns

    def recall(self, key: str) -> bytes | str | None:
        """The value remembered under `key`, None if there is none."""
        if key in self._pending.remembered:
            return self._pending.remembered[key]
        return self._records.recall(key)

    def sources(self) -> dict[str, tuple[int, int, int]]:
        """Return the first stamp, the last stamp and the number of rows of each source."""
        with damage_named(self.path):
            found = self._tables.extents()
        shift = self._frame.shift_ns
        known = {source: (t0 - shift, t1 - shift, rows) for source, (t0, t1, rows) in found.items()}
        for source, columns in self._pending.sources():
            times = columns.times()
            first, _, rows = known.get(source, (times[0] - shift, 0, 0))
            known[source] = (first, times[-1] - shift, rows + len(times))
        return known

    def span(self) -> tuple[int, int]:
        """Return the first and the last stamp of all rows and events, (0, 0) if there are none."""
        with damage_named(self.path):
            edges = [edge for edge in (self._tables.span(), self._records.span()) if edge is not None]
        edges += [(columns.times()[0], columns.last_t) for _, columns in self._pending.sources()]
        edges += [(event.t, event.t) for event in self._pending.events.values()]
        if not edges:
            return 0, 0
        shift = self._frame.shift_ns
        return min(first for first, _ in edges) - shift, max(last for _, last in edges) - shift

    def last_t(self, source: str) -> int:
        """Return the stamp of the newest row of a source, 0 if there is none of this boot."""
        return max(0, self._newest_stored(source) - self._frame.shift_ns)

    def names(self, source: str, t0: int = 0, t1: int = 0) -> tuple[str, ...]:
        """Return the names that rows of a source from `t0` to `t1` may have, in order of first appearance."""
        low, high = self._asked(t0, t1)
        with damage_named(self.path):
            known = dict.fromkeys(self._tables.names(source, low, high))
        for part in self._pending.rows(source):
            known.update(dict.fromkeys(part.names))
        return tuple(known)

    def rows(self, source: str, t0: int = 0, t1: int = 0, names: tuple[str, ...] = ()) -> Iterator[Columns]:
        """Yield the rows of a source from `t0` to `t1`, both included, in pieces, oldest first.

        0 stands for the first and the last row. Each piece has those of `names` (none: all) that it knows,
        possibly none.

        Raises:
            RecordingError: the file cannot be read, or a chunk of it is damaged.
        """
        low, high = self._asked(t0, t1)
        waiting = self._pending.rows(source)
        for part in self._tables.rows(source, low, high, names):
            yield from self._clipped(part, low, high)
        for part in waiting:
            yield from self._clipped(ingest.select(part, names), low, high)

    def buckets(
        self,
        source: str,
        names: tuple[str, ...] = (),
        t0: int = 0,
        t1: int = 0,
        points: int = 512,
        id: int = 0,  # noqa: A002 - the message's own word
    ) -> Buckets:
        """Return the rows of a source from `t0` to `t1` in at most `points` buckets (see `resample.buckets`).

        If buckets are much longer than groups of the pyramid, groups are read instead of rows. The edges of a
        bucket are then off by up to half its length. Extremes are exact. Means are exact up to the last
        digit.

        Raises:
            RecordingError: as `rows`.
        """
        low, high = self._asked(t0, t1)
        extent = self.sources().get(source) if not (t0 and t1) else None
        if extent is not None:
            shift = self._frame.shift_ns
            low, high = max(low, extent[0] + shift), min(high, extent[1] + shift)
        points = max(1, points)
        parts: list[Columns | Summary] = [
            *self._tables.cover(source, low, high, names, (high - low + 1) / points / 2),
            *(ingest.select(part, names) for part in self._pending.rows(source)),
        ]
        found = pyramid.buckets(parts, source, names, low, high, points, id)
        return msgspec.structs.replace(found, t=added(found.t, -self._frame.shift_ns))

    def at(self, source: str, t: int, within_s: float) -> dict[str, float]:
        """Return the newest known value of each name at or before `t`, at most `within_s` old.

        If the rows of that time are deleted, the values are means of their groups.
        """
        first, t = t - round(within_s * 1e9) or -1, t or -1  # 0 would stand for the first and the last row
        found: dict[str, float] = {}
        gone = self.thinned_before
        if gone is not None and first < gone:
            mean = self.buckets(source, (), first, t, 1)
            known = {
                name: array("d", raw)[-1] for name, raw in zip(mean.names, mean.mean, strict=True) if raw
            }
            found = {name: value for name, value in known.items() if value == value}
        for part in self.rows(source, first, t):
            found |= part.last()
        return found

    def events(self, after: int = 0) -> list[Event]:
        """Return the events numbered above `after`, in order."""
        known = {event.seq: event for event in self._records.events(_int64(after))}
        known.update(self._pending.events)
        return self._ordered(known.values(), after)

    def commands(self, after: int = 0) -> list[CommandRecord]:
        """Return the commands whose newest state is numbered above `after`, in that order."""
        known = {record.id: record for record in self._records.commands(_int64(after))}
        known.update(self._pending.commands)
        return self._ordered(known.values(), after)

    def minutes(self, t0: int = 0) -> tuple[list[int], int]:
        """Return the stamps of stack samples from `t0` (0: the first) on, oldest first, and how many have an
        unreadable stamp. Each is the end of about a minute, of which `minute` returns the samples."""
        shift = self._frame.shift_ns
        low = t0 + shift if t0 else 0
        found, odd = self._records.minutes(low)
        stamps = {*found, *(t for t in self._pending.minutes if t >= low)}
        return [t - shift for t in sorted(stamps)], odd

    def minute(self, t: int) -> StackMinute | None:
        """Return the stack samples of each rank up to the stamp `t`, None if they have been deleted.

        Raises:
            RecordingError: they are damaged, or the file cannot be read.
        """
        stored = t + self._frame.shift_ns
        waiting = self._pending.minutes.get(stored)
        body = waiting[0] if waiting is not None else self._records.minute(stored)
        if body is None:
            return None
        with damage_named(self.path):
            return stack_minutes.decode(body, t)

    def state_at(self, kind: StateKind, t: int) -> StoredState | None:
        """Return the newest state at or before `t`, and its stamp. None if the slots before have none."""
        stored = t + self._frame.shift_ns
        for back in range(kind.looked_at + 1):
            at = stored - back * kind.every_ns
            found = timed_states.unpack(self.recall(kind.key(at))) if at >= 0 else None
            if found is not None and 0 <= stored - found.t <= kind.looked_at * kind.every_ns:
                return StoredState(found.t - self._frame.shift_ns, found.body)
        return None

    def states(self, kind: StateKind) -> list[StoredState]:
        """Return all states of a kind, oldest first."""
        stored = (timed_states.unpack(self.recall(key)) for key in kind.keys)
        return sorted(
            StoredState(one.t - self._frame.shift_ns, one.body) for one in stored if one is not None
        )

    def number_of(self, command: str) -> int:
        """Return the number of a command's state that was flushed last, 0 if none was."""
        with damage_named(self.path):
            return self._records.number_of(command)

    # internals

    def _counted_missing(self) -> int:
        with damage_named(self.path):
            return max(0, limits.stamp(int(self.recall(_MISSING) or 0)))

    def _check_writable(self) -> None:
        if not self._writable:
            raise RecordingError(f"{self.path} is not open for writing")

    def _newest_stored(self, source: str) -> int:
        if source in self._newest:
            return self._newest[source]
        with damage_named(self.path):
            found = self._tables.newest(source)
        newest = _LEAST if found is None else found
        if self._writable:
            self._newest[source] = newest
        return newest

    def _asked(self, t0: int, t1: int) -> tuple[int, int]:
        """Return stored stamps for a requested range; 0 stands for the first and the last."""
        shift = self._frame.shift_ns
        return _int64(t0 + shift) if t0 else _LEAST, _int64(t1 + shift) if t1 else _MOST

    def _ordered(self, records: Iterable[Record], after: int) -> list[Record]:
        newer = sorted((r for r in records if r.seq > after), key=lambda r: r.seq)
        return [moved(r, -self._frame.shift_ns) for r in newer]

    def _clipped(self, part: Columns, low: int, high: int) -> Iterator[Columns]:
        times = part.times()
        start, stop = bisect_left(times, low), bisect_right(times, high)
        if start < stop:
            yield shifted(
                part if stop - start == len(times) else part.slice(start, stop), -self._frame.shift_ns
            )


_THINNED = "thinned_before"  # key in `meta`; the value is a stored stamp as text
_MISSING = "missing"  # the value is a number as text
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def _int64(asked: int) -> int:
    """Clamp to 64 bits: a viewer may ask for any integer, SQLite takes 64 bits."""
    return min(max(asked, _LEAST), _MOST)
