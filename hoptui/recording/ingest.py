"""Rows as they come in, in memory and on disk.

The buffer holds what is not on disk yet. It is bounded, so a full disk never fills memory too. A flush writes
one small blob, cheap to write and to read; enough of them become a block.
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
    """At least one row as they came."""
    times = columns.times()
    body = zlib.compress(b"".join((columns.t, columns.step, *columns.values)), _LEVEL)
    return Arrival(times[0], times[-1], len(times), encode_names(columns.names), body)


def decode(source: str, arrival: Arrival) -> Columns:
    """The rows again.

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
    """Names as the file keeps them."""
    return msgspec.json.encode(names).decode()


def decode_names(text: str) -> tuple[str, ...]:
    """The inverse of `encode_names`. Raises ValueError where it is damaged."""
    try:
        return _names.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def select(columns: Columns, wanted: Collection[str]) -> Columns:
    """The same rows with the `wanted` names alone (none: all) as far as they are there."""
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
