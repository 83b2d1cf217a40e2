"""Records as JSON text that keeps every value.

JSON has no NaN and no infinity, and msgspec writes null for them. A knob whose value has diverged reads back
NaN, and a null there made its recording unreadable. So they are stored as `{"$float": "nan"}`, `"inf"` or
`"-inf"`.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec

from hoptui.domain import enumerations
from hoptui.protocol.ranges import check_ranges

T = TypeVar("T")
MARK = "$float"
_NULLED = frozenset({"value", "before"})
"""Fields of knobs and side effects that older versions stored as null if they were not finite."""


def encode(value: object) -> bytes:
    """Encode a message or a record."""
    return msgspec.json.encode(_marked(msgspec.to_builtins(value)))


def decode(raw: bytes | str, kind: type[T]) -> T:
    """Decode what `encode` returned, now or in an older version.

    Raises:
        ValueError: it is damaged, or a number in it is out of range.
        RecursionError: it is nested too deeply.
    """
    marked = MARK in raw if isinstance(raw, str) else MARK.encode() in raw
    try:
        found = msgspec.convert(plain(raw), kind, str_keys=True) if marked else _decoded(raw, kind)
    except msgspec.ValidationError:
        found = enumerations.convert(_repaired(plain(raw)), kind)
    check_ranges(found)
    return found


def plain(raw: bytes | str) -> Any:
    """Decode to dicts and lists. Raises as `decode`."""
    return _restored(msgspec.json.decode(raw))


def _decoded(raw: bytes | str, kind: type[T]) -> T:
    return msgspec.json.decode(raw, type=kind)


def _marked(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else {MARK: str(value)}
    if isinstance(value, dict):
        return {key: _marked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(item) for item in value]
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and value.get(MARK) in ("nan", "inf", "-inf"):
            return float(value[MARK])
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return value


def _repaired(value: Any, inside: str = "") -> Any:
    """Replace null by NaN in the fields of knobs and side effects that cannot be null."""
    if isinstance(value, dict):
        return {
            key: math.nan
            if item is None and key in _NULLED and inside in ("knobs", "followed", "changes")
            else _repaired(item, key)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_repaired(item, inside) for item in value]
    return value
