"""Statements as data: a code and its fields. `hoptui.presentation.sentences` makes the sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Fact(msgspec.Struct, frozen=True):
    """A statement or an event, without words.

    `code` is stable: recordings keep it for years. `fields` are JSON values: numbers in SI units, shares
    between 0 and 1, names, and other facts as `{"code": …, "fields": …}`.
    """

    code: str
    fields: dict[str, Any] = {}


def fact(code: str, /, **fields: Any) -> Fact:
    """Return a fact. Structs among the fields, such as `Change` or another `Fact`, become mappings.

    Raises:
        TypeError: a field is of a type that no message can carry.
    """
    return Fact(code, {name: _plain(msgspec.to_builtins(value)) for name, value in fields.items()})


def _plain(value: Any) -> Any:
    """Lists for tuples, as a message brings them."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value


def nested(field: object) -> Fact | None:
    """Return the fact that a field holds, None if it holds something else."""
    if not isinstance(field, Mapping):
        return None
    code, fields = field.get("code"), field.get("fields", {})
    return Fact(code, fields) if isinstance(code, str) and isinstance(fields, dict) else None


LONGEST_ERROR = 1000
"""Maximum characters of an exception's text. A compiler's text can exceed the limit of a message."""


def clean_text(text: object, most: int) -> str:
    """Return a text as valid Unicode of at most `most` characters. Lone surrogates become `?`."""
    return str(text).encode("utf-8", "replace").decode()[:most]


def refusal_text(error: Exception) -> str:
    """Return what a setter says that refuses a value: the text alone of a `ValueError` or a `MemoryError`,
    which is a sentence for users. Other exceptions are faults and keep their type, as in `exception_text`."""
    text = str(error)
    refused = isinstance(error, (ValueError, MemoryError)) and not isinstance(error, UnicodeError)
    return clean_text(text, LONGEST_ERROR) if text and refused else exception_text(error)


def exception_text(error: BaseException) -> str:
    """Return `ValueError: no`, or only the type if the exception has no text."""
    text = str(error)
    return clean_text(f"{type(error).__name__}: {text}" if text else type(error).__name__, LONGEST_ERROR)
