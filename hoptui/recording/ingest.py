"""Rows as they come in: one small blob a flush, cheap to write and to read, until there are enough of them
for a block."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from hoptui.domain.columns import Columns

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
