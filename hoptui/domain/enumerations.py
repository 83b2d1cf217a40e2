"""Values of enumerations that only a newer hoptui knows.

A newer peer, or the recording of one, may have a value that this version does not know. It becomes the text
"unknown: VALUE". So the rest of the message is kept, and users read what the value was.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec

T = TypeVar("T")
V = TypeVar("V")
PREFIX = "unknown: "
LONGEST = 60
_fields = functools.cache(msgspec.structs.fields)
"""Evaluates annotations, which takes half a millisecond for a message."""


def unknown(value: str) -> bool:
    """Return whether this is a value that only a newer hoptui knows."""
    return value.startswith(PREFIX)


class ByValue(dict[Any, V], Generic[V]):
    """What belongs to each value of an enumeration, with something for values of a newer hoptui.

    Args:
        known: the entries.
        other: makes the entry of a value that has none.
    """

    def __init__(self, known: dict[Any, V], other: Callable[[str], V]) -> None:
        super().__init__(known)
        self._other = other

    def __missing__(self, key: Any) -> V:
        return self._other(str(key))


def convert(raw: Any, kind: type[T]) -> T:
    """Build `kind` from dicts and lists, like msgspec.convert, and keep unknown values of enumerations.

    Raises:
        msgspec.ValidationError: `raw` is invalid in another way.
    """
    found: T = _converted(raw, kind)
    return found


def _converted(raw: Any, kind: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _value(raw, kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(raw, kind)
    if origin in (Union, types.UnionType):
        return _one_of(raw, inner)
    if origin is tuple and len(inner) == 2 and inner[1] is ... and isinstance(raw, list | tuple):
        return tuple(_converted(item, inner[0]) for item in raw)
    if origin is dict and isinstance(raw, dict):
        return {msgspec.convert(k, inner[0], strict=False): _converted(v, inner[1]) for k, v in raw.items()}
    return msgspec.convert(raw, kind, str_keys=True)


def _value(raw: Any, kind: Any) -> Any:
    if not isinstance(raw, str) or raw in get_args(kind):
        return msgspec.convert(raw, kind)
    return raw if unknown(raw) else f"{PREFIX}{raw[:LONGEST]}"


def _one_of(raw: Any, kinds: tuple[Any, ...]) -> Any:
    if raw is None and type(None) in kinds:
        return None
    if isinstance(raw, dict):
        structs = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
        tagged = [kind for kind in structs if kind.__struct_config__.tag == raw.get("type")]
        if len(structs) == 1 or tagged:
            return _struct(raw, (tagged or structs)[0])
    if isinstance(raw, str):
        for kind in kinds:
            if get_origin(kind) is Literal:
                return _value(raw, kind)
    united: Any = Union[kinds]  # noqa: UP007 - of a tuple
    return msgspec.convert(raw, united, str_keys=True)


def _struct(raw: Any, kind: type[msgspec.Struct]) -> msgspec.Struct:
    if not isinstance(raw, dict):
        raise msgspec.ValidationError(f"Expected `object`, got `{type(raw).__name__}`")
    given = {}
    for field in _fields(kind):
        if field.encode_name in raw:
            given[field.name] = _converted(raw[field.encode_name], field.type)
        elif field.required:
            raise msgspec.ValidationError(f"Object missing required field `{field.encode_name}`")
    return kind(**given)
