"""New rows, in memory and on disk.

The buffer holds what is not on disk yet. It is bounded, so a full disk never fills memory. A flush writes one
small blob, cheap to write and to read. Enough blobs become a block.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from hoptui.domain.columns import Columns, concatenate
from hoptui.protocol.messages import CommandRecord, Event

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
    try:
        raw = zlib.decompress(arrival.body)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    width = 8 * arrival.rows
    if len(raw) != width * (2 + len(names)):
        raise ValueError(f"{arrival.rows} rows have {len(raw)} bytes for {len(names)} names")
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
        return _names.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


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

Key = TypeVar("Key", int, str)
Record = TypeVar("Record", Event, CommandRecord)


class Pending:
    """Rows, events, commands and remembered values that wait for a flush.

    Beyond `max_bytes` of rows, and `max_records` events or commands, the oldest are dropped and counted in
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
        """Add rows that are newer than all earlier rows of their source."""
        self._parts.append(columns)
        self._bytes += _size(columns)
        while self._bytes > self._max_bytes and len(self._parts) > 1:
            oldest = self._parts.popleft()
            self._bytes -= _size(oldest)
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

    def clear(self) -> None:
        """Remove everything after a successful flush. The count of dropped items stays."""
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
