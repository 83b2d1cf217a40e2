"""The runs of a node as rows of a table: recorded ones and live ones, with what they learned and how fast.

A row is read from a recording once for each version of its file. `with_live` adds what the daemon knows of
runs that exist now.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from hoptui.domain.details import RunDetails
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.knobs import KnobValue
from hoptui.domain.learning_metrics import Better, better_end, headline_name, learning_names
from hoptui.domain.run_notes import RunNote
from hoptui.model.runs import lives
from hoptui.presentation import vocabulary
from hoptui.protocol.messages import RunState, Vital
from hoptui.recording import Recording, RecordingError, library

SECOND = 1_000_000_000
MOST_METRICS = 8
"""Metrics of learning that a row has at most."""
FIRST_LOOK_S, FURTHER = 60.0, 16
"""How far back to look for the last value of a metric at first, and how many times further each time."""


class MetricSummary(NamedTuple):
    """A metric of a run: its last value and its best one. None is unknown.

    `better` is which end is the best one; None where the name of the metric does not decide that, and then
    there is no best value.
    """

    name: str
    last: float | None
    best: float | None
    better: Better | None

    def then(self, value: float) -> MetricSummary:
        """Return the summary after one more value."""
        if self.better is None or not isfinite(value):
            return self._replace(last=value)
        known = [value] if self.best is None else [value, self.best]
        return self._replace(last=value, best=min(known) if self.better == "least" else max(known))


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run in a table. What is unknown is None.

    `state` is a word of `vocabulary.state_name`. `began` and `ended` are seconds since 1970: the start of its
    first process, and the end of its last one (None while it lives). `lasted_s` is the time between them or
    until now, and to its last row where no end is recorded. `rate` is its throughput metric. `knobs` are the
    values read back last. `diagnosis` is the last one. `path` is its recording; `problem` has the
    reason why that cannot be read, or how much it lacks.
    """

    run: str
    name: str | None = None
    state: str | None = None
    began: float | None = None
    ended: float | None = None
    lasted_s: float | None = None
    tags: tuple[str, ...] = ()
    notes: tuple[RunNote, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    rate: MetricSummary | None = None
    learning: tuple[MetricSummary, ...] = ()
    diagnosis: Diagnosis | None = None
    path: Path | None = None
    problem: str = ""

    @property
    def metrics(self) -> tuple[MetricSummary, ...]:
        """The throughput metric and those of learning, the most telling first."""
        return (self.rate, *self.learning) if self.rate is not None else self.learning


class RecordedRuns:
    """The recorded runs of a directory. Used by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[Path, tuple[tuple[float, int], RunRow | None]] = {}

    def rows(self) -> tuple[list[RunRow], str]:
        """Return the rows of all recordings of a run, and why the directory cannot be read ("": it can).

        Only those that have changed are read again.
        """
        found: dict[Path, tuple[tuple[float, int], RunRow | None]] = {}
        try:
            paths = library.paths(self._directory) if self._directory.is_dir() else []
        except RecordingError as error:
            return [], str(error)
        for path in paths:
            version = library.measured(path)
            if version is None:  # deleted meanwhile
                continue
            known = self._known.get(path)
            found[path] = known if known is not None and known[0] == version else (version, _row(path))
        self._known = found
        return [row for _, row in found.values() if row is not None], ""


def _row(path: Path) -> RunRow | None:
    """Read the row of a recording, None if it records a node without a run."""
    try:
        with Recording.open(path, still=library.at_rest(path)) as recording:
            known = library.known_run(recording)
            return _recorded(recording, known) if known is not None else None
    except RecordingError as error:
        return RunRow(run=path.stem, path=path, problem=error.reason)


def _recorded(recording: Recording, known: library.KnownRun) -> RunRow:
    state, (first, last) = known.state, recording.span()
    begun = (first + recording.wall_offset_ns) / 1e9 if first else state.started_wall or None
    seen = (last + recording.wall_offset_ns) / 1e9 if last else None
    ended = state.exited_wall or (seen if state.exit_reason else None)
    until = ended or seen
    row = _described(RunRow(run=state.run), state, known.details)
    rate, learning = _metrics(recording, state)
    return replace(
        row,
        state="exited" if state.exit_reason else None,
        began=begun,
        ended=ended,
        lasted_s=max(0.0, until - begun) if until is not None and begun is not None else None,
        rate=rate,
        learning=learning,
        path=recording.path,
        problem=library.missing(recording),
    )


def _described(row: RunRow, state: RunState, details: RunDetails | None) -> RunRow:
    """The row with what a run's state and details say of it."""
    return replace(
        row,
        name=state.name,
        tags=state.tags or (details.tags if details is not None else row.tags),
        config=details.config if details is not None else row.config,
        knobs={knob.spec.name: knob.value for knob in state.knobs if knob.value is not None},
        units=state.units,
        notes=state.notes or row.notes,
        diagnosis=state.diagnosis or row.diagnosis,
    )


def _metrics(recording: Recording, state: RunState) -> tuple[MetricSummary | None, tuple[MetricSummary, ...]]:
    """The throughput metric and those of learning, from all rows of a recording."""
    source = f"run/{state.run}"
    if source not in recording.sources():
        return None, ()
    every = recording.names(source)
    rate = headline_name(every, state.headline)
    names = [*([rate] if rate in every else []), *learning_names(every, rate)[:MOST_METRICS]]
    if not names:
        return None, ()
    ends, last = _ends(recording, source, names), _last(recording, source, names)
    found = [MetricSummary(name, last.get(name), ends.get(name), better_end(name)) for name in names]
    return (found[0], tuple(found[1:])) if rate in every else (None, tuple(found))


def _ends(recording: Recording, source: str, names: list[str]) -> dict[str, float]:
    """The best value of each metric whose name decides which end is the best one."""
    found: dict[str, float] = {}
    whole = recording.buckets(source, tuple(names), points=1)
    for name, low, high in zip(whole.names, whole.low, whole.high, strict=True):
        better = better_end(name)
        known = [value for value in array("d", low if better == "least" else high) if isfinite(value)]
        if better is not None and known:
            found[name] = min(known) if better == "least" else max(known)
    return found


def _last(recording: Recording, source: str, names: list[str]) -> dict[str, float]:
    """The last value of each metric, as far as its row still exists."""
    first, end, _ = recording.sources()[source]
    found: dict[str, float] = {}
    back = round(FIRST_LOOK_S * SECOND)
    while end >= first and len(found) < len(names):
        asked = tuple(name for name in names if name not in found)
        begin = max(first, end - back)
        recent: dict[str, float] = {}
        for part in recording.rows(source, begin, end, asked):
            for name, raw in zip(part.names, part.values, strict=True):
                values = array("d", raw)
                known = next((value for value in reversed(values) if value == value), None)
                recent.update({name: known} if known is not None else {})
        found |= recent
        end, back = begin - 1, back * FURTHER
    return found


class LiveRun(NamedTuple):
    """What the daemon knows of a run now. `latest` are the newest values of its metrics."""

    state: RunState
    vital: Vital | None
    latest: Mapping[str, float]
    details: RunDetails | None = None


def with_live(recorded: Iterable[RunRow], known: Iterable[LiveRun], now: float) -> list[RunRow]:
    """Return the rows with what the daemon knows, the newest run first; `now` is seconds since 1970."""
    rows = {row.run: row for row in recorded}
    for one in known:
        rows[one.state.run] = _live(rows.get(one.state.run, RunRow(run=one.state.run)), one, now)
    return sorted(rows.values(), key=lambda row: (row.state in (None, "exited"), -(row.began or 0.0)))


def _live(row: RunRow, known: LiveRun, now: float) -> RunRow:
    state, vital = known.state, known.vital
    alive = lives(state, {state.run: vital} if vital is not None else {})
    began = row.began if row.began is not None else state.started_wall
    ended = None if alive else state.exited_wall or row.ended
    until = now if alive else ended
    rate, learning = _with_latest(row, state, known.latest)
    return replace(
        _described(row, state, known.details),
        state=vocabulary.state_name(vital) if alive and vital is not None else None if alive else "exited",
        began=began,
        ended=ended,
        lasted_s=max(0.0, until - began) if until is not None else row.lasted_s,
        rate=rate,
        learning=learning,
    )


def _with_latest(
    row: RunRow, state: RunState, latest: Mapping[str, float]
) -> tuple[MetricSummary | None, tuple[MetricSummary, ...]]:
    """The metrics of a row with their newest values.

    Without a recording the best value of all time is unknown.
    """
    unknown = {name: MetricSummary(name, None, None, better_end(name)) for name in latest}
    known = {metric.name: metric for metric in row.metrics}
    names = list(dict.fromkeys((*known, *latest)))
    rate = headline_name(names, state.headline)
    wanted = [*([rate] if rate in names else []), *learning_names(names, rate)[:MOST_METRICS]]
    found = []
    for name in wanted:
        metric = known.get(name)
        if metric is not None:
            found.append(metric.then(latest[name]) if name in latest else metric)
        else:
            found.append(unknown[name]._replace(last=latest[name]))
    return (found[0], tuple(found[1:])) if rate in names else (None, tuple(found))


LatestOf = Callable[[str], Mapping[str, float]]
VitalOf = Callable[[str], Vital | None]


def live_runs(
    runs: Iterable[RunState],
    vital: VitalOf,
    latest: LatestOf,
    details: Mapping[str, RunDetails | None] | None = None,
) -> list[LiveRun]:
    """Return what is known of the runs of a node; `latest` has the newest values of a source."""
    told = details or {}
    return [LiveRun(run, vital(run.run), latest(f"run/{run.run}"), told.get(run.run)) for run in runs]
