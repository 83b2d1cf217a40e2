"""The text of the runs screen: the table of runs in the columns that fit. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hoptui.model import run_cells
from hoptui.model.run_selection import Selection, cell, differing, named_columns
from hoptui.model.run_table import RunRow
from hoptui.presentation import numbers
from hoptui.tui.components.header import INKS
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import GAP as FILL
from hoptui.tui.styled_text import Line, Span

MARK, CURSOR = "✓ ", "› "
MARGIN, GAP = 4, 2
MOST_MARKED = 8
"""Runs that the charts compare at most."""
MOST_CELLS, MOST_METRIC, LEAST_NAME = 24, 40, 8
MOST_COLUMNS = 8
"""Lines of the names of columns."""


@dataclass
class TableState:
    """What a person has chosen in the table: it outlives the screen. `typed` is the filter as typed."""

    selection: Selection = field(default_factory=Selection)
    typed: str = ""
    marked: list[str] = field(default_factory=list)

    def mark(self, run: str) -> str:
        """Mark a run, or unmark it; returns a sentence on why that is impossible."""
        if run in self.marked:
            self.marked.remove(run)
        elif len(self.marked) >= MOST_MARKED:
            return f"charts compare at most {MOST_MARKED} runs"
        else:
            self.marked.append(run)
        return ""


class TableColumn(NamedTuple):
    """A column: its name in the head, what it shows of a run, and the cells of it with the gap after it."""

    name: str
    text: Callable[[RunRow], str]
    width: int
    right: bool = False


def columns(rows: Sequence[RunRow], selection: Selection, width: int) -> list[TableColumn]:
    """The columns that fit: the group and those of the order and filter first, the tags last.

    Names of the configuration are shown as far as they differ between the runs.
    """
    chosen = [name for name in selection.columns if name not in _NAMED]
    ends = tuple(f".{name}" for name in chosen)
    names = [*chosen, *(name for name in differing(rows) if not f".{name}".endswith(ends))]
    configured = [_column(rows, name, _configured(name)) for name in names]
    state, name, started, lasted, rate, metric, verdict, tags = (
        _column(rows, title, text, most=most, right=right) for title, text, most, right in _FIXED
    )
    group = _NAMED.get(selection.group)
    by_group = [one for one in (state, started, lasted, verdict, tags) if one.name == group]
    order = [*by_group, metric, rate, started, *configured, lasted, verdict, tags]
    left = width - MARGIN - state.width - max(name.width, LEAST_NAME + GAP)
    fitting = {state.name, name.name}
    for column in order:
        if column.name not in fitting and column.width <= left:
            fitting.add(column.name)
            left -= column.width
    shown = [state, name, started, lasted, rate, metric, *configured, verdict, tags]
    found = [column for column in shown if column.name in fitting]
    first = [column for column in found if selection.group and column.name in (group, selection.group)]
    return [*first, *(column for column in found if column not in first)]


_FIXED: tuple[tuple[str, Callable[[RunRow], str], int, bool], ...] = (
    ("state", run_cells.state, MOST_CELLS, False),
    ("name", run_cells.name, run_cells.MOST, False),
    ("started", lambda row: run_cells.started(row)[:16], MOST_CELLS, False),
    ("duration", run_cells.lasted, MOST_CELLS, True),
    ("throughput", run_cells.throughput, MOST_CELLS, True),
    ("metric", run_cells.metric, MOST_METRIC, False),
    ("verdict", run_cells.verdict, MOST_CELLS, False),
    ("tags", run_cells.tags, MOST_METRIC, False),
)
_NAMED = {name: name for name, _, _, _ in _FIXED} | {"tag": "tags", "run": "name"}
"""The columns of the table's own, by the names that users type."""


def _configured(name: str) -> Callable[[RunRow], str]:
    return lambda row: run_cells.text(cell(row, name))


def _column(
    rows: Sequence[RunRow],
    name: str,
    text: Callable[[RunRow], str],
    *,
    most: int = MOST_CELLS,
    right: bool = False,
) -> TableColumn:
    longest = max((len(text(row)) for row in rows), default=0)
    title = numbers.clean(name, most)
    return TableColumn(title, text, min(max(longest, len(title)), most) + GAP, right)


def head(shown: Sequence[TableColumn], selection: Selection) -> Line:
    """The names of the columns; that of the order has an arrow."""
    arrow = " ▾" if selection.falling else " ▴"
    sort = _NAMED.get(selection.sort, selection.sort)
    spans: list[Span] = [Span("", width=MARGIN)]
    for column in shown:
        title = column.name + (arrow if sort == column.name else "")
        spans += _cell(title, "strong" if sort == column.name else "dim", column)
    return tuple(spans)


def _cell(text: str, ink: str, column: TableColumn) -> tuple[Span, ...]:
    inside = column.width - GAP
    cut = text if len(text) <= inside else f"{text[: inside - 1]}…"
    return Span(cut, ink, inside, right=column.right), Span("", width=GAP)


def row(
    found: RunRow, shown: Sequence[TableColumn], *, chosen: bool, marked: bool, repeated: str | None
) -> Line:
    """One run. `repeated` is the column whose value the line above has too: it is left blank."""
    spans: list[Span] = [Span(CURSOR if chosen else "  ", "key"), Span(MARK if marked else "  ", "good")]
    for column in shown:
        text = "" if column.name == repeated else column.text(found)
        ink = _ink(found, column.name, text, chosen=chosen)
        spans += _cell(text, ink, column)
    if found.problem:
        spans.append(Span(numbers.clean(found.problem), "warn"))
    return tuple(spans)


def _ink(found: RunRow, column: str, text: str, *, chosen: bool) -> str:
    if column == "state":
        state = {"starting": "busy", "hung": "unresponsive"}.get(found.state or "", found.state)
        return INKS.get(state, "dim") if state else "dim"  # type: ignore[call-overload]
    if column == "name":
        return "strong" if chosen or found.state not in (None, "exited") else ""
    return "dim" if text == numbers.UNKNOWN else ""


def rows(
    groups: Sequence[tuple[str, Sequence[RunRow]]],
    shown: Sequence[TableColumn],
    state: TableState,
    cursor: int,
) -> list[Line]:
    """All runs; the value of a group stands on its first line alone."""
    drawn: list[Line] = []
    group = _NAMED.get(state.selection.group, state.selection.group) or None
    for _, runs in groups:
        for place, found in enumerate(runs):
            drawn.append(
                row(
                    found,
                    shown,
                    chosen=len(drawn) == cursor,
                    marked=found.run in state.marked,
                    repeated=group if place else None,
                )
            )
    return drawn


def wrong_columns(every: Sequence[RunRow], unknown: Sequence[str], width: int) -> list[Line]:
    """Why a filter selects nothing, and the columns that there are."""
    names = ", ".join(numbers.clean(name, MOST_CELLS) for name in named_columns(every))
    there = textwrap.wrap(f"columns: {names}", max(20, width), max_lines=MOST_COLUMNS, placeholder=" …")
    return [*((Span(why, "warn"),) for why in unknown), *((Span(line, "dim"),) for line in there)]


def identity(view: View) -> Line:
    """`hoptui  node-1 · all runs`."""
    host = numbers.clean(view.node.host, 40) if view.node else ""
    return Span(" hoptui  ", "title"), Span(host, "strong"), Span(" · all runs", "dim"), FILL


def asked(state: TableState) -> str:
    """`only lr<0.001 · by loss, greatest first · grouped by tag`: what was chosen, "" for nothing."""
    sort, group = state.selection.sort, state.selection.group
    parts = (
        f"only {state.typed.strip()}" if state.typed.strip() else "",
        f"by {sort}, {'greatest' if state.selection.falling else 'least'} first" if sort else "",
        f"grouped by {group}" if group else "",
    )
    return numbers.clean(" · ".join(filter(None, parts)), 100)
