"""Columns of the table of runs, and its filter, order and groups. Pure."""

from __future__ import annotations

import difflib
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from hoptui.model.run_table import MetricSummary, RunRow
from hoptui.presentation import numbers

Cell = str | float | bool | tuple[str, ...] | None
"""A value in a column; None is unknown."""

FIXED: Mapping[str, Callable[[RunRow], Cell]] = {
    "name": lambda row: row.name,
    "run": lambda row: row.run,
    "state": lambda row: row.state,
    "started": lambda row: row.began,
    "ended": lambda row: row.ended,
    "duration": lambda row: row.lasted_s,
    "throughput": lambda row: row.rate.last if row.rate is not None else None,
    "metric": lambda row: row.learning[0].last if row.learning else None,
    "tag": lambda row: row.tags,
    "verdict": lambda row: row.diagnosis.verdict if row.diagnosis is not None else None,
}
"""The columns that every run has. Others are names of its configuration, its knobs or its metrics."""
ALIASES = {"id": "run", "tags": "tag", "started_at": "started"}
CONFIG, BEST, LAST = "config.", "best.", "last."
MOST_NAMED = 24
"""Columns that a sentence names."""


def cell(row: RunRow, column: str) -> Cell:
    """Return the value of a run in a column.

    A name is looked up among the fixed columns, the configuration (also by its last part: `lr` for
    `optimizer.lr`, if that is unique), the knobs and the metrics. `config.`, `last.` and `best.` choose one
    of them.
    """
    column = ALIASES.get(column, column)
    if column in FIXED:
        return FIXED[column](row)
    metrics = {metric.name: metric for metric in row.metrics}
    for prefix, value in _PARTS.items():
        found = metrics.get(column.removeprefix(prefix)) if column.startswith(prefix) else None
        if found is not None:
            return value(found)
    configured = _configured(row.config, column.removeprefix(CONFIG))
    if configured is not None or column.startswith(CONFIG):
        return configured
    if column in row.knobs:
        return row.knobs[column]
    return metrics[column].last if column in metrics else None


_PARTS: Mapping[str, Callable[[MetricSummary], float | None]] = {
    BEST: lambda metric: metric.best,
    LAST: lambda metric: metric.last,
}


def _configured(config: Mapping[str, Any], name: str) -> Cell:
    if name in config:
        return _as_cell(config[name])
    ends = [key for key in config if key.endswith(f".{name}")]
    return _as_cell(config[ends[0]]) if len(ends) == 1 else None


def _as_cell(value: object) -> Cell:
    if value is None or isinstance(value, str | float | int):
        return value
    return tuple(map(str, value)) if isinstance(value, list | tuple) else str(value)


def named_columns(rows: Iterable[RunRow]) -> list[str]:
    """Return all columns that some run has, the fixed ones first."""
    found = dict.fromkeys(FIXED)
    for row in rows:
        found.update(dict.fromkeys((*row.config, *row.knobs)))
        for metric in row.metrics:
            found.update(dict.fromkeys((metric.name, f"{BEST}{metric.name}")))
    return list(found)


def unknown_columns(rows: Sequence[RunRow], columns: Iterable[str]) -> list[str]:
    """Return a sentence for each column in which no run has a value, because it may be typed wrongly."""
    found: list[str] = []
    for column in columns:
        if any(cell(row, column) is not None for row in rows):
            continue
        every = named_columns(rows)
        if rows and column not in every:
            near = difflib.get_close_matches(column, every, n=1)
            meant = f" (did you mean {numbers.clean(near[0], 60)}?)" if near else f"; columns: {_some(every)}"
            found.append(f"no run has a value of {numbers.clean(column, 60)}{meant}")
    return found


def _some(columns: Sequence[str]) -> str:
    """Return the names of columns for a sentence, without the best values of metrics."""
    names = [numbers.clean(name, 30) for name in columns if not name.startswith(BEST)]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def differing(rows: Sequence[RunRow]) -> list[str]:
    """Return the names of the configuration whose values differ between runs, in order of first appearance.

    A run without a name differs from one that has it.
    """
    names = dict.fromkeys(name for row in rows for name in row.config)
    return [name for name in names if len({repr(row.config.get(name)) for row in rows}) > 1]


class WrongSelection(ValueError):  # noqa: N818 - says what is the case
    """A filter cannot be read. The text is one sentence."""


_CONDITION = re.compile(r"([^=!<>~]+)(!=|<=|>=|=|<|>|~)(.*)", re.DOTALL)
_ORDERED: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIMES = ("started", "ended")


class Condition(NamedTuple):
    """`column`, how it is compared (`=`, `!=`, `<`, `<=`, `>`, `>=`, `~`), and with what.

    `~` finds a part of a text. Case is ignored. An unknown value is `!=` to everything and nothing else.
    """

    column: str
    how: str
    text: str

    def holds(self, row: RunRow) -> bool:
        """Return whether a run is selected."""
        value = cell(row, self.column)
        if isinstance(value, tuple):
            return self._of_several(value)
        if value is None:
            return self.how == "!="
        if self.how == "~":
            return self.text.lower() in _word(value)
        if self.how in _ORDERED:
            return self._ordered(value)
        return self._equal(value) is (self.how == "=")

    def _of_several(self, values: tuple[str, ...]) -> bool:
        if self.how == "!=":
            return not any(map(self._equal, values))
        return any(self._replace(column="").holds_of(value) for value in values)

    def holds_of(self, value: str) -> bool:
        """Return whether one word of several is selected."""
        if self.how == "~":
            return self.text.lower() in value.lower()
        return self._ordered(value) if self.how in _ORDERED else self._equal(value)

    def _equal(self, value: str | float | bool) -> bool:
        wanted = self._number()
        if isinstance(value, int | float) and not isinstance(value, bool) and wanted is not None:
            return value == wanted
        return _word(value) == self.text.lower()

    def _ordered(self, value: str | float | bool) -> bool:
        wanted, known = self._number(), _as_number(value)
        return wanted is not None and known is not None and _ORDERED[self.how](known, wanted)

    def _number(self) -> float | None:
        """The operand as a number: a time of day in seconds since 1970, a duration in seconds."""
        if self.column in _TIMES:
            return _as_time(self.text)
        if self.column == "duration" and self.text[-1:] in _SECONDS:
            number = _as_number(self.text[:-1])
            return number * _SECONDS[self.text[-1]] if number is not None else None
        return _as_number(self.text)


def _word(value: str | float | bool) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _as_number(value: str | float | bool) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _as_time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return _as_number(text)


class Selection(NamedTuple):
    """Which runs a table has, in which order and in which groups.

    `conditions` all hold. `sort` is a column, "" for the newest first; `falling`: the greatest value first.
    `group` is a column, "" for no groups.
    """

    conditions: tuple[Condition, ...] = ()
    sort: str = ""
    falling: bool = False
    group: str = ""

    @property
    def columns(self) -> list[str]:
        """The columns that it names."""
        names = [*(one.column for one in self.conditions), self.sort, self.group]
        return [name for name in dict.fromkeys(names) if name]

    def of(self, rows: Iterable[RunRow]) -> list[tuple[str, list[RunRow]]]:
        """Return the selected runs by group, in the order of the first run of each; unknown values last."""
        found = [row for row in rows if all(one.holds(row) for one in self.conditions)]
        if self.sort:
            known = [row for row in found if cell(row, self.sort) not in (None, ())]
            unknown = [row for row in found if cell(row, self.sort) in (None, ())]
            known.sort(key=lambda row: _order(cell(row, self.sort)), reverse=self.falling)
            found = [*known, *unknown]
        groups: dict[str, list[RunRow]] = {}
        for row in found:
            groups.setdefault(group_text(cell(row, self.group)) if self.group else "", []).append(row)
        return list(groups.items())


def group_text(value: Cell) -> str:
    """Return the name of a group: what its runs have in a column, "" where that is unknown."""
    if value is None:
        return ""
    return (
        " ".join(value)
        if isinstance(value, tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _order(value: Cell) -> tuple[bool, float, str]:
    """Numbers before texts."""
    if isinstance(value, int | float):
        return False, float(value), ""
    return True, 0.0, group_text(value).lower()


def conditions(typed: str) -> tuple[Condition, ...]:
    """Parse `tag=baseline lr<0.001 name~ppo`; a word without a comparison is a part of the name.

    Raises:
        WrongSelection: a quotation mark is not closed, or a comparison has no operand.
    """
    try:
        words = shlex.split(typed)
    except ValueError:
        raise WrongSelection(f"a quotation mark in {typed!r} is not closed") from None
    return tuple(map(_condition, words))


def _condition(word: str) -> Condition:
    found = _CONDITION.fullmatch(word)
    if found is None:
        if word[:1] in "=!<>~":
            raise WrongSelection(f"{word!r} compares no column; write COLUMN=VALUE, such as tag=baseline")
        return Condition("name", "~", word)
    column, how, text = found.groups()
    if not text:
        raise WrongSelection(f"{word!r} compares with nothing; write COLUMN{how}VALUE")
    return Condition(ALIASES.get(column, column), how, text)


def ordered_by(typed: str) -> tuple[str, bool]:
    """Parse a column to sort by: `-lr` is the greatest first. Returns the column, and whether it falls."""
    column = typed.removeprefix("-")
    return ALIASES.get(column, column), typed.startswith("-")
