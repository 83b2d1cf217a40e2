"""Ranges of numbers and kinds of values in messages and records. A peer or a file may hold anything.

Messages carry unsigned 64 bits, SQLite and the arrays of rows signed 64 bits. Stamps, epochs and other
counters are added up, so they have smaller ranges.
"""

from __future__ import annotations

import msgspec

from hoptui.domain.columns import Columns

INT64 = 1 << 63
MOST_STAMP = 1 << 62
"""Nanoseconds, in both directions: 146 years."""
MOST_COUNT = 1 << 53
"""Iterations, restarts, numbers of processes. A float64 holds it exactly."""
MOST_WALL = 1e11
"""Seconds since 1970 that a calendar can show."""
STAMPS = frozenset({"t", "settled", "start", "end", "last_t", "since", "wall_offset_ns"})
COUNTS = frozenset({"epoch", "step", "total", "pid", "started", "rank", "world", "version", "seq", "dropped"})

_ANY = (str, bool, bytes, Columns)
"""Values that have no range here."""


def check_ranges(value: object, name: str = "") -> None:
    """Check a message or a record with everything in it. Rows (Columns) are left out: see `columns.check`.

    Raises:
        ValueError: a number is out of the range of its field, or a value is of a kind that JSON lacks.
    """
    if value is None or isinstance(value, _ANY):
        return
    if isinstance(value, int):
        most = MOST_STAMP if name in STAMPS else MOST_COUNT if name in COUNTS else INT64 - 1
        least = -INT64 if most == INT64 - 1 else -most
        if not least <= value <= most:
            raise ValueError(f"{name or 'a number'} is out of range: {value}")
    elif isinstance(value, float):
        if name.endswith("wall") and not abs(value) <= MOST_WALL:
            raise ValueError(f"{name} is no time: {value}")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                check_ranges(key, "a key")
            check_ranges(item, name)
    elif isinstance(value, tuple | list | frozenset):
        for item in value:
            check_ranges(item, name)
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            item = getattr(value, field)
            if item is not None and type(item) not in _ANY:  # most fields: spares a call
                check_ranges(item, field)
    else:
        raise ValueError(f"{name or 'a value'} is a {type(value).__name__}")
