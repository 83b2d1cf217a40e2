"""Rows as they rest in a recording: one compressed blob a chunk, readable without this package (see the schema).

zlib at level 1 takes 0.8 ms for 512 rows of 26 GPU readings and leaves a third of them; transposing the bytes first
would leave 13 % less and is not worth a format that is harder to read.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from hoptui.wire.columns import Columns

ROWS = 512
SPAN_NS = 60_000_000_000
_LEVEL = 1
_names = msgspec.json.Decoder(tuple[str, ...])


class Chunk(NamedTuple):
    """A row of the table `chunks`, without its id, source and seal."""

    t0: int
    t1: int
    rows: int
    names: str
    body: bytes


def encode(columns: Columns) -> Chunk:
    """At least one row as a chunk."""
    times = columns.times()
    body = zlib.compress(b"".join((columns.t, columns.step, *columns.values)), _LEVEL)
    return Chunk(times[0], times[-1], len(times), msgspec.json.encode(columns.names).decode(), body)


def decode(source: str, chunk: Chunk, wanted: Collection[str] = ()) -> Columns:
    """The rows of a chunk, with the `wanted` names alone (none: all) as far as it has them.

    Raises:
        ValueError: the chunk is damaged.
    """
    try:
        names = _names.decode(chunk.names)
        raw = zlib.decompress(chunk.body)
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(str(error)) from None
    width = 8 * chunk.rows
    if len(raw) != width * (2 + len(names)):
        raise ValueError(f"a chunk of {chunk.rows} rows has {len(raw)} bytes for {len(names)} names")
    whole = Columns(
        source=source,
        names=names,
        t=raw[:width],
        step=raw[width : 2 * width],
        values=tuple(raw[i * width : (i + 1) * width] for i in range(2, 2 + len(names))),
    )
    return select(whole, wanted)


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


def is_due(rows: int, t0: int, t1: int) -> bool:
    """Whether so many rows, or rows of so long a time, are sealed."""
    return rows >= ROWS or t1 - t0 >= SPAN_NS


def cut(columns: Columns) -> list[Columns]:
    """Rows in chunks of equal size, at least ROWS and less than twice as many in each if there are as many at all."""
    n = len(columns)
    count = max(1, n // ROWS)
    edges = [n * i // count for i in range(count + 1)]
    return [columns.slice(a, b) for a, b in itertools.pairwise(edges)]
