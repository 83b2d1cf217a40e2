"""What has been told to a recording and is not on disk yet: bounded, so that a full disk never fills memory
too."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypeVar

from hoptui.domain.columns import Columns, concatenate
from hoptui.protocol.messages import CommandRecord, Event

MAX_BYTES = 8 << 20
MAX_RECORDS = 4096

Key = TypeVar("Key", int, str)
Record = TypeVar("Record", Event, CommandRecord)


class Pending:
    """Rows, events, commands and remembered values waiting for a flush.

    Beyond `max_bytes` of rows, and `max_records` events or commands, the oldest go and are counted in
    `dropped`.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_records: int = MAX_RECORDS) -> None:
        self.events: dict[int, Event] = {}
        self.commands: dict[str, CommandRecord] = {}
        self.remembered: dict[str, bytes | str] = {}
        self.dropped = 0
        self._parts: deque[Columns] = deque()
        self._bytes = 0
        self._max_bytes = max_bytes
        self._max_records = max_records

    def __bool__(self) -> bool:
        return bool(self._parts or self.events or self.commands or self.remembered)

    def add(self, columns: Columns) -> None:
        """Rows newer than all of their source's so far."""
        self._parts.append(columns)
        self._bytes += _size(columns)
        while self._bytes > self._max_bytes and len(self._parts) > 1:
            oldest = self._parts.popleft()
            self._bytes -= _size(oldest)
            self.dropped += len(oldest)

    def add_event(self, event: Event) -> None:
        """A new event, or a new text for one of the same number."""
        self.events[event.seq] = event
        self._bound(self.events)

    def add_command(self, record: CommandRecord) -> None:
        """The newest state of a command."""
        self.commands.pop(record.id, None)
        self.commands[record.id] = record
        self._bound(self.commands)

    def sources(self) -> Iterator[tuple[str, Columns]]:
        """Each source that has rows here, with all of them in one piece."""
        parts: dict[str, list[Columns]] = {}
        for part in self._parts:
            parts.setdefault(part.source, []).append(part)
        for source, found in parts.items():
            yield source, concatenate(source, found)

    def rows(self, source: str) -> list[Columns]:
        """The rows of one source, oldest first."""
        return [part for part in self._parts if part.source == source]

    def clear(self) -> None:
        """Forget everything but the count of what was dropped: it is on disk."""
        self._parts.clear()
        self._bytes = 0
        self.events.clear()
        self.commands.clear()
        self.remembered.clear()

    def _bound(self, records: dict[Key, Record]) -> None:
        if len(records) > self._max_records:
            del records[next(iter(records))]
            self.dropped += 1


def _size(columns: Columns) -> int:
    return len(columns.t) * (2 + len(columns.values))
