"""The daemon's state that all handlers share: runs, GPUs, rows, commands and events.

No I/O, except that a fault of repeated work is logged: it costs only that work. The clock is passed in.
"""

from __future__ import annotations

import logging
import math
import os
import platform
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import ParamSpec, Protocol, TypeVar

from msgspec import structs

from hoptui.daemon.state import command_log, other_processes
from hoptui.daemon.state.alert_book import AlertBook
from hoptui.daemon.state.command_log import Book
from hoptui.daemon.state.derived_rows import THROUGHPUT
from hoptui.daemon.state.registry import Registry, TrackedRun
from hoptui.daemon.state.row_buffers import MAX_ROWS, Rings, one_row
from hoptui.daemon.state.stack_windows import StackBatch
from hoptui.domain import pacing
from hoptui.domain.alerts import OF_THE_HEAD, SUPPRESSED, Alert, kind_of
from hoptui.domain.columns import Columns, head_of, run_of
from hoptui.domain.devices import CORES, GpuInfo, GpuProcess, HostInfo, Level, RunProcess
from hoptui.domain.facts import Fact, fact
from hoptui.domain.jobs import JobState
from hoptui.domain.knobs import coefficient
from hoptui.domain.outputs import OutputPart
from hoptui.domain.pacing import DEFAULT, Timings
from hoptui.domain.run_notes import RunNote
from hoptui.domain.stacks import StackSamples
from hoptui.domain.throughput import ASIDE_COLUMNS
from hoptui.domain.tuning import Measured
from hoptui.protocol import VERSION
from hoptui.protocol.messages import CommandRecord, Event, FetchOutput, NodeState, Query
from hoptui.recording.library import KnownRun
from hoptui.recording.process_snapshots import ProcessSnapshots

log = logging.getLogger("hoptui.daemon")

AFTER_FAULT_NS = 600_000_000_000
"""Work is not repeated for this long after a fault: the fault would occur again."""

P = ParamSpec("P")
T = TypeVar("T")


class Faults:
    """Recent faults. `now` returns monotonic nanoseconds."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._until: dict[str, int] = {}

    def attempt(self, what: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Do some work. None if it fails, which is logged, or if `what` has failed recently."""
        if self.resting(what):
            return None
        try:
            return work(*args, **kwargs)
        except Exception:
            log.exception("%s broke", what)
            self._until[what] = self._now() + AFTER_FAULT_NS
            return None

    def warn(self, cause: str, text: str) -> None:
        """Log a warning, once in `AFTER_FAULT_NS` for a cause. There are few causes."""
        if not self.resting(cause):
            log.warning("%s", text)
            self._until[cause] = self._now() + AFTER_FAULT_NS

    def resting(self, what: str) -> bool:
        """Return whether work is skipped because it has failed recently."""
        if self._now() < self._until.get(what, 0):
            return True
        self._until.pop(what, None)
        return False


EVENTS_KEPT = 4000
MOST_EVENTS = 500
EXITED_KEPT = 50
EXITED_IN_MEMORY = 5
EXITED_KEPT_S = 24 * 3600
OF_ITS_ITERATIONS = ("run/", "rank/", "head/")
"""Sources whose newest rows are kept for a run that has exited."""
MEASURED = MAX_ROWS
"""Rows that are searched for the effect of a change."""
REST = 50
"""A measurement of 20 ms is repeated after one second: all of a run together take 2 % of a core."""
LONGEST_REST_NS = 1_000_000_000
"""On a machine that has no time for the daemon, a measurement takes long by the clock."""


class Clock(Protocol):
    """Monotonic nanoseconds and wall seconds."""

    def t(self) -> int: ...
    def wall(self) -> float: ...


class Keeper(Protocol):
    """The part of the archive that the node uses."""

    @property
    def problem(self) -> str: ...
    def rows(self, runs: Iterable[str], parts: Sequence[Columns]) -> None: ...
    def run(self, known: KnownRun, node: NodeState) -> None: ...
    def node(self, state: NodeState, runs: Iterable[str]) -> None: ...
    def event(self, event: Event, runs: Iterable[str]) -> None: ...
    def command(self, record: CommandRecord, *, urgent: bool) -> None: ...
    def stacks(self, run: str, batch: StackBatch) -> None: ...
    def job(self, run: str, t: int, state: JobState) -> None: ...
    def processes(self, runs: Iterable[str], t: int, processes: Sequence[GpuProcess]) -> None: ...
    def query(self, identity: bytes, query: Query, live: Sequence[Columns]) -> None: ...
    def confirm(self, run: str) -> None: ...
    def keep(self, run: str) -> Callable[[], bool]: ...
    def finish(self, run: str) -> None: ...
    def flushed(self, source: str) -> int: ...
    def stored(self, run: str) -> int | None: ...
    def problem_of(self, run: str) -> str: ...


class Node:
    """The shared state.

    `changed` is called when a waiting viewer may need an answer. `grown` is called if there are only new
    rows, with the seconds that they can wait for those of other sources.
    """

    def __init__(
        self,
        clock: Clock,
        archive: Keeper,
        changed: Callable[[], None],
        grown: Callable[[float], None],
        timings: Timings = DEFAULT,
    ) -> None:
        self.clock = clock
        self.timings = timings
        self.faults = Faults(clock.t)
        self.archive = archive
        self.changed = changed
        self._grown = grown
        self.registry = Registry(timings.no_pulse_s, timings.hung_s)
        self.rings = Rings()
        self.book = Book(self._record)
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.hardware = HostInfo()
        self.gpus: tuple[GpuInfo, ...] = ()
        self.gpu_problem: Fact | None = fact("sampler.not_answered", sampler="gpus")
        self.processes: tuple[GpuProcess, ...] = ()
        self.tree: tuple[RunProcess, ...] = ()
        self.processes_version = 1
        self._snapshots = ProcessSnapshots()
        self.sampler_problems: tuple[Fact, ...] = (fact("starting"),)
        self.hz = 1.0
        self.metrics = ""
        self.metrics_problem: Fact | None = None
        self.alerts = AlertBook()
        self.alerts_problem: Fact | None = None
        self.alert: Callable[[Alert], None] = lambda _: None
        """Called with each alert that fires."""
        self.fetch_output: Callable[[bytes, FetchOutput, Collection[OutputPart]], None] = lambda *_: None
        """Called with a viewer, its request, and what the process has sent of its output."""
        self.viewers = 0
        self.happened: Counter[tuple[str, str, str]] = Counter()
        """Number of events by kind, level and, for those of a GPU, its UUID."""
        self.host = platform.node()
        self._started = clock.wall()
        self._started_t = clock.t()
        self._exited: dict[str, int] = {}  # by run: since when, at the latest, it has exited (monotonic ns)
        self._event_seq = 0
        self._measure_at: dict[str, int] = {}  # by run: when effects of changes may be measured again

    # rows ---------------------------------------------------------------------------------------------------

    def rows(self, parts: Iterable[Columns]) -> None:
        """Add rows of any sources to memory and to their recordings.

        A run's own rows, those of its other ranks and processes, and its derived rows go to its recording.
        Readings of the processes of other ranks are for the tuner alone, and are not recorded.
        What the head of a run has logged is not recorded either: its own recording has it.
        Of the cores of the host, only the newest row is kept. It is not recorded: 256 cores would be most of
        a recording. Other rows of the host and of every GPU go to those of all live runs, because neighbours
        on a node affect each other.
        """
        shared: list[Columns] = []
        patience = math.inf
        for columns in parts:
            kind, run_id = columns.source.partition("/")[0], run_of(columns.source)
            run = self.registry.get(run_id) if run_id else None
            if run is None and run_id:
                continue
            if columns.source == CORES:
                self.rings.forget(CORES)
            new = self.rings.append(columns)
            if not len(new) or columns.source == CORES:
                continue
            patience = min(patience, pacing.GATHER_S.get(kind, pacing.LONGEST_GATHER_S))
            if run is None:
                shared.append(new)
                continue
            if _of_another_rank(columns.source) or kind == "head":
                continue
            if kind == "run":
                run.rows(new)
                self.faults.attempt(f"looking at the losses of {run.id}", self._judge, run, new)
                self.faults.attempt(f"measuring what changes did to {run.id}", self._measure, run)
            self.archive.rows((run.id,), (new,))
        if shared:
            self.archive.rows(tuple(run.id for run in self.registry.live()), tuple(shared))
        if patience < math.inf:
            self._grown(patience)

    def _judge(self, run: TrackedRun, columns: Columns) -> None:
        for found in run.bad_numbers.add(columns):
            level: Level = "warning" if found.worse else "info"
            step = found.step if found.step >= 0 else None
            self.event("number", found.what, run=run.id, step=step, level=level)

    def throughput_of(self, run: TrackedRun) -> str:
        """Return the throughput metric of a run, "" for none."""
        return run.state.headline or next((n for n in THROUGHPUT if n in run.metrics), "")

    def latest(self) -> tuple[Columns, ...]:
        """Return one row per source: a run's current values, the last reading of everything else."""
        runs = [
            one_row(f"run/{run.id}", run.last_t, run.last_step, run.current_metrics())
            for run in self.registry
            if run.metrics
        ]
        shown = (ring for ring in self.rings if not ring.source.startswith(("run/", "head/")))
        readings = [ring.last() for ring in shown if not _of_another_rank(ring.source)]
        return (*runs, *self._latest_of_heads(), *(r for r in readings if r is not None))

    def _latest_of_heads(self) -> Iterator[Columns]:
        for run in self.registry:
            ring = self.rings.get(head_of(f"run/{run.id}"))
            if ring is not None and run.head is not None and run.head.rows:
                values = {
                    name: value for row in reversed(run.head.rows) for name, value in row.values.items()
                }
                yield one_row(ring.source, ring.last_t, run.head.rows[-1].step, values)

    def tidy(self) -> None:
        """Drop runs that ended long ago. Their recordings stay."""
        now = self.clock.t()
        exited = sorted((r for r in self.registry if r.exited), key=lambda r: -r.state.exited_wall)
        names = {run.id for run in exited}
        self._exited = {name: since for name, since in self._exited.items() if name in names}
        for i, run in enumerate(exited):
            for source in [ring.source for ring in self.rings if run_of(ring.source) == run.id]:
                if i >= EXITED_IN_MEMORY or not source.startswith(OF_ITS_ITERATIONS):
                    self.rings.forget(source)
            self._exited.setdefault(run.id, now)
            if i >= EXITED_KEPT or now - self._exited[run.id] > EXITED_KEPT_S * 1e9:
                self.registry.forget([run.id])
                self._measure_at.pop(run.id, None)
                self.book.forget(run.id)

    def stacks(self, run: TrackedRun, rank: int, samples: StackSamples) -> None:
        """Add stack samples of a process. About once a minute, those of all its ranks are recorded."""
        t = self.clock.t()
        run.stacks.add(rank, samples)
        if run.stacks.due(t):
            self.record_stacks(run)

    def record_stacks(self, run: TrackedRun) -> None:
        """Pass the stack samples of a run that are not recorded yet to its recording."""
        batch = run.stacks.take(self.clock.t())
        if batch is not None:
            self.archive.stacks(run.id, batch)

    # events -------------------------------------------------------------------------------------------------

    def event(
        self,
        kind: str,
        what: Fact | None = None,
        *,
        text: str = "",
        run: str = "",
        step: int | None = None,
        level: Level = "info",
        t: int = 0,
        source: str = "",
    ) -> None:
        """Add an event for every viewer and for the recordings. `text` is a run's own note.

        An event of a GPU (`source`) is recorded by the runs on it and by those whose GPUs are unknown. Other
        events of the node are recorded by all live runs.
        """
        wall = self.clock.wall()
        fired = self._alerts(what, run, source, step, level, wall) if what is not None else ""
        event = Event(
            seq=self._next_event(wall),
            t=t or self.clock.t(),
            wall=wall,
            kind=kind,
            code=what.code if what is not None else "",
            fields=what.fields if what is not None else {},
            text=text,
            run=run,
            step=step,
            level=level,
            source=source,
            alert=fired,
        )
        self.events.append(event)
        kept, _, uuid = source.partition("/")
        self.happened[kind, level, uuid if kept == "gpu" else ""] += 1
        runs = [
            r.id for r in self.registry.live() if kept != "gpu" or uuid in r.state.gpus or not r.state.gpus
        ]
        self.archive.event(event, runs)
        self.changed()

    def adopt_event(self, event: Event) -> None:
        """Add an event that another node has reported, for viewers alone."""
        self.events.append(structs.replace(event, seq=self._next_event(self.clock.wall()), alert=""))
        self.changed()

    def _next_event(self, wall: float) -> int:
        """Return the number of a new event. It rises across restarts of the daemon."""
        self._event_seq = max(self._event_seq + 1, int(wall * 1e6))
        return self._event_seq

    def _alerts(self, what: Fact, run: str, source: str, step: int | None, level: Level, wall: float) -> str:
        """Return the kind of alert that an event is, "" for none. A fault costs only the alert."""
        tracked = self.registry.get(run) if run else None
        if tracked is not None and tracked.away and kind_of(what) in OF_THE_HEAD:
            return ""
        kind = self.faults.attempt("deciding on alerts", self.alerts.judge, what, run or source, wall)
        if not kind:
            return ""
        state = tracked.state if tracked is not None else None
        suppressed = fact("alerts.suppressed", most=self.alerts.settings.most_per_hour)
        found = Alert(
            kind=kind,
            what=suppressed if kind == SUPPRESSED else what,
            host=self.host,
            wall=wall,
            level=level,
            run=run,
            name=state.name if state is not None else "",
            restart=state.epoch - 1 if state is not None else 0,
            step=step,
            gpu=next((gpu.index for gpu in self.gpus if source == f"gpu/{gpu.uuid}"), None),
            diagnosis=state.diagnosis if state is not None else None,
        )
        self.faults.attempt("passing alerts on", self.alert, found)
        return kind

    def settle_numbers(self) -> None:
        """Find numbers that are finite again, of which an earlier daemon has reported that they were not.

        This daemon reports only the end of what it has seen begin.
        """
        for run in self.registry.live():
            if run.last_t <= self._started_t:
                continue
            values = run.current_metrics()
            for metric in self.alerts.subjects("nan", run.id):
                if metric not in run.bad_numbers.since and math.isfinite(values.get(metric, math.nan)):
                    self.alerts.judge(fact("number.good", metric=metric, since=-1), run.id, self.clock.wall())

    def events_since(self, seq: int, run: str = "") -> tuple[Event, ...]:
        """Return the newest events above `seq`, oldest first, at most 500: of a run and the node, or of
        all."""
        found: list[Event] = []
        for event in reversed(self.events):
            if event.seq <= seq or len(found) == MOST_EVENTS:
                break
            if not run or event.run in ("", run):
                found.append(event)
        return tuple(reversed(found))

    def restore_events(self, events: list[Event]) -> None:
        """Insert events from a recording."""
        merged = {e.seq: e for e in (*self.events, *events)}
        self.events = deque((merged[seq] for seq in sorted(merged)), maxlen=EVENTS_KEPT)
        self._event_seq = max([self._event_seq, *merged])

    # the node's state ---------------------------------------------------------------------------------------

    def state(self) -> NodeState:
        """Return the slow part of the state, as of `version`."""
        t = self.clock.t()
        runs = tuple(
            structs.replace(
                run.shown,
                recording=self.archive.problem_of(run.id),
                held=self.book.holders(run.id) if run.head is None else run.head.held,
            )
            for run in self.registry
        )
        return NodeState(
            host=self.host,
            pid=os.getpid(),
            version=VERSION,
            started_wall=self._started,
            wall_offset_ns=int(self.clock.wall() * 1e9) - t,
            cpus=self.hardware.cpus,
            memory_total_bytes=self.hardware.memory_total_bytes,
            runs=runs,
            gpus=self.gpus,
            gpu_problem=self.gpu_problem,
            sampler_problems=self.sampler_problems,
            history=self.archive.problem,
            viewers=self.viewers,
            hz=self.hz,
            metrics=self.metrics,
            metrics_problem=self.metrics_problem,
            alerts_problem=self.alerts_problem,
        )

    @property
    def version(self) -> int:
        return self.registry.version

    def touch(self) -> None:
        """Record that the slow state changed."""
        self.registry.changed()
        self.changed()

    def set_hardware(self, host: HostInfo, gpus: tuple[GpuInfo, ...], problem: Fact | None) -> None:
        """Set the hardware that the samplers report. The recordings of live runs store it too."""
        if (host, gpus, problem) == (self.hardware, self.gpus, self.gpu_problem):
            return
        self.hardware, self.gpus, self.gpu_problem = host, gpus, problem
        self.touch()
        self.archive.node(self.state(), tuple(run.id for run in self.registry.live()))

    def set_tree(self, tree: tuple[RunProcess, ...]) -> None:
        """Set the processes of the runs; viewers get them with the processes on GPUs."""
        if tree != self.tree:
            self.tree = tree
            self.processes_version += 1
            self.changed()

    def set_processes(self, processes: tuple[GpuProcess, ...]) -> None:
        """Set the processes on all GPUs, each with its run if known."""
        if processes != self.processes:
            self.processes = processes
            self.processes_version += 1
            self._grown(pacing.LONGEST_GATHER_S)
        self.record_processes()

    def record_processes(self) -> None:
        """Pass the processes on the GPUs to the recordings of all live runs, if they are due."""
        runs = tuple(run.id for run in self.registry.live())
        if runs and self.gpus and self._snapshots.due(self.clock.t(), runs, self.processes):
            self.archive.processes(runs, self.clock.t(), self.processes)

    def set_hz(self, hz: float) -> None:
        """Set the current sampling rate of the GPUs."""
        if hz != self.hz:
            self.hz = hz
            self.touch()

    def query(self, identity: bytes, query: Query) -> None:
        """Pass a query about the past to the archive."""
        ring = self.rings.get(query.source)
        live = ring.parts() if ring is not None else []
        self.archive.query(identity, query, live)

    def add_notes(self, run: TrackedRun, notes: Iterable[RunNote]) -> None:
        """Add notes of users to a run, and bring them to the disk."""
        together = sorted((*run.state.notes, *notes), key=lambda note: note.wall)
        run.state = structs.replace(run.state, notes=tuple(together))
        self.remember(run)
        if run.exited:
            self.archive.finish(run.id)
        else:
            self.archive.keep(run.id)
        self.touch()

    def remember(self, run: TrackedRun) -> None:
        """Store the state of a run in its recording."""
        known = KnownRun(
            state=run.state,
            nonce=run.nonce,
            process_started=run.process_started,
            details=run.details,
            leaving=None if run.leaving is None or run.exited else run.leaving.said,
        )
        self.archive.run(known, self.state())

    # effects of changes -------------------------------------------------------------------------------------

    def _record(self, record: CommandRecord) -> None:
        self.archive.command(record, urgent=self.book.barrier.hides(record.id))
        self.changed()

    def _measure(self, run: TrackedRun) -> None:
        """Update the measured effect of the newest applied changes, not too often."""
        start = self.clock.t()
        if start < self._measure_at.get(run.id, 0):
            return
        self._measure_now(run)
        took = self.clock.t() - start
        self._measure_at[run.id] = start + min(REST * took, LONGEST_REST_NS)

    def _measure_now(self, run: TrackedRun) -> None:
        """Measure. What a user does to a coefficient, such as a learning rate, does not change the speed.

        The head of a run measures for all nodes.
        """
        if run.head is not None:
            return
        numbers = {knob.spec.name for knob in run.state.knobs if coefficient(knob.spec)}
        records = [r for r in self.book.of(run.id) if r.knob not in numbers or r.origin.kind == "tuner"]
        applied, places = command_log.unsettled(records, run.state.epoch)
        for record, found in command_log.lost(records, applied):
            self.book.measured(record, found)
        ring, metric = self.rings.get(f"run/{run.id}"), self.throughput_of(run)
        if metric and ring is not None and places:
            rows = ring.excerpt((metric, *ASIDE_COLUMNS), most=MEASURED)
            for record, found in command_log.measured(applied, places, rows, metric, run.state.tuner):
                self.book.measured(record, self._beside_load(run, record, found))

    def _beside_load(self, run: TrackedRun, record: CommandRecord, found: Measured) -> Measured:
        """Add to a final effect that other processes work on the GPUs, or that their load of the CPUs has
        changed. Either may be the cause.

        Of a run of several ranks, all are read only while it is tuned.
        """
        if not found.settled or found.gain is None:
            return found
        if (shared := self._shared_gpu(run)) is not None:
            found = structs.replace(found, remarks=(*found.remarks, shared))
        sources = other_processes.sources_of(run.state)
        began = record.settled - round((record.took_s or 0.0) * 1e9)
        remark = other_processes.load_changed(
            self.rings, sources, self.hardware.cpus, began, record.settled, self.clock.t()
        )
        return structs.replace(found, remarks=(*found.remarks, remark)) if remark is not None else found

    def _shared_gpu(self, run: TrackedRun) -> Fact | None:
        """Return which GPU of a run another process works on now. None if none is known."""
        for gpu in (gpu for gpu in self.gpus if gpu.uuid in run.state.gpus):
            other = other_processes.working_on(gpu.uuid, self.processes, run.id, run.state.world)
            if other is not None:
                return fact("effect.gpu_shared", gpu=gpu.index, pid=other.pid)
        return None


def _of_another_rank(source: str) -> bool:
    """Whether these are readings of the processes of a rank other than 0."""
    return source.startswith("process/") and source.count("/") > 1
