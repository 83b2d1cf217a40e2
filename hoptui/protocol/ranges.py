"""Ranges of numbers and kinds of values in messages and records. A peer or a file may hold anything.

Messages carry unsigned 64 bits, SQLite and the arrays of rows signed 64 bits. Stamps, epochs and other
counters are added up, so they have smaller ranges.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args, get_origin

import msgspec

from hoptui.domain.columns import Columns

INT64 = 1 << 63
MOST_STAMP = 1 << 62
"""Nanoseconds, in both directions: 146 years."""
MOST_COUNT = 1 << 53
"""Iterations, restarts, numbers of processes. A float64 holds it exactly."""
MOST_WALL = 1e11
"""Seconds since 1970 that a calendar can show."""
STAMPS = frozenset({"t", "settled", "start", "end", "last_t", "since", "wall_offset_ns", "began", "ended"})
COUNTS = frozenset({"epoch", "step", "total", "pid", "started", "rank", "world", "version", "seq", "dropped"})

_ANY = (str, bool, bytes)
"""Values that have no range here."""


def check_ranges(value: object, name: str = "") -> None:
    """Check a decoded message or record with everything in it.

    Decoding has checked the types of fields, and `columns.check` the form of rows.

    Raises:
        ValueError: a number is out of the range of its field, or a value is of a kind that JSON lacks.
    """
    if value is None or isinstance(value, _ANY):
        return
    if isinstance(value, Columns):
        _check_rows(value)
    elif isinstance(value, msgspec.Struct):
        numbers, others = _fields(type(value))
        for field, least, most in numbers:
            if not least <= (number := getattr(value, field)) <= most:
                raise ValueError(f"{field} is out of range: {number}")
        for field in others:
            check_ranges(getattr(value, field), field)
    elif isinstance(value, int):
        least, most = _range(name)
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
    else:
        raise ValueError(f"{name or 'a value'} is a {type(value).__name__}")


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[tuple[str, int, int], ...], tuple[str, ...]]:
    """Return the fields that are whole numbers, each with its range, and others that have to be checked."""
    fields = msgspec.structs.fields(kind)
    numbers = tuple((field.name, *_range(field.name)) for field in fields if field.type is int)
    others = tuple(
        f.name for f in fields if f.type is not int and (f.name.endswith("wall") or not _unbounded(f.type))
    )
    return numbers, others


def _range(name: str) -> tuple[int, int]:
    """Return the least and the greatest whole number that a field may have."""
    if name in STAMPS:
        return -MOST_STAMP, MOST_STAMP
    return (-MOST_COUNT, MOST_COUNT) if name in COUNTS else (-INT64, INT64 - 1)


def _unbounded(kind: Any) -> bool:
    """Return whether any value of a type is in range, whatever its field is, except for times of day."""
    if kind in (*_ANY, float, type(None), ...) or get_origin(kind) is Literal:
        return True
    return bool(of := get_args(kind)) and all(map(_unbounded, of))


def _check_rows(rows: Columns) -> None:
    if not len(rows):
        return
    times, steps = rows.times(), rows.steps()
    if times[0] < -MOST_STAMP or times[-1] > MOST_STAMP:
        raise ValueError(f"a stamp of {rows.source[:40]} is out of range")
    if min(steps) < -MOST_COUNT or max(steps) > MOST_COUNT:
        raise ValueError(f"an iteration of {rows.source[:40]} is out of range")
