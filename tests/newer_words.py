"""Records as a newer hoptui may send them: enumerations with a value that this version does not know."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from hoptui.domain import enumerations

NEW = "of_tomorrow"
T = TypeVar("T", bound=msgspec.Struct)


def enumerated(kind: Any) -> Iterator[str]:
    """The names of all fields in a type that have an enumeration."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            if get_origin(field.type) is Literal:
                yield field.name
            yield from enumerated(field.type)
    for inner in get_args(kind):
        if not isinstance(inner, str):
            yield from enumerated(inner)


def newer(record: T, *names: str) -> T:
    """The record with the new value in every enumeration of these names, as this version decodes it."""
    kind = type(record)
    return enumerations.convert(_changed(msgspec.to_builtins(record), kind, frozenset(names)), kind)


def _changed(raw: Any, kind: Any, names: frozenset[str]) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(raw, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        found = {}
        for field in msgspec.structs.fields(kind):
            if field.encode_name in raw:
                value = raw[field.encode_name]
                new = field.name in names and get_origin(field.type) is Literal
                found[field.encode_name] = NEW if new else _changed(value, field.type, names)
        return raw | found
    if origin in (Union, UnionType):
        structs = [one for one in inner if isinstance(one, type) and issubclass(one, msgspec.Struct)]
        return _changed(raw, structs[0], names) if structs and raw is not None else raw
    if origin is tuple and isinstance(raw, list | tuple):
        return [_changed(item, inner[0], names) for item in raw]
    if origin is dict and isinstance(raw, dict):
        return {key: _changed(item, inner[1], names) for key, item in raw.items()}
    return raw
