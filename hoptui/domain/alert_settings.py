"""The table `[alerts]` of `config.toml`: its values, and a fact for each that cannot be used. No I/O."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from hoptui.domain.alerts import KINDS, AlertTarget
from hoptui.domain.facts import Fact, fact

TABLE = "alerts"
FORMATS = ("json", "ntfy", "slack", "discord")
OSC = (9, 777)
MOST_TARGETS = 16
TYPES = {
    "webhook": ("format", "url", "url_env", "url_file", "token", "token_env", "token_file", "headers"),
    "command": ("command",),
}
"""The keys of a target, by its type."""


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of alerts.

    `on` are the kinds that fire. `gpu_idle_minutes` is how long a GPU idles before an alert. `most_per_hour`
    limits all alerts of a node. `bell` and `osc` (0: none) are how an open dashboard shows an alert.
    """

    on: frozenset[str] = frozenset(KINDS)
    gpu_idle_minutes: float = 10.0
    most_per_hour: int = 20
    bell: bool = False
    osc: int = 0
    targets: tuple[AlertTarget, ...] = ()


class Problem(NamedTuple):
    """An entry that is not used. `key` is its name; `target` the number of its target from 1, 0 for none."""

    key: str
    what: Fact
    target: int = 0


def _kinds(value: object) -> frozenset[str]:
    if not isinstance(value, list) or not all(each in KINDS for each in value):
        raise ValueError(f"a list of {', '.join(KINDS)}")
    return frozenset(value)


def _minutes(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.05 <= value <= 1440:
        raise ValueError("minutes between 0.05 and 1440")
    return float(value)


def _per_hour(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1000:
        raise ValueError("a whole number between 1 and 1000")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _osc(value: object) -> int:
    if isinstance(value, bool) or value not in OSC:
        raise ValueError("9 or 777")
    return int(str(value))


READERS: Mapping[str, Callable[[object], object]] = {
    "on": _kinds,
    "gpu_idle_minutes": _minutes,
    "most_per_hour": _per_hour,
    "bell": _flag,
    "osc": _osc,
}
"""Each returns the value of a key.

Raises:
    ValueError: the value is wrong. The text is what the key takes.
"""


def alert_settings(table: object) -> tuple[AlertSettings, tuple[Problem, ...]]:
    """Return the settings of a table of TOML, and what in it is not used. Never raises."""
    if table is None:
        return AlertSettings(), ()
    if not isinstance(table, dict):
        return AlertSettings(), (Problem("", fact("alerts.no_table")),)
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, value in table.items():
        if key == "targets":
            values[key] = _targets(value, problems)
        elif (read := READERS.get(key)) is None:
            problems.append(Problem(key, _unknown(key, (*READERS, "targets"))))
        else:
            try:
                values[key] = read(value)
            except ValueError as error:
                problems.append(Problem(key, fact("alerts.wrong_value", key=key, wanted=str(error))))
    return AlertSettings(**values), tuple(problems)


def _targets(value: object, problems: list[Problem]) -> tuple[AlertTarget, ...]:
    if not isinstance(value, list):
        problems.append(Problem("targets", fact("alerts.no_targets_table")))
        return ()
    if len(value) > MOST_TARGETS:
        problems.append(Problem("targets", fact("alerts.too_many_targets", most=MOST_TARGETS)))
    found = (_target(each, number, problems) for number, each in enumerate(value[:MOST_TARGETS], 1))
    return tuple(each for each in found if each is not None)


def _target(table: object, number: int, problems: list[Problem]) -> AlertTarget | None:
    """Return a target, None if it cannot be used. An unknown key is left out."""

    def wrong(key: str, what: Fact) -> None:
        problems.append(Problem(key, what, number))

    kind = table.get("type") if isinstance(table, dict) else None
    known = TYPES.get(kind) if isinstance(kind, str) else None
    if not isinstance(table, dict) or known is None:
        wrong("type", fact("alerts.wrong_value", key="type", wanted=" or ".join(TYPES)))
        return None
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key == "type":
            continue
        if key not in known:
            wrong(key, _unknown(key, known))
        elif why := _value_problem(key, value):
            wrong(key, fact("alerts.wrong_value", key=key, wanted=why))
            return None
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    lacking = _lacking(str(kind), values)
    if lacking:
        wrong(lacking, fact("alerts.lacking", key=lacking))
        return None
    return AlertTarget(number=number, type=str(kind), **values)


def _value_problem(key: str, value: object) -> str:
    """Return what a key of a target takes if this value is not that, else ""."""
    if key == "format":
        return "" if value in FORMATS else f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
    if key == "headers":
        items = value.items() if isinstance(value, dict) else [(0, 0)]
        fits = all(isinstance(each, str) and _header(name, each) for name, each in items)
        return "" if fits else "a table of names and texts of one line"
    if key == "command":
        fits = isinstance(value, list) and bool(value) and all(_text(each) for each in value)
        return "" if fits else "a list of texts: the program and its arguments"
    return "" if _text(value) else "a text"


def _text(value: object) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _header(name: object, value: str) -> bool:
    return isinstance(name, str) and name.isascii() and name.isprintable() and value.isprintable()


def _lacking(kind: str, values: Mapping[str, object]) -> str:
    if kind == "command":
        return "" if "command" in values else "command"
    return "" if {"url", "url_env", "url_file"} & values.keys() else "url"


def _unknown(key: str, known: Iterable[str]) -> Fact:
    like = difflib.get_close_matches(key, list(known), n=1)
    return fact("alerts.unknown_key", key=key, like=like[0] if like else "")
