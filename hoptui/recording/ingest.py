"""New rows: moved to the clock of the recording, in memory, and on disk.

A recording's time is the monotonic clock of the boot that began it, in nanoseconds. Stamps of a later boot
are stored shifted by the wall time between the two boots. The shift is larger if the wall clock went back, so
stored stamps always rise. One offset converts all of them to wall time.

The buffer holds what is not on disk yet. It is bounded, so a full disk never fills memory. A flush writes one
small blob, cheap to write and to read. Enough blobs become a block.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from array import array
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from hoptui.domain.columns import Columns, concatenate
from hoptui.protocol.messages import CommandRecord, Event
from hoptui.recording import limits

Record = TypeVar("Record", Event, CommandRecord)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Boot:
    """One uptime of a node. `now` is a monotonic stamp in ns; adding `wall_offset_ns` gives wall time."""

    id: str
    wall_offset_ns: int
    now: int


@dataclass(frozen=True)
class ClockShift:
    """How a process maps its clock to a recording's clock.

    Its own stamp + `shift_ns` is the stored stamp. A stored stamp + the first boot's offset is wall time; own
    stamp + `wall_offset_ns` is wall time too.
    """

    shift_ns: int = 0
    wall_offset_ns: int = 0


def this_boot() -> Boot:
    """The boot this process runs in. Without Linux's boot id all boots count as one."""
    try:
        boot_id = _BOOT_ID.read_text().strip()
    except OSError:
        boot_id = "unknown"
    now = time.monotonic_ns()
    return Boot(boot_id, time.time_ns() - now, now)


def enter_boot(db: sqlite3.Connection, boot: Boot) -> ClockShift:
    """Return the shift of `boot` and store it in the recording. Call it within a transaction."""
    frame = frame_of(db, boot)
    db.execute(
        "INSERT OR IGNORE INTO boots (boot, shift_ns, wall_offset_ns) VALUES (?, ?, ?)",
        (boot.id, frame.shift_ns, boot.wall_offset_ns),
    )
    return frame


def frame_of(db: sqlite3.Connection, boot: Boot | None) -> ClockShift:
    """Return the shift for a process of `boot`, which the recording need not know yet.

    Without `boot`, stamps stay on the recording's own clock.
    """
    first = _first_offset(db)
    if boot is None:
        return ClockShift(0, first or 0)
    known = db.execute("SELECT shift_ns FROM boots WHERE boot = ?", (boot.id,)).fetchone()
    shift = limits.stamp(known[0]) if known else 0 if first is None else _shift(db, boot, first)
    return ClockShift(shift, (boot.wall_offset_ns if first is None else first) + shift)


def _first_offset(db: sqlite3.Connection) -> int | None:
    first = db.execute("SELECT wall_offset_ns FROM boots ORDER BY id LIMIT 1").fetchone()
    return limits.stamp(first[0]) if first else None


def _shift(db: sqlite3.Connection, boot: Boot, first_offset: int) -> int:
    (last,) = db.execute(
        "SELECT max(coalesce((SELECT max(t1) FROM blocks), 0), coalesce((SELECT max(t1) FROM arrivals), 0),"
        " coalesce((SELECT max(t) FROM events), 0))"
    ).fetchone()
    limits.stamp(last)
    shift = boot.wall_offset_ns - first_offset
    return shift if boot.now + shift > last else int(last) + 1 - boot.now


def shifted(columns: Columns, by: int) -> Columns:
    """Return the same rows with stamps moved by `by` nanoseconds."""
    return msgspec.structs.replace(columns, t=added(columns.t, by)) if by else columns


def added(stamps: bytes, by: int) -> bytes:
    """Return stamps (int64 bytes) moved by `by` nanoseconds."""
    return array("q", [t + by for t in array("q", stamps)]).tobytes() if by else stamps


def moved(record: Record, by: int) -> Record:
    """Return a record moved by `by` nanoseconds. A command's `settled` of 0 (not final) stays 0."""
    if not by:
        return record
    if isinstance(record, CommandRecord) and record.settled:
        return msgspec.structs.replace(record, t=record.t + by, settled=record.settled + by)
    return msgspec.structs.replace(record, t=record.t + by)


_LEVEL = 1
_names = msgspec.json.Decoder(tuple[str, ...])


class Arrival(NamedTuple):
    """A row of the table `arrivals`, without its id and source."""

    t0: int
    t1: int
    rows: int
    names: str
    body: bytes


def encode(columns: Columns) -> Arrival:
    """Encode at least one row."""
    times = columns.times()
    body = zlib.compress(b"".join((columns.t, columns.step, *columns.values)), _LEVEL)
    return Arrival(times[0], times[-1], len(times), encode_names(columns.names), body)


def decode(source: str, arrival: Arrival) -> Columns:
    """Decode the rows of an arrival.

    Raises:
        ValueError: they are damaged.
    """
    names = decode_names(arrival.names)
    width = 8 * limits.count(arrival.rows, limits.MOST_ROWS)
    raw = limits.inflated(arrival.body, width * (2 + len(names)))
    return Columns(
        source=source,
        names=names,
        t=raw[:width],
        step=raw[width : 2 * width],
        values=tuple(raw[i * width : (i + 1) * width] for i in range(2, 2 + len(names))),
    )


def encode_names(names: tuple[str, ...]) -> str:
    """Return names as the file stores them."""
    return msgspec.json.encode(names).decode()


def decode_names(text: str) -> tuple[str, ...]:
    """Return the names that `encode_names` stored. Raises ValueError if the text is damaged."""
    try:
        names = _names.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    if len(names) > limits.MOST_NAMES or len(set(names)) != len(names):
        raise ValueError(f"{len(names)} names, or a name twice")
    return names


def select(columns: Columns, wanted: Collection[str]) -> Columns:
    """Return the same rows with only the `wanted` names that exist (none: all)."""
    if not wanted:
        return columns
    kept = [i for i, name in enumerate(columns.names) if name in wanted]
    return msgspec.structs.replace(
        columns,
        names=tuple(columns.names[i] for i in kept),
        values=tuple(columns.values[i] for i in kept),
    )


MAX_BYTES = 8 << 20
MAX_RECORDS = 4096
MAX_MINUTES = 64

Key = TypeVar("Key", int, str)


class Pending:
    """Rows, events, commands, stack samples and remembered values that wait for a flush.

    Beyond `max_bytes` of rows, `max_records` events or commands, and MAX_MINUTES of stack samples, the oldest
    are dropped and counted in `dropped`. `minutes` has encoded samples and their number, by stamp.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_records: int = MAX_RECORDS) -> None:
        self.events: dict[int, Event] = {}
        self.commands: dict[str, CommandRecord] = {}
        self.remembered: dict[str, bytes | str] = {}
        self.minutes: dict[int, tuple[bytes, int]] = {}
        self.dropped = 0
        self._parts: deque[Columns] = deque()
        self._bytes = 0
        self._max_bytes = max_bytes
        self._max_records = max_records

    def __bool__(self) -> bool:
        return bool(self._parts or self.events or self.commands or self.remembered or self.minutes)

    def __len__(self) -> int:
        """Number of rows, events, commands and stack samples."""
        samples = sum(count for _, count in self.minutes.values())
        return sum(map(len, self._parts)) + len(self.events) + len(self.commands) + samples

    def add(self, columns: Columns) -> None:
        """Add rows that are newer than all earlier rows of their source."""
        self._parts.append(columns)
        self._bytes += columns.size_bytes
        while self._bytes > self._max_bytes and len(self._parts) > 1:
            oldest = self._parts.popleft()
            self._bytes -= oldest.size_bytes
            self.dropped += len(oldest)

    def add_event(self, event: Event) -> None:
        """Add an event. It replaces one of the same number."""
        self.events[event.seq] = event
        self._bound(self.events)

    def add_command(self, record: CommandRecord) -> None:
        """Add the newest state of a command."""
        self.commands.pop(record.id, None)
        self.commands[record.id] = record
        self._bound(self.commands)

    def add_minute(self, t: int, body: bytes, samples: int) -> None:
        """Add the encoded stack samples of the time up to the stamp `t`, and their number."""
        self.minutes[t] = body, samples
        if len(self.minutes) > MAX_MINUTES:
            self.dropped += self.minutes.pop(next(iter(self.minutes)))[1]

    def sources(self) -> Iterator[tuple[str, Columns]]:
        """Yield each source that has rows here, with all its rows as one Columns."""
        parts: dict[str, list[Columns]] = {}
        for part in self._parts:
            parts.setdefault(part.source, []).append(part)
        for source, found in parts.items():
            yield source, concatenate(source, found)

    def rows(self, source: str) -> list[Columns]:
        """Return the rows of one source, oldest first."""
        return [part for part in self._parts if part.source == source]

    def take_rows(self) -> list[Columns]:
        """Remove all rows and return them, oldest first."""
        taken = list(self._parts)
        self._parts.clear()
        self._bytes = 0
        return taken

    def clear(self) -> None:
        """Remove everything after a successful flush. The count of dropped items stays."""
        self.take_rows()
        self.clear_records()

    def clear_records(self) -> None:
        """Remove everything but rows."""
        self.events.clear()
        self.commands.clear()
        self.remembered.clear()
        self.minutes.clear()

    def _bound(self, records: dict[Key, Record]) -> None:
        if len(records) > self._max_records:
            del records[next(iter(records))]
            self.dropped += 1
