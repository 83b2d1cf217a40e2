"""A store over a recording: the interface of `hoptui.model.store.Store`, at a position in the recording.

Anything after the position is unknown. There is no thread and no clock: only `seek` moves the position.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from hoptui.domain.columns import is_known
from hoptui.domain.details import RunDetails
from hoptui.domain.devices import NO_CORES, GpuInfo, GpuProcess, RunProcess
from hoptui.domain.facts import fact
from hoptui.domain.freshness import FORGET
from hoptui.domain.job_history import KEPT_S, JobHistory, JobMoment, moment
from hoptui.domain.jobs import JobState
from hoptui.domain.line_counts import FoundLines
from hoptui.domain.progress import ITERATION, finished
from hoptui.domain.run_notes import NoteAdded
from hoptui.domain.tuning import Tuned
from hoptui.model.detail_requests import STEPS, Entries, no_entries
from hoptui.model.outputs import FoundOutput
from hoptui.model.recorded.pages import Pages
from hoptui.model.recorded.point_in_time import Chronicle
from hoptui.model.recorded.processes import ProcessReader
from hoptui.model.series import NAN, SeriesColumns, SeriesWindow, bucketed, with_medians
from hoptui.model.stack_samples import RecordedStacks
from hoptui.node.addresses import AddressError, addresses
from hoptui.protocol.messages import CommandRecord, Event, NodeState, RunState, Vital
from hoptui.protocol.record_bytes import RecordError
from hoptui.protocol.recorded_jobs import decode_recorded
from hoptui.recording import Recording, RecordingError, library
from hoptui.recording.timed_states import JOB

BACK_PAGES = 3  # how far back to look for a value that the newest rows lack


class Newest(NamedTuple):
    """The newest known value of a metric. `spacing` is the time since the one before it in ns, 0 without
    one."""

    value: float
    t: int
    step: int
    spacing: int


class Front:
    """The newest known values of one source at a position.

    `row_t` and `row_step` are the stamp (0: none) and the iteration of its newest row.
    """

    def __init__(self, pages: Pages, source: str) -> None:
        self.row_t = 0
        self.row_step = -1
        self._pages = pages
        self._source = source
        self._at: int | None = None
        self._found: dict[str, Newest] = {}

    def at(self, t: int) -> dict[str, Newest]:
        """Return the values by name, in order of first appearance.

        A step ahead reads the rows in between, a jump reads a few pages.
        """
        if t == self._at:
            return self._found
        length = self._pages.length(self._source)
        begin = self._at + 1 if self._at is not None else 0
        if self._at is None or t < self._at or t - self._at > BACK_PAGES * length:
            self._found, self.row_t, self.row_step = {}, 0, -1
            begin = max(0, (self._last_page(t) - BACK_PAGES + 1) * length)
            t1 = min(t, (self._last_page(t) + 1) * length - 1)
        else:
            t1 = t
        for number in range(begin // length, t1 // length + 1):
            self._fold(number, begin, t1)
        self._at = t
        return self._found

    def current(self, name: str, t: int) -> Newest | None:
        """Return the newest value of a metric, None if its source has omitted it for `FORGET` spacings."""
        found = self.at(t).get(name)
        if found is None or (found.spacing and self.row_t - found.t > FORGET * found.spacing):
            return None
        return found

    def _last_page(self, t: int) -> int:
        """Return the page that holds the newest row up to `t`, or the page of `t` before all rows."""
        first, last, _ = self._pages.sources[self._source]
        length = self._pages.length(self._source)
        number = min(t, last) // length
        for candidate in range(number, first // length - 1, -1):
            page = self._pages.page(self._source, candidate)
            if page.t and page.t[0] <= t:
                return candidate
        return number

    def _fold(self, number: int, t0: int, t1: int) -> None:
        """Add the rows of a page that are stamped `t0` to `t1`."""
        page = self._pages.page(self._source, number)
        a, b = bisect_left(page.t, t0), bisect_right(page.t, t1)
        if a == b:
            return
        self.row_t, self.row_step = page.t[b - 1], max(self.row_step, page.step[b - 1])
        for name, values in page.values.items():
            i = _known_before(values, a, b)
            if i < a:
                continue
            j = _known_before(values, a, i)
            older = self._found.get(name)
            before = page.t[j] if j >= a else older.t if older else page.t[i]
            self._found[name] = Newest(values[i], page.t[i], page.step[i], page.t[i] - before)


def _known_before(values: Sequence[float], start: int, stop: int) -> int:
    """Return the index of the last known value before `stop`, or less than `start` if there is none."""
    i = stop - 1
    while i >= start and not is_known(values[i]):
        i -= 1
    return i


SECOND = 1_000_000_000
RAW_ROWS = 4096  # windows of at most this many rows are drawn from the rows themselves
PACE = 31  # the iteration time is the median of this many, as in the daemon
LEAST_BUSY_S = 3.0  # a run with progress younger than this is never busy
STATE_NS = 60 * SECOND
"""How far apart the recorded states of a run on several nodes are."""
MOST_STATES = 64
"""States of such a run whose readings are kept."""
GPU_ALIVE_S = 5.0  # a GPU with a row this young was readable, whatever happened later


class RecordedSeries:
    """One metric of one source at the position of its store."""

    refined = 0  # all of the past is known from the start

    def __init__(self, store: RecordedStore, source: str, name: str) -> None:
        self._store = store
        self._source = source
        self._name = name

    @property
    def last(self) -> float:
        """The newest known value, NaN once its source has omitted it for long."""
        found = self._store.front(self._source).current(self._name, self._store.now())
        return found.value if found else NAN

    @property
    def last_t(self) -> int:
        """The stamp of the newest known value, 0 before there is one."""
        found = self._newest()
        return found.t if found else 0

    @property
    def last_step(self) -> int:
        """The iteration of the newest known value, -1 if there is none."""
        found = self._newest()
        return found.step if found else -1

    @property
    def first_t(self) -> int:
        """The stamp of the first row of its source."""
        return self._store.pages.sources[self._source][0]

    @property
    def version(self) -> int:
        """Differs whenever the newest value differs."""
        return self.last_t

    def window(self, t0: int, t1: int, points: int) -> SeriesWindow:
        """As `hoptui.model.series.Series.window`, up to the position."""
        found = self._entries(t0, t1, points)
        return bucketed(found.t, found.low, found.high, t0, t1, points)

    def columns(self, t0: int, t1: int, points: int) -> SeriesColumns:
        """As `window`, with medians."""
        return with_medians(self._entries(t0, t1, points), t0, t1, points)

    def _entries(self, t0: int, t1: int, points: int) -> Entries:
        end, pages = min(t1, self._store.now()), self._store.pages
        if end < t0 or points < 1:
            return no_entries()
        step, odd = divmod(t1 - t0 + 1, points)
        if pages.rows_in(self._source, end - t0) <= RAW_ROWS:
            return pages.samples(self._source, self._name, t0, end)
        if not odd and t0 % step == 0:
            return pages.entries(self._source, self._name, step, t0, end)
        return pages.direct(self._source, self._name, t0, end, points)

    def fine_from(self, width: int) -> int:
        """As `Series.fine_from`. Everything from the first row on, because a recording is read on demand."""
        return self.first_t

    def _newest(self) -> Newest | None:
        return self._store.front(self._source).at(self._store.now()).get(self._name)


class RecordedSteps(RecordedSeries):
    """The iteration at each row of a source at the position."""

    @property
    def last(self) -> float:
        found = self._newest()
        return found.value if found else NAN

    def _newest(self) -> Newest | None:
        front = self._store.front(self._source)
        front.at(self._store.now())
        return Newest(float(front.row_step), front.row_t, front.row_step, 0) if front.row_t else None


NO_RUN = RunState(run="", name="", epoch=1, pid=0, started_wall=0.0)
"""Stands for the run inside the store of a recording of a node without one. It is never shown."""


class RecordedStore:
    """What was known of a run and its node at the position, which begins at the recording's first stamp.

    `run_id` is empty in a recording of a node without a run, as `hoptui record` writes it.

    `stacks` has the stack samples of any time. `span` is the first and the last stamp at the time of opening.
    Rows that a writer adds later are not shown.

    Raises:
        RecordingError: the recording cannot be read, does not name its run, or is empty.
    """

    def __init__(self, recording: Recording) -> None:
        state, details = _known_run(recording)
        events, commands = recording.events(), recording.commands()
        self.pages = Pages(recording)
        self.stacks = RecordedStacks(recording)
        self._recording = recording
        self._job: tuple[int, JobState | None] | None = None  # at a position
        self._history = JobHistory()
        self._moments_of_job: dict[int, JobMoment] = {}  # by the stamp of the state
        self.span = _span(recording, commands)
        self.run_id = state.run
        self.details = {state.run: details}
        self.tuned: dict[str, Tuned] = {}
        self.cores = NO_CORES  # only their summary is recorded, in `host`
        self.noted: dict[str, NoteAdded] = {}
        self.lines: dict[tuple[str, bool], FoundLines] = {}
        self.outputs: dict[str, FoundOutput] = {}
        self._answers = 0
        self._processes = ProcessReader(recording)
        self.tree: tuple[RunProcess, ...] = ()
        self.chronicle = Chronicle(state, events, commands, self.span[1])
        self._position = self.span[0]
        self._fronts: dict[str, Front] = {}
        self._series: dict[tuple[str, str], RecordedSeries] = {}
        self._steps: dict[str, RecordedSteps] = {}
        self._refused: dict[str, CommandRecord] = {}
        self._lasting = _node(recording, self.pages.sources)
        self._followed = -1  # the position of `_run` and `_commands`
        self._measuring = False  # whether an effect was still being measured there
        self._moment = -1  # index of the last moment up to the position
        self._run = state
        self.name = state.name or self._lasting.host
        self._commands: dict[str, CommandRecord] = {}
        self._vital: Vital | None = None
        self._node: NodeState | None = None

    @property
    def problem(self) -> str:
        """The reason why part of the recording cannot be read, "" if all requested parts can."""
        return self.pages.problem

    def seek(self, t: int) -> None:
        """Move the position to `t`, clamped to the span."""
        self._position = min(max(t, self.span[0]), self.span[1])
        self._vital = self._node = None

    @property
    def changes(self) -> int:
        """Differs whenever the known data differs: it stands for the position and for `lines`."""
        return hash((self._position, self._answers))

    def now(self) -> int:
        """Return the position."""
        return self._position

    # rows ---------------------------------------------------------------------------------------------------

    def series(self, source: str, name: str) -> RecordedSeries | None:
        """Return one metric of one source, None while nothing of it is known."""
        if source not in self.pages.sources or name not in self.front(source).at(self._position):
            return None
        return self._series.setdefault((source, name), RecordedSeries(self, source, name))

    def steps(self, source: str) -> RecordedSteps | None:
        """Return the iteration at each row of a run or a rank, None for other sources."""
        if source not in self.pages.sources or not source.startswith(("run/", "rank/")):
            return None
        return self._steps.setdefault(source, RecordedSteps(self, source, STEPS))

    def look_closer(self, source: str, name: str, t0: int, t1: int, points: int) -> None:
        """Do nothing: a recording is read on demand."""

    def names(self, source: str) -> list[str]:
        """Return the metrics of a source, in order of first appearance."""
        return list(self.front(source).at(self._position)) if source in self.pages.sources else []

    def left_out(self, source: str) -> int:
        """Return 0: a recording has all metrics."""
        return 0

    def latest(self, source: str) -> dict[str, float]:
        """Return the newest values of a source. Unknown ones are left out."""
        if source not in self.pages.sources:
            return {}
        front = self.front(source)
        current = ((name, front.current(name, self._position)) for name in front.at(self._position))
        return {name: found.value for name, found in current if found is not None}

    def front(self, source: str) -> Front:
        """Return the newest values of a source that the recording has."""
        if source not in self._fronts:
            self._fronts[source] = Front(self.pages, source)
        return self._fronts[source]

    # records ------------------------------------------------------------------------------------------------

    @property
    def events(self) -> Sequence[Event]:
        """The events up to the position, newest last."""
        return self.chronicle.events_at(self._position)

    @property
    def jobs(self) -> dict[str, JobState]:
        """The state of the run on all its nodes, as it was recorded last before the position."""
        if self._job is None or self._job[0] != self._position:
            self._job = (self._position, self._job_at(self._position))
        found = self._job[1]
        return {self.run_id: found} if found is not None else {}

    def _job_at(self, t: int) -> JobState | None:
        try:
            stored = self._recording.state_at(JOB, t)
            if stored is None:
                return None
            state = decode_recorded(stored[1])
        except (RecordingError, RecordError):  # only this part cannot be read
            return None
        return structs.replace(state, age_s=state.age_s + (t - stored[0]) / SECOND)

    @property
    def processes(self) -> tuple[GpuProcess, ...]:
        """The processes on the GPUs, as they were recorded last before the position."""
        found = self._processes.at(self._position)
        return found.processes if found is not None else ()

    @property
    def processes_age_s(self) -> float | None:
        """How long before the position `processes` was recorded, in seconds. None: it was not recorded."""
        found = self._processes.at(self._position)
        return (self._position - found.t) / SECOND if found is not None else None

    @property
    def processes_left_out(self) -> int:
        """How many processes there were beside `processes`: a recording keeps a limited number."""
        found = self._processes.at(self._position)
        return found.left_out if found is not None else 0

    @property
    def commands(self) -> dict[str, CommandRecord]:
        """The commands by id, in the order of the requests."""
        self._follow()
        return {**self._commands, **self._refused} if self._refused else self._commands

    def apply_lines(self, run: str, found: FoundLines, *, whole: bool = False) -> None:
        """Keep where the time went, as `Store.apply_lines` does. Any thread may call it."""
        self.lines = {**self.lines, (run, whole): found}
        self._answers += 1

    def job(self, run_id: str) -> JobHistory | None:
        """Return the run on all its nodes with the states of its last minutes, one a minute.

        None if no state of the minutes before the position is recorded.
        """
        state = self.jobs.get(run_id)
        if state is None:
            return None
        if self._history.state is not state:
            self._history = JobHistory()
            self._history.fill(state, self._job_moments(self._position))
        return self._history

    def _job_moments(self, t: int) -> list[JobMoment]:
        """The recorded states of the last minutes, oldest first. A state is read once."""
        found: dict[int, JobMoment] = {}
        for at in range(t, t - round(KEPT_S * SECOND), -STATE_NS):
            with suppress(RecordingError, RecordError):
                if (stored := self._recording.state_at(JOB, at)) is not None:
                    stamp, body = stored
                    if stamp not in self._moments_of_job:
                        if len(self._moments_of_job) >= MOST_STATES:
                            self._moments_of_job.clear()
                        self._moments_of_job[stamp] = moment(stamp / SECOND, decode_recorded(body))
                    found[stamp] = self._moments_of_job[stamp]
        return [found[stamp] for stamp in sorted(found)]

    def refuse(self, record: CommandRecord) -> None:
        """Keep a command of this viewer, which cannot be carried out."""
        self._refused[record.id] = record

    # state --------------------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunState | None:
        """Return the run if it is the recorded one."""
        self._follow()
        return self._run if run_id and run_id == self.run_id else None

    def vital(self, run_id: str) -> Vital | None:
        """Return the fast part of the run's state, derived from rows and commands. Pulses are not
        recorded."""
        if not run_id or run_id != self.run_id:
            return None
        if self._vital is None:
            self._follow()
            self._vital = self._judged()
        return self._vital

    @property
    def vitals(self) -> dict[str, Vital]:
        vital = self.vital(self.run_id)
        return {self.run_id: vital} if vital is not None else {}

    @property
    def node(self) -> NodeState | None:
        """The node with only this run, if there is one. A GPU that was readable at the position has no
        `problem`."""
        if self._node is None:
            self._follow()
            gpus = tuple(self._then(gpu) for gpu in self._lasting.gpus)
            self._node = structs.replace(self._lasting, gpus=gpus, runs=(self._run,) if self.run_id else ())
        return self._node

    def _follow(self) -> None:
        """Update run and commands to the position."""
        t = self._position
        if t == self._followed:
            return
        self._followed = t
        moment = bisect_right(self.chronicle.moments, t)
        step = self._step()
        was, self._measuring = self._measuring, self.chronicle.measuring(t, step)
        # Update once more after the last iteration of a measurement: until then its record is incomplete.
        if moment == self._moment and not (was or self._measuring):
            return
        self._commands = self.chronicle.commands_at(t, step)
        if moment != self._moment:
            self._run = self.chronicle.run_at(t)
        self._moment = moment

    def _step(self) -> int:
        """Return the iteration of the newest row."""
        source = f"run/{self.run_id}"
        if source not in self.pages.sources:
            return 0
        front = self.front(source)
        front.at(self._position)
        return max(0, front.row_step)

    def _finished(self) -> int:
        """Return how many iterations have finished."""
        source = f"run/{self.run_id}"
        done = self.front(source).at(self._position).get(ITERATION) if source in self.pages.sources else None
        return max(self._step(), finished(done.step, self._run.total) if done is not None else 0)

    def _judged(self) -> Vital:
        source, t, run = f"run/{self.run_id}", self._position, self._run
        step = self._finished()
        if source not in self.pages.sources or not self.front(source).row_t:
            return Vital(state="exited" if run.exit_reason else "live", step=step)
        row_t = self.front(source).row_t
        paces = self.pages.tail(source, ITERATION, row_t, PACE, BACK_PAGES)
        pace = statistics.median(paces) if paces else None
        age_s = (t - row_t) / SECOND
        paused = self.chronicle.paused_at(t)
        vital = Vital(state="live", step=step, progress_age_s=age_s, iteration_s=pace, last_t=row_t)
        if run.exit_reason:
            return structs.replace(vital, state="exited")
        # The row of the iteration before the pause may be slightly younger.
        if paused is not None and row_t <= paused + SECOND // 10:
            return structs.replace(vital, state="paused")
        if age_s > max(LEAST_BUSY_S, 3 * pace if pace is not None else 0.0):
            return structs.replace(vital, state="busy")
        return vital

    def _then(self, gpu: GpuInfo) -> GpuInfo:
        source = f"gpu/{gpu.uuid}"
        if not gpu.problem or source not in self.pages.sources:
            return gpu
        front = self.front(source)
        front.at(self._position)
        alive = front.row_t and self._position - front.row_t <= GPU_ALIVE_S * SECOND
        return structs.replace(gpu, problem=None) if alive else gpu


def _known_run(recording: Recording) -> tuple[RunState, RunDetails | None]:
    """Return the last known state of the run and what it is, `NO_RUN` in a recording of a node alone."""
    known = library.known_run(recording)
    if known is None:
        return NO_RUN, None
    return structs.replace(known.state, recording=library.missing(recording)), known.details


def _span(recording: Recording, commands: Sequence[CommandRecord]) -> tuple[int, int]:
    edges = [recording.span()] if recording.span() != (0, 0) else []
    edges += [(record.t, record.settled or record.t) for record in commands]
    if not edges:
        raise RecordingError(f"{recording.path} has nothing in it yet")
    return min(first for first, _ in edges), max(last for _, last in edges)


def _node(recording: Recording, sources: dict[str, tuple[int, int, int]]) -> NodeState:
    """Return the recorded node, else one derived from the sources."""
    remembered = library.known_node(recording)
    if remembered is not None:
        return structs.replace(
            remembered,
            wall_offset_ns=recording.wall_offset_ns,
            sampler_problems=(),
            history="",
            viewers=0,
            hz=0.0,
            metrics="",
        )
    uuids = sorted(source.removeprefix("gpu/") for source in sources if source.startswith("gpu/"))
    gpus = tuple(GpuInfo(uuid=uuid, index=i, name="model not recorded") for i, uuid in enumerate(uuids))
    return NodeState(
        host="",
        pid=0,
        version="",
        started_wall=0.0,
        wall_offset_ns=recording.wall_offset_ns,
        gpus=gpus,
        gpu_problem=None if gpus else fact("gpu.none_recorded"),
    )


def recorded_commands(path: Path) -> list[CommandRecord]:
    """Return the commands of a recording, oldest first.

    Raises:
        RecordingError: it cannot be read.
    """
    with Recording.open(path, still=library.at_rest(path)) as recording:
        return sorted(recording.commands(), key=lambda record: (record.wall, record.seq))


def older_commands(runs: Iterable[str], known: Collection[str], most: int) -> tuple[list[CommandRecord], str]:
    """Return the newest commands of some runs, oldest first, and one sentence if a recording cannot be read.

    It reads files: do not call it in the drawing thread. Commands whose ids are in `known` are excluded.
    There are at most `most`.
    """
    found: list[CommandRecord] = []
    problem = ""
    try:
        paths = [addresses(create=False).recording(run) for run in runs]
    except AddressError as error:
        return [], str(error)
    for path in paths:
        try:
            found += (
                [record for record in recorded_commands(path) if record.id not in known]
                if path.exists()
                else []
            )
        except RecordingError as error:
            problem = f"older commands are not listed: {error}"
    found.sort(key=lambda record: (record.wall, record.seq))
    return found[-most:], problem
