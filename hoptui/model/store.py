"""Everything a viewer knows. The client's thread writes, the screen reads, and a lock protects the data.

No I/O: it receives messages of the daemon and answers queries. Memory is bounded, whatever arrives.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from threading import RLock

import msgspec

from hoptui.domain.columns import Columns, head_of, is_known, run_of
from hoptui.domain.details import RunDetails
from hoptui.domain.devices import CORES, NO_CORES, CoreLoads, GpuProcess, RunProcess
from hoptui.domain.facts import fact, nested
from hoptui.domain.job_history import JobHistory
from hoptui.domain.jobs import JobState
from hoptui.domain.line_counts import FoundLines
from hoptui.domain.run_notes import NoteAdded
from hoptui.domain.tuning import Tuned
from hoptui.model.detail_requests import STEPS, Closeups, TileRequest, iterations
from hoptui.model.outputs import FoundOutput
from hoptui.model.series import Series
from hoptui.protocol.messages import (
    FATE_UNKNOWN,
    FINAL,
    Buckets,
    Command,
    CommandRecord,
    Delta,
    Event,
    NodeState,
    RunState,
    Vital,
    record_of,
)

SECOND = 1_000_000_000
WINDOW = 30 * SECOND
ANOTHER = 60 * SECOND


class NodeClock:
    """Estimates the node's clock in nanoseconds.

    Every answer was delayed on its way, so the one whose stamp is furthest ahead is the most precise. Only
    answers of the last 30 to 60 s count, so a node whose clock paused (a migrated virtual machine) is
    followed after that. A clock that is a minute or more behind belongs to a rebooted node.
    """

    def __init__(self, own: Callable[[], int]) -> None:
        self._own = own
        self._ahead: int | None = None  # the furthest of this window, which began at:
        self._began = 0
        self._before: int | None = None  # the furthest of the previous window

    def now(self) -> int:
        """Return the node's time; the viewer's own before any answer."""
        return self._own() + (self._furthest or 0)

    def heard(self, stamp: int) -> None:
        """Process the stamp of an answer."""
        own = self._own()
        ahead = stamp - own
        best = self._furthest
        if best is None or best - ahead > ANOTHER:
            self._ahead, self._before, self._began = ahead, None, own
        elif own - self._began > WINDOW:
            self._ahead, self._before, self._began = ahead, self._ahead, own
        else:
            self._ahead = ahead if self._ahead is None else max(ahead, self._ahead)

    @property
    def _furthest(self) -> int | None:
        known = [ahead for ahead in (self._ahead, self._before) if ahead is not None]
        return max(known, default=None)


__all__ = ["Series", "Store"]

MOST_NAMES = 1024  # maximum metrics per source
MOST_EVENTS = 2000
MOST_COMMANDS = 2000


class Store:
    """The state of a node and its rows.

    Each version rises with changes of what it is named after, `changes` with any. `events` are in the order
    of their times: those of another node come late. `commands` are by id, in order of arrival. `processes`
    are those on GPUs. `jobs` are the states of runs on several nodes, by run. These and `vitals` are
    replaced, never changed in place, so a reader may iterate over them without a lock. `on_wish` is called
    when `looks` has new requests.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.node: NodeState | None = None
        self.vitals: dict[str, Vital] = {}
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.commands: dict[str, CommandRecord] = {}
        self.tuned: dict[str, Tuned] = {}
        self.cores = NO_CORES
        self.noted: dict[str, NoteAdded] = {}
        self.details: dict[str, RunDetails | None] = {}
        self.lines: dict[tuple[str, bool], FoundLines] = {}
        self.outputs: dict[str, FoundOutput] = {}
        self.processes: tuple[GpuProcess, ...] = ()
        self.processes_age_s = 0.0
        self.processes_left_out = 0
        self.tree: tuple[RunProcess, ...] = ()
        self.jobs: dict[str, JobState] = {}
        self._job_histories: dict[str, JobHistory] = {}
        self.changes = 0
        self.node_version = 0
        self.events_version = 0
        self.commands_version = 0
        self.vitals_version = 0
        self.behind_ms = 0.0
        self._left_out: dict[str, int] = {}
        self.on_wish: Callable[[], object] = lambda: None
        self._clock = NodeClock(clock)
        self._series: dict[str, dict[str, Series]] = {}
        self._steps: dict[str, Series] = {}
        self._closeups = Closeups()
        self._lock = RLock()

    def now(self) -> int:
        """Return the node's monotonic nanoseconds, extrapolated with the local clock.

        Before any answer it is the local clock itself.
        """
        return self._clock.now()

    def series(self, source: str, name: str) -> Series | None:
        """Return one metric of one source, None while nothing of it is known.

        The metrics of a run are those of its head, where rank 0 is on another node.
        """
        return self._series.get(self._place(source, name), {}).get(name)

    def _place(self, source: str, name: str) -> str:
        """Return the source whose rows have a metric."""
        head = head_of(source)
        return head if name in self._series.get(head, ()) else source

    def steps(self, source: str) -> Series | None:
        """Return the iteration at each row of a run or a rank, None for other sources and while unknown."""
        return self._steps.get(source)

    def look_closer(self, source: str, name: str, t0: int, t1: int, points: int) -> None:
        """Request finer data for a metric between two stamps, if `points` buckets need it.

        The name `detail_requests.STEPS` stands for the iterations.
        """
        series = self.steps(source) if name == STEPS else self.series(source, name)
        if series is None or t1 < t0:
            return
        width = max(1, (t1 - t0 + 1) // points)
        source = self._place(source, name)
        with self._lock:
            before = min(t1, series.fine_from(width) - 1)
            if t0 <= before and self._closeups.wish(source, name, t0, before, width, self.now()):
                self.on_wish()

    def looks(self, most: int) -> list[TileRequest]:
        """Return at most `most` requests for finer data."""
        with self._lock:
            return self._closeups.take(most, self.now()) if self._closeups.wished else []

    def names(self, source: str) -> list[str]:
        """Return the metrics of a source, in order of first appearance."""
        with self._lock:
            return list({**self._series.get(source, {}), **self._series.get(head_of(source), {})})

    def latest(self, source: str) -> dict[str, float]:
        """Return the newest values of a source. Unknown ones are left out; a NaN that was logged is a
        value."""
        with self._lock:
            found = {**self._series.get(source, {}), **self._series.get(head_of(source), {})}
            return {name: one.last for name, one in found.items() if is_known(one.last)}

    def left_out(self, source: str) -> int:
        """Return how many metrics of a source are not kept, because it has more than `MOST_NAMES`."""
        return self._left_out.get(source, 0) + self._left_out.get(head_of(source), 0)

    def run(self, run_id: str) -> RunState | None:
        """Return the state of a run besides its rows, None if unknown."""
        node = self.node
        return next((run for run in node.runs if run.run == run_id), None) if node else None

    def vital(self, run_id: str) -> Vital | None:
        """Return the fast part of a run's state, None if unknown."""
        return self.vitals.get(run_id)

    def apply(self, delta: Delta) -> None:
        """Process an answer to a Fetch."""
        with self._lock:
            before = self._versions
            self._clock.heard(delta.now)
            self.behind_ms = delta.behind_ms
            if delta.node is not None and delta.node != self.node:
                self.node = delta.node
                self.node_version += 1
                self._drop_gone(delta.node)
            if any(self.vitals.get(run) != vital for run, vital in delta.vitals.items()):
                self.vitals = {**self.vitals, **delta.vitals}
                self.vitals_version += 1
            for columns in delta.columns:
                self._extend(columns)
            if delta.processes is not None:
                self.processes = delta.processes
                self.tree = delta.tree or ()
            self._add_events(delta.events)
            self._put(*sorted(delta.commands, key=lambda record: record.wall))
            self.changes += bool(delta.columns) or delta.processes is not None or self._versions != before

    def apply_buckets(self, buckets: Buckets) -> None:
        """Process an answer to a Query: insert past values before the existing ones."""
        with self._lock:
            self.changes += 1
            for name in buckets.names:
                series = self._at(buckets.source, name)
                if series is not None:
                    series.seed(buckets, name)
            if _has_steps(buckets.source):
                steps = iterations(buckets).low.tobytes()
                known = {"low": (steps,), "high": (steps,), "mean": (steps,)}
                self._steps_of(buckets.source).seed(
                    msgspec.structs.replace(buckets, names=(STEPS,), **known), STEPS
                )

    def apply_look(self, look: TileRequest, buckets: Buckets) -> None:
        """Process the answer to one of `looks`."""
        with self._lock:
            self.changes += 1
            self._closeups.put(look, buckets)
            for name in look.names:
                series = self._steps.get(look.source) if name == STEPS else self.series(look.source, name)
                if series is not None:
                    series.refine()

    def reconnected(self) -> None:
        """Process a reconnect: pending requests are sent again."""
        with self._lock:
            self._closeups.reconnected()

    def sent(self, command: Command) -> None:
        """Show a command of this viewer as `sent` until the daemon reports on it."""
        run = self.run(command.run)
        held = next((k for k in run.knobs if k.spec.name == command.knob), None) if run else None
        record = msgspec.structs.replace(
            record_of(command, t=self.now(), wall=time.time()), before=held.value if held else None
        )
        with self._lock:
            self.changes += 1
            self._put(record)

    def apply_records(self, records: Iterable[CommandRecord]) -> None:
        """Process new states of commands."""
        with self._lock:
            self.changes += 1
            self._put(*records)

    def expire(self, command_id: str, reason: str) -> None:
        """End a command of this viewer, because no answer came. It is unknown if a daemon has had it."""
        record = self.commands.get(command_id)
        if record is None or record.stage in FINAL:
            return
        ended = msgspec.structs.replace(record, stage="expired", reason=reason, settled=self.now())
        if record.seq or record.stage != "sent":
            why = fact(FATE_UNKNOWN, why=fact("no_answer"))
            ended = msgspec.structs.replace(
                ended, stage="voided", code=why.code, fields=why.fields, reason=""
            )
        self.apply_records((ended,))

    def apply_tuned(self, tuned: Tuned) -> None:
        """Process the answer to a Tune of this viewer. `tuned` is by run, with the reason if it was
        refused."""
        with self._lock:
            self.tuned = {**self.tuned, tuned.run: tuned}
            self.node_version += 1
            self.changes += 1

    def apply_noted(self, answer: NoteAdded) -> None:
        """Process the answer to an AddNote of this viewer. `noted` is by run."""
        with self._lock:
            self.noted = {**self.noted, answer.run: answer}
            self.changes += 1

    def apply_details(self, run: str, details: RunDetails | None) -> None:
        """Process the answer to a Describe. `details` is by run, None for one that says nothing."""
        with self._lock:
            if run not in self.details or self.details[run] != details:
                self.details = {run: details}  # a viewer looks at one at a time
                self.changes += 1

    def apply_lines(self, run: str, found: FoundLines, *, whole: bool = False) -> None:
        """Process where the time of a run goes: in its last minute, or in its `whole` time.

        `lines` are by the id of the run and `whole`. A viewer looks at one run at a time.
        """
        with self._lock:
            if self.lines.get((run, whole)) != found:
                self.lines = {
                    **{key: one for key, one in self.lines.items() if key[0] == run},
                    (run, whole): found,
                }
                self.changes += 1

    def apply_output(self, run: str, found: FoundOutput) -> None:
        """Process what a process of a run has written. A viewer looks at one run at a time."""
        with self._lock:
            if self.outputs.get(run) != found:
                self.outputs = {run: found}
                self.changes += 1

    def job(self, run_id: str) -> JobHistory | None:
        """Return the last minutes of a run on several nodes, None for another run."""
        return self._job_histories.get(run_id)

    def apply_job(self, run: str, state: JobState) -> None:
        """Process the state of a run on all its nodes."""
        with self._lock:
            self._job_histories.setdefault(run, JobHistory()).add(self.now() / SECOND, state)
            if self.jobs.get(run) != state:
                self.jobs = {**self.jobs, run: state}
                self.changes += 1

    def drop_earlier_job(self, run_id: str) -> None:
        """Drop what is known of the nodes of a run if that is of an earlier restart. There is no newer."""
        run, state = self.run(run_id), self.jobs.get(run_id)
        if run is not None and state is not None and state.epoch < run.epoch:
            with self._lock:
                self.jobs = {name: job for name, job in self.jobs.items() if name != run_id}
                del self._job_histories[run_id]
                self.changes += 1

    def forget(self, source: str) -> None:
        """Drop the history of a source and keep its last values.

        It was sampled sparsely and is about to be seeded.
        """
        with self._lock:
            self.changes += 1
            for series in self._series.get(source, {}).values():
                series.clear()
            if source in self._steps:
                self._steps[source].clear()

    @property
    def _versions(self) -> tuple[int, ...]:
        return self.node_version, self.vitals_version, self.events_version, self.commands_version

    def _extend(self, columns: Columns) -> None:
        times, steps = columns.times(), columns.steps()
        if not times:
            return
        if columns.source == CORES:
            self.cores = CoreLoads(times[-1], columns.last())
            return
        left_out = 0
        for name in columns.names:
            series = self._at(columns.source, name)
            if series is None:
                left_out += 1
            else:
                series.extend(times, steps, columns.column(name))
        if left_out > self.left_out(columns.source):
            self._left_out[columns.source] = left_out
        if _has_steps(columns.source):
            self._steps_of(columns.source).extend(times, steps, array("d", map(float, steps)))
        there = set(columns.names)
        for name, series in self._series.get(columns.source, {}).items():
            if name not in there:
                series.missing(times[-1])

    def _at(self, source: str, name: str) -> Series | None:
        found = self._series.setdefault(source, {})
        series = found.get(name)
        if series is None:
            if len(found) >= MOST_NAMES:
                return None
            series = found[name] = Series(self._lock, partial(self._closeups.parts, source, name))
        return series

    def _steps_of(self, source: str) -> Series:
        found = self._steps.get(source)
        if found is None:
            closer = partial(self._closeups.parts, source, STEPS)
            found = self._steps[source] = Series(self._lock, closer)
        return found

    def _add_events(self, events: tuple[Event, ...]) -> None:
        # A restarted daemon counts from the start, so repeated events are recognised by content, not number.
        known = set(map(_content, self.events)) if events else set()
        fresh = [event for event in events if _content(event) not in known]
        if fresh:
            surplus = max(0, len(self.events) + len(fresh) - MOST_EVENTS)  # what has just come stays
            kept = (*islice(self.events, surplus, None), *fresh)
            self.events = deque(sorted(kept, key=lambda event: event.wall), MOST_EVENTS)
            self.events_version += 1

    def _put(self, *records: CommandRecord) -> None:
        fresh = {record.id: record for record in records if _news(self.commands.get(record.id), record)}
        if fresh:
            commands = {**self.commands, **fresh}
            for oldest in list(commands)[: max(0, len(commands) - MOST_COMMANDS)]:
                del commands[oldest]
            self.commands = commands
            self.commands_version += 1

    def _drop_gone(self, node: NodeState) -> None:
        """Drop runs that the daemon no longer lists, so that a viewer open for weeks does not grow."""
        there = {run.run for run in node.runs}
        if not there.issuperset(self.vitals):
            self.vitals = {run: vital for run, vital in self.vitals.items() if run in there}
            self.vitals_version += 1
        self.jobs = {run: state for run, state in self.jobs.items() if run in there}
        for run in self._job_histories.keys() - there:
            del self._job_histories[run]
        for source in list(self._series):
            run = run_of(source)
            if run and run not in there:
                del self._series[source]
                self._left_out.pop(source, None)
                self._steps.pop(source, None)


def _news(known: CommandRecord | None, record: CommandRecord) -> bool:
    """Return whether a record replaces the known one.

    Only another end replaces the end of a command: a daemon that restores a recording may know an earlier
    stage until the run reports again. An end that no daemon keeps does not count.
    """
    if known is None or known.stage not in FINAL or record.stage in FINAL:
        return known != record
    return not _kept(known)


def _kept(end: CommandRecord) -> bool:
    """Return whether a daemon has told and kept an end.

    It has not if this viewer alone gave the command up, or if the daemon did not know the run.
    """
    if end.stage == "expired":
        return bool(end.code)
    why = nested(end.fields.get("why")) if end.code == FATE_UNKNOWN else None
    return why is None or why.code not in ("no_answer", "no_such_run")


def _content(event: Event) -> tuple[object, ...]:
    """Return what is the same of an event from each daemon. How old one of another node is, is not known
    exactly.
    """
    when = (event.host_wall or event.wall) if event.host else event.t  # an older daemon has one time
    return event.host, when, event.run, event.kind, event.code, event.text


def _has_steps(source: str) -> bool:
    """Return whether the rows of a source have iterations."""
    return source.startswith(("run/", "rank/", "head/"))
