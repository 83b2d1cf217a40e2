"""`hoptui runs`: a table of recorded and live runs, with filter, order and groups."""

from __future__ import annotations

import time
from typing import Annotated, Any

from cyclopts import Parameter

from hoptui.cli.support import recordings
from hoptui.cli.support.options import Json
from hoptui.cli.support.snapshot import START_ONE, look
from hoptui.cli.support.terminal import OK, REJECTED, Fail, dump, say, table, usage, warn
from hoptui.model import run_cells
from hoptui.model.run_selection import (
    ALIASES,
    Selection,
    WrongSelection,
    cell,
    conditions,
    ordered_by,
    unknown_columns,
)
from hoptui.model.run_table import LiveRun, RecordedRuns, RunRow, live_runs, with_live
from hoptui.presentation import numbers
from hoptui.presentation.details import finite

RIGHT = (4, 5)


def runs(
    *,
    filter: Annotated[  # noqa: A002 - the option's name
        list[str] | None,
        Parameter(
            negative=(),
            show_default=False,
            help="Only runs for which this holds: tag=baseline, lr<0.001, name~ppo. Several: all of them.",
        ),
    ] = None,
    sort: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            show_default=False,
            help="Sort by this column; with a minus before it, the greatest first.",
        ),
    ] = "",
    group: Annotated[str, Parameter(show_default=False, help="A table for each value of this column.")] = "",
    columns: Annotated[
        str,
        Parameter(
            show_default=False,
            help="More columns, with commas: names of the configuration, knobs and metrics, best.loss.",
        ),
    ] = "",
    json: Json = False,
) -> int:
    """List recorded and live runs with their configuration, results and verdict."""
    more = [ALIASES.get(name, name) for name in map(str.strip, columns.split(",")) if name]
    try:
        wanted = tuple(one for typed in filter or () for one in conditions(typed))
    except WrongSelection as error:
        raise usage(f"--filter: {error}") from None
    sorted_by, falling = ordered_by(sort)
    selection = Selection(wanted, sorted_by, falling, ALIASES.get(group, group))
    rows = _rows()
    for why in unknown_columns(rows, [*selection.columns, *more]):
        warn(f"hoptui: {why}")
    groups = selection.of(rows)
    if json:
        dump([_json(row, more, selection.group) for _, found in groups for row in found])
    elif groups:
        _print(groups, selection.group, more)
    elif rows:
        say(f"none of the {numbers.counted(len(rows), 'run')} is selected")
    else:
        say(f"no runs on this node and no recordings of any; {START_ONE}")
    return OK


def _rows() -> list[RunRow]:
    """The runs of the daemon and of the recordings; without a daemon, those of the recordings."""
    known: list[LiveRun] = []
    try:
        with look(readings=False) as seen:
            described = {run.run: seen.session.describe(run.run) for run in seen.node.runs if seen.lives(run)}
            known = live_runs(seen.node.runs, seen.store.vital, seen.store.latest, described)
    except Fail as error:
        warn(f"hoptui: {error}; only recordings are listed")
    recorded, problem = RecordedRuns(recordings.places().state).rows()
    if problem:
        raise Fail(problem, REJECTED)
    return with_live(recorded, known, time.time())


def _print(groups: list[tuple[str, list[RunRow]]], group: str, more: list[str]) -> None:
    head = ("state", "name", "id", "started", "duration", "throughput", "metric", *more, "verdict", "tags")
    for number, (value, rows) in enumerate(groups):
        if group:
            say() if number else None
            named = numbers.clean(value, 80) or numbers.UNKNOWN
            say(f"{numbers.clean(group, 60)} {named}: {numbers.counted(len(rows), 'run')}")
        table([head, *(_line(row, more) for row in rows)], right=RIGHT)


def _line(row: RunRow, more: list[str]) -> tuple[str, ...]:
    problem = f"  {row.problem}" if row.problem else ""
    return (
        run_cells.state(row),
        run_cells.name(row),
        row.run,
        run_cells.started(row),
        run_cells.lasted(row),
        run_cells.throughput(row),
        run_cells.metric(row),
        *(run_cells.text(cell(row, column)) for column in more),
        run_cells.verdict(row),
        run_cells.tags(row) + problem,
    )


def _json(row: RunRow, more: list[str], group: str) -> dict[str, Any]:
    return {
        "run": row.run,
        "name": row.name,
        "state": row.state,
        "started": row.began,
        "exited": row.ended,
        "duration_s": row.lasted_s,
        "tags": row.tags,
        "notes": row.notes,
        "config": finite(row.config),
        "columns": {column: finite(cell(row, column)) for column in more},
        "throughput": row.rate.name if row.rate is not None else None,
        "metric": row.learning[0].name if row.learning else None,
        "metrics": {
            metric.name: {"last": finite(metric.last), "best": metric.best, "better": metric.better}
            for metric in row.metrics
        },
        "verdict": row.diagnosis.verdict if row.diagnosis is not None else None,
        "group": finite(cell(row, group)) if group else None,
        "recording": str(row.path) if row.path is not None else None,
        "problem": row.problem,
    }
