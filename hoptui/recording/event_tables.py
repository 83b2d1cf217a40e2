"""The tables that hold what is told rather than measured: events, commands, and values the daemon
remembers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from hoptui.protocol.messages import CommandRecord, Event
from hoptui.recording.database import RecordingError, errors_named

Record = TypeVar("Record", Event, CommandRecord)


class Records:
    """The records of one file, with stamps as stored. Who writes does it within a transaction of their
    own."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path = path
        self._db = db

    def add_events(self, events: Iterable[Event]) -> None:
        """One with the same `seq` is replaced."""
        self._db.executemany(
            "INSERT OR REPLACE INTO events (seq, t, record) VALUES (?, ?, ?)",
            [(e.seq, e.t, _json(e)) for e in events],
        )

    def add_commands(self, commands: Iterable[CommandRecord]) -> None:
        """One with the same `id` is replaced."""
        self._db.executemany(
            "INSERT OR REPLACE INTO commands (id, seq, record) VALUES (?, ?, ?)",
            [(c.id, c.seq, _json(c)) for c in commands],
        )

    def remember(self, values: Mapping[str, bytes | str]) -> None:
        """A value of the same key is replaced."""
        self._db.executemany("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", values.items())

    def events(self, after: int) -> list[Event]:
        """Those numbered above `after`."""
        return self._found("SELECT record FROM events WHERE seq > ?", after, Event)

    def commands(self, after: int) -> list[CommandRecord]:
        """Those whose newest state is numbered above `after`."""
        return self._found("SELECT record FROM commands WHERE seq > ?", after, CommandRecord)

    def recall(self, key: str) -> bytes | str | None:
        """A remembered value, None if there is none."""
        with errors_named(self._path):
            found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        value: bytes | str | None = found and found[0]
        return value

    def span(self) -> tuple[int, int] | None:
        """The first and the last stamp of the events."""
        with errors_named(self._path):
            first, last = self._db.execute("SELECT min(t), max(t) FROM events").fetchone()
        return None if first is None else (first, last)

    def _found(self, statement: str, after: int, kind: type[Record]) -> list[Record]:
        with errors_named(self._path):
            found = self._db.execute(statement, (after,)).fetchall()
        try:
            return [msgspec.json.decode(text, type=kind) for (text,) in found]
        except msgspec.DecodeError as error:
            raise RecordingError(f"{self._path} is damaged: {error}") from None


def _json(record: Event | CommandRecord) -> str:
    return msgspec.json.encode(record).decode()
