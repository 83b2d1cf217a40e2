"""The recording of one run."""

from __future__ import annotations

import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from hoptui.recording import boots, chunks
from hoptui.recording.boots import Boot, Frame
from hoptui.recording.chunks import Chunk
from hoptui.recording.database import (
    RecordingError,
    errors_named,
    open_for_reading,
    open_for_writing,
    transaction,
)
from hoptui.recording.pending import Pending
from hoptui.wire.columns import Columns, concatenate
from hoptui.wire.messages import CommandRecord, Event

Record = TypeVar("Record", Event, CommandRecord)


class Recording:
    """A run's rows, events and commands in one SQLite file; used by one thread at a time.

    What is appended waits in memory for `flush`, and every reading method sees it at once, flushed or not. A flush that
    fails loses nothing: it keeps what waits, up to a bound beyond which the oldest is counted in `dropped`, and the next
    one tries again. Whatever was flushed survives a SIGKILL of the writer.

    Stamps given and returned are on the caller's clock: for the writer this boot's monotonic nanoseconds (what an
    earlier boot wrote lies in their past, and may be negative), for a reader the recording's own (see boots.py) unless
    it asks for another.
    """

    def __init__(self, path: Path, db: sqlite3.Connection, frame: Frame, *, writable: bool) -> None:
        self.path = path
        self._db = db
        self._frame = frame
        self._writable = writable
        self._pending = Pending()
        self._newest: dict[str, int] = {}  # stored stamps of the newest row a source, waiting ones included

    @classmethod
    def create(cls, path: Path, *, boot: Boot | None = None) -> Recording:
        """Open for writing; makes the file (0600) and its directory (0700) if they are missing, and goes on where an
        earlier writer left off. There must be one writer at a time.

        Raises:
            RecordingError: it cannot be written, is something else, or was made by a newer hoptui.
        """
        db = open_for_writing(path)
        try:
            with errors_named(path), transaction(db):
                frame = boots.enter(db, boot or boots.this_boot())
        except BaseException:
            db.close()
            raise
        return cls(path, db, frame, writable=True)

    @classmethod
    def open(cls, path: Path, *, boot: Boot | None = None) -> Recording:
        """Open for reading, also while it is written; with `boot`, stamps are on that boot's clock.

        Raises:
            RecordingError: it is missing, damaged, no recording, or was made by a newer hoptui.
        """
        db = open_for_reading(path)
        try:
            with errors_named(path):
                frame = boots.frame_of(db, boot)
        except BaseException:
            db.close()
            raise
        return cls(path, db, frame, writable=False)

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # writing

    def append(self, columns: Columns) -> None:
        """New rows of a source. Rows not newer than its newest are left out: a run sends some again when it reconnects."""
        self._check_writable()
        part = _shifted(columns, self._frame.shift_ns).after(self._newest_stored(columns.source))
        if len(part):
            self._newest[part.source] = part.times()[-1]
            self._pending.add(part)

    def event(self, event: Event) -> None:
        """A line on the time axis; one with the same `seq` is replaced."""
        self._check_writable()
        self._pending.add_event(_moved(event, self._frame.shift_ns))

    def command(self, record: CommandRecord) -> None:
        """The newest state of a command; an older one with the same `id` is replaced."""
        self._check_writable()
        self._pending.add_command(_moved(record, self._frame.shift_ns))

    def remember(self, key: str, value: bytes | str) -> None:
        """Keep a value of the run, e.g. its declaration; an older one of the same key is replaced."""
        self._check_writable()
        self._pending.remembered[key] = value

    def flush(self) -> None:
        """Bring everything that waits to the file, in one transaction.

        Raises:
            RecordingError: the disk is full or failing; everything still waits.
        """
        if not self._pending:
            return
        with errors_named(self.path), transaction(self._db):
            for source, columns in self._pending.sources():
                self._store(source, columns)
            self._db.executemany(
                "INSERT OR REPLACE INTO events (seq, t, record) VALUES (?, ?, ?)",
                [(e.seq, e.t, _json(e)) for e in self._pending.events.values()],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO commands (id, seq, record) VALUES (?, ?, ?)",
                [(c.id, c.seq, _json(c)) for c in self._pending.commands.values()],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", self._pending.remembered.items()
            )
        self._pending.clear()

    def close(self) -> None:
        """Flush and close; the file is closed even where the flush fails.

        Raises:
            RecordingError: as `flush`.
        """
        try:
            if self._writable:
                self.flush()
        finally:
            self._writable = False
            with errors_named(self.path):
                self._db.close()

    @property
    def dropped(self) -> int:
        """Rows, events and commands lost so far because they could not be flushed for too long."""
        return self._pending.dropped

    # reading

    @property
    def wall_offset_ns(self) -> int:
        """What added to a stamp of this recording gives nanoseconds since 1970."""
        return self._frame.wall_offset_ns

    @property
    def size_bytes(self) -> int:
        """What the recording takes on disk, its write-ahead log included."""
        wal = self.path.with_name(f"{self.path.name}-wal")
        with errors_named(self.path):
            return self.path.stat().st_size + (wal.stat().st_size if wal.exists() else 0)

    def recall(self, key: str) -> bytes | str | None:
        """The value remembered under `key`, None if there is none."""
        if key in self._pending.remembered:
            return self._pending.remembered[key]
        with errors_named(self.path):
            found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        value: bytes | str | None = found and found[0]
        return value

    def sources(self) -> dict[str, tuple[int, int, int]]:
        """The first and the last stamp and the number of rows of each source."""
        with errors_named(self.path):
            found = self._db.execute(
                "SELECT source, min(t0), max(t1), sum(rows) FROM chunks GROUP BY source ORDER BY source"
            ).fetchall()
        shift = self._frame.shift_ns
        known = {source: (t0 - shift, t1 - shift, rows) for source, t0, t1, rows in found}
        for source, columns in self._pending.sources():
            times = columns.times()
            first, _, rows = known.get(source, (times[0] - shift, 0, 0))
            known[source] = (first, times[-1] - shift, rows + len(times))
        return known

    def last_t(self, source: str) -> int:
        """The stamp of the newest row of a source, 0 where there is none of this boot."""
        return max(0, self._newest_stored(source) - self._frame.shift_ns)

    def rows(self, source: str, t0: int = 0, t1: int = 0, names: tuple[str, ...] = ()) -> Iterator[Columns]:
        """The rows of a source from `t0` to `t1`, both included, in pieces, oldest first.

        0 stands for the first and the last row. Pieces have those of `names` (none: all) that they know; there may be
        pieces without any.

        Raises:
            RecordingError: the file cannot be read, or a chunk of it is damaged.
        """
        shift = self._frame.shift_ns
        low = _int64(t0 + shift) if t0 else _LEAST
        high = _int64(t1 + shift) if t1 else _MOST
        with errors_named(self.path):
            # One statement sees one state of the file. Sealed chunks stay as they are and are read when it is their
            # turn; the few others come along at once, because the writer may merge them meanwhile.
            listed = self._db.execute(
                "SELECT id, t0, t1, rows, names, iif(sealed, NULL, body) FROM chunks"
                " WHERE source = ? AND t1 >= ? AND t0 <= ? ORDER BY t1, id",
                (source, low, high),
            ).fetchall()
        waiting = self._pending.rows(source)
        for number, first, last, rows, known, body in listed:
            part = self._decoded(source, Chunk(first, last, rows, known, body or self._body(number)), names)
            yield from self._clipped(part, low, high)
        for part in waiting:
            yield from self._clipped(chunks.select(part, names), low, high)

    def events(self, after: int = 0) -> list[Event]:
        """The events numbered above `after`, in order."""
        with errors_named(self.path):
            found = self._db.execute("SELECT record FROM events WHERE seq > ?", (_int64(after),)).fetchall()
        known = {event.seq: event for event in self._records(found, Event)}
        known.update(self._pending.events)
        return self._ordered(known.values(), after)

    def commands(self, after: int = 0) -> list[CommandRecord]:
        """The commands whose newest state is numbered above `after`, in that order."""
        with errors_named(self.path):
            found = self._db.execute("SELECT record FROM commands WHERE seq > ?", (_int64(after),)).fetchall()
        known = {record.id: record for record in self._records(found, CommandRecord)}
        known.update(self._pending.commands)
        return self._ordered(known.values(), after)

    # inside

    def _check_writable(self) -> None:
        if not self._writable:
            raise RecordingError(f"{self.path} is not open for writing")

    def _newest_stored(self, source: str) -> int:
        if source in self._newest:
            return self._newest[source]
        with errors_named(self.path):
            (found,) = self._db.execute("SELECT max(t1) FROM chunks WHERE source = ?", (source,)).fetchone()
        newest: int = _LEAST if found is None else found
        if self._writable:
            self._newest[source] = newest
        return newest

    def _store(self, source: str, columns: Columns) -> None:
        """Add rows to the source's unsealed chunks, and seal all of these once they are many or old.

        So a flush every second writes each row twice, however long the rows of a minute are.
        """
        waiting, oldest = self._db.execute(
            "SELECT coalesce(sum(rows), 0), min(t0) FROM chunks WHERE source = ? AND NOT sealed", (source,)
        ).fetchone()
        times = columns.times()
        sealed = chunks.is_due(waiting + len(times), times[0] if oldest is None else oldest, times[-1])
        parts = [columns]
        if sealed:
            found = self._db.execute(
                "DELETE FROM chunks WHERE source = ? AND NOT sealed RETURNING id, t0, t1, rows, names, body",
                (source,),
            ).fetchall()
            older = [self._decoded(source, Chunk(*chunk)) for _, *chunk in sorted(found)]
            parts = chunks.cut(concatenate(source, [*older, columns]))
        self._db.executemany(
            "INSERT INTO chunks (source, sealed, t0, t1, rows, names, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(source, sealed, *chunks.encode(part)) for part in parts],
        )

    def _body(self, number: int) -> bytes:
        with errors_named(self.path):
            found = self._db.execute("SELECT body FROM chunks WHERE id = ?", (number,)).fetchone()
        body: bytes = found[0]
        return body

    def _decoded(self, source: str, chunk: Chunk, names: tuple[str, ...] = ()) -> Columns:
        try:
            return chunks.decode(source, chunk, names)
        except ValueError as error:
            raise RecordingError(f"{self.path} is damaged: {error}") from None

    def _records(self, found: list[tuple[str]], kind: type[Record]) -> list[Record]:
        try:
            return [msgspec.json.decode(text, type=kind) for (text,) in found]
        except msgspec.DecodeError as error:
            raise RecordingError(f"{self.path} is damaged: {error}") from None

    def _ordered(self, records: Iterable[Record], after: int) -> list[Record]:
        newer = sorted((r for r in records if r.seq > after), key=lambda r: r.seq)
        return [_moved(r, -self._frame.shift_ns) for r in newer]

    def _clipped(self, part: Columns, low: int, high: int) -> Iterator[Columns]:
        times = part.times()
        start, stop = bisect_left(times, low), bisect_right(times, high)
        if start < stop:
            yield _shifted(
                part if stop - start == len(times) else part.slice(start, stop), -self._frame.shift_ns
            )


_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def _int64(asked: int) -> int:
    """What a viewer asks for may be any integer; SQLite takes 64 bits."""
    return min(max(asked, _LEAST), _MOST)


def _shifted(columns: Columns, by: int) -> Columns:
    if not by:
        return columns
    moved = array("q", [t + by for t in columns.times()])
    return msgspec.structs.replace(columns, t=moved.tobytes())


def _moved(record: Record, by: int) -> Record:
    """A record on another clock; in a command, 0 stays the sign for "not settled"."""
    if not by:
        return record
    if isinstance(record, CommandRecord) and record.settled:
        return msgspec.structs.replace(record, t=record.t + by, settled=record.settled + by)
    return msgspec.structs.replace(record, t=record.t + by)


def _json(record: Event | CommandRecord) -> str:
    return msgspec.json.encode(record).decode()
