"""Templates of sentences: `{knob} is {value:value} since version {version}`."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hoptui.domain.facts import Fact, nested
from hoptui.domain.knobs import shown
from hoptui.presentation import numbers

Fields = Mapping[str, Any]
Write = Callable[[Fact], str]
"""Makes the sentence of a fact that is among the fields of another one."""
Entry = str | Callable[[Fields, Write], str]
"""A sentence of the catalogue: a template, or a function of the fields."""


def changes(field: Sequence[Mapping[str, Any]]) -> str:
    """`micro_batch 32 → 64, grad_accum 16 → 8`."""
    return ", ".join(f"{one['knob']} {shown(one['before'])} → {shown(one['value'])}" for one in field)


def facts(field: Sequence[object], write: Write, between: str = "; ") -> str:
    """The sentences of a list of facts."""
    return between.join(filter(None, (write(one) for one in map(nested, field) if one is not None)))


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "value": shown,  # of a knob: 1 024, 0.0003, 'bf16'
    "values": lambda field: ", ".join(map(shown, field)),
    "names": ", ".join,
    "and": " and ".join,
    "or": " or ".join,
    "changes": changes,
    "percent": numbers.percent,  # of a share: 6.1 %
    "gain": lambda ratio: numbers.percent(ratio, signed=True, decimals=1),
    "count": numbers.grouped,  # 1 204
    "gib": lambda size: f"{size / (1 << 30):.1f} GiB",
    "duration": numbers.duration,  # 2 m 20 s
    "quoted": repr,
}
"""The formats of templates, besides those of Python's `format`."""


def fill(template: str, fields: Mapping[str, Any], write: Write) -> str:
    """Return a template with its fields. `write` makes the sentences of facts among them.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: the fields do not fit the template.
    """
    return _Template(write).vformat(template, (), fields)


def names(template: str) -> frozenset[str]:
    """Return the fields that a template needs."""
    return frozenset(name for _, name, _, _ in string.Formatter().parse(template) if name)


class _Template(string.Formatter):
    def __init__(self, write: Write) -> None:
        self._write = write

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs[field_name], field_name  # no attributes or items: fields come from other processes

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return numbers.UNKNOWN
        if format_spec == "fact":
            inner = nested(value)
            return self._write(inner) if inner is not None else numbers.UNKNOWN
        if format_spec == "facts":
            return facts(value, self._write)
        write = FORMATS.get(format_spec)
        return write(value) if write is not None else format(value, format_spec)
