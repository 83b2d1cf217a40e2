"""Clock offsets of the boots that a recording spans.

Stamps are monotonic nanoseconds of one boot, and a recording may outlive a reboot of its node. Its clock is
the monotonic clock of the boot that began it.

Stamps of a later boot are stored shifted by the wall time between the two boots. The shift is larger if the
wall clock went back, so stored stamps always rise. One offset converts all of them to wall time.
"""

from __future__ import annotations

import sqlite3
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from hoptui.domain.columns import Columns
from hoptui.protocol.messages import CommandRecord, Event

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


def enter(db: sqlite3.Connection, boot: Boot) -> ClockShift:
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
    shift = int(known[0]) if known else 0 if first is None else _shift(db, boot, first)
    return ClockShift(shift, (boot.wall_offset_ns if first is None else first) + shift)


def _first_offset(db: sqlite3.Connection) -> int | None:
    first = db.execute("SELECT wall_offset_ns FROM boots ORDER BY id LIMIT 1").fetchone()
    return int(first[0]) if first else None


def _shift(db: sqlite3.Connection, boot: Boot, first_offset: int) -> int:
    (last,) = db.execute(
        "SELECT max(coalesce((SELECT max(t1) FROM blocks), 0), coalesce((SELECT max(t1) FROM arrivals), 0),"
        " coalesce((SELECT max(t) FROM events), 0))"
    ).fetchone()
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
