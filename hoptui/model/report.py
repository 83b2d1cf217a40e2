"""The figures of a recorded run, ended or not, without words. The command line formats them as a page.

It reads an open recording and keeps nothing. A figure that a recording does not hold is None; none is
guessed. Stamps are the recording's, in ns. The durations of verdicts come from its events.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from statistics import fmean, median
from typing import NamedTuple

from hoptui.domain.details import RunDetails
from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import Fact
from hoptui.domain.knobs import KnobValue
from hoptui.domain.progress import finished
from hoptui.domain.throughput import level, usable
from hoptui.model.command_history import left
from hoptui.model.job_course import JobCourse
from hoptui.model.recorded.point_in_time import ALIVE, diagnosis_of
from hoptui.model.recorded.store import RecordedStore
from hoptui.model.report_curves import MOST_POINTS_TOGETHER, MetricCurve, RunCurves, run_curves
from hoptui.model.stack_samples import NO_SAMPLES, RunSamples
from hoptui.model.target_times import TargetTime, target_times
from hoptui.protocol.messages import CommandRecord, Event, RunState
from hoptui.recording import Recording, RecordingError, library

DIAGNOSIS = "diagnosis"
NO_CURVES = RunCurves()
UNDIAGNOSED = ""
"""Replaces a verdict before the first one of an epoch."""


class VerdictDuration(NamedTuple):
    """A verdict, how many seconds it held in total, and its facts when it last began."""

    verdict: str
    seconds: float
    facts: tuple[Fact, ...]


class VerdictStretch(NamedTuple):
    """A verdict that held from one stamp to another, with its facts."""

    start: int
    end: int
    verdict: str
    facts: tuple[Fact, ...]


def held(events: Iterable[Event], first: int, end: int) -> list[VerdictDuration]:
    """Return the verdicts of a run between two stamps, the longest first, and the time without one last.

    A verdict holds until the next one, or until its process ends. Time without a process does not count.
    `events` are the run's, oldest first.
    """
    seconds: dict[str, float] = {}
    facts: dict[str, tuple[Fact, ...]] = {}
    for stretch in verdict_stretches(events, first, end):
        seconds[stretch.verdict] = seconds.get(stretch.verdict, 0.0) + (stretch.end - stretch.start) / 1e9
        facts[stretch.verdict] = stretch.facts
    found = [
        VerdictDuration(verdict, spent, facts[verdict]) for verdict, spent in seconds.items() if spent > 0
    ]
    return sorted(found, key=lambda one: (one.verdict == UNDIAGNOSED, -one.seconds))


def alive_s(events: Iterable[Event], first: int, end: int) -> float:
    """Return the seconds between two stamps in which a process of the run lived."""
    return sum((stretch.end - stretch.start) / 1e9 for stretch in verdict_stretches(events, first, end))


def verdict_stretches(events: Iterable[Event], first: int, end: int) -> Iterator[VerdictStretch]:
    """Yield stretches of one verdict. A run whose start was not recorded lived from the beginning."""
    at, verdict, lives = first, UNDIAGNOSED, True
    facts: tuple[Fact, ...] = ()
    for event in events:
        if event.kind not in (*ALIVE, "exited", DIAGNOSIS) or not first <= event.t <= end:
            continue
        if lives:
            yield VerdictStretch(at, event.t, verdict, facts)
        at = event.t
        match event.kind:
            case "diagnosis":
                found = diagnosis_of(event)
                verdict, facts = found.verdict, found.facts
            case "reconnected" if lives:
                pass
            case kind:
                verdict, facts, lives = UNDIAGNOSED, (), kind != "exited"
    if lives:
        yield VerdictStretch(at, end, verdict, facts)


ITERATION = "iteration_s"
"""Replaces a missing rate as the throughput: the seconds of an iteration. Fewer are better."""


class PhaseTotal(NamedTuple):
    """The seconds of an outermost phase in all recorded iterations, and their share of all iteration
    seconds."""

    name: str
    seconds: float
    share: float


class Period(NamedTuple):
    """Medians over part of a run. `steps` are its first and last iteration.

    Throughput is `throughput.level` instead of a median. Keys of `figures` are names of the run, `gpu/busy`
    for its GPUs (the mean over all of them), and `derived/power_w` for both together.
    """

    t0: int
    t1: int
    steps: tuple[int, int]
    figures: Mapping[str, float | None]


class EnergyUse(NamedTuple):
    """The energy of the run's GPUs: joules, mean watts, and the share spent on SM time without work.

    `per_unit_j` is all joules, including start-up and pauses, per unit of the headline rate.
    """

    joules: float | None
    watts: float | None
    idle: float | None
    per_unit_j: float | None


class NodeReport(NamedTuple):
    """What another node of the run has recorded. Stamps of `curves` are of the clock of the report.

    `curves` are those of its GPUs, empty where there are too many nodes for charts. `clock` is a sentence on
    how far its clock is ahead, and how exactly that is known.
    """

    host: str
    file: str
    ranks: tuple[int, ...]
    gpus: tuple[GpuInfo, ...]
    curves: tuple[MetricCurve, ...]
    energy: EnergyUse
    clock: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """The figures of a run.

    `span` is the first and last stamp of the recording; adding `wall_offset_ns` to a stamp gives wall time.
    `alive_s` is the time in which a process of the run lived, `iterating_s` the part in recorded iterations.
    `gpus` are the run's own on this node. From the stamp `complete_from` on all rows exist; None if none were
    deleted.

    `changes` took effect, in that order. `refused` are the changes that did not, `commands` all other
    commands. `shifts` are changes of throughput without a change of a knob. `events` are all other events of
    the run and its GPUs, without verdicts and the tuner's reports. `targets` are summed up from events.
    `work` is what all iterations have done, in units of the rate, None if that is not known of all.
    `details` are None in recordings of older versions. `stacks` are the stack samples of the first rank.

    `curve` is that of throughput, also one of `curves`. `stretches` are the verdicts in the order of time,
    none without a diagnosis.

    `job` is the run on all its nodes, None for a run on one node. `nodes` are the other nodes with
    recordings. Then `energy` is that of all of these nodes.
    """

    state: RunState
    host: str
    gpus: tuple[GpuInfo, ...]
    span: tuple[int, int]
    wall_offset_ns: int
    complete_from: int | None
    alive_s: float
    steps: int | None
    iterating_s: float | None
    curve: MetricCurve | None
    first: Period | None
    last: Period | None
    changes: tuple[CommandRecord, ...]
    refused: tuple[CommandRecord, ...]
    commands: tuple[CommandRecord, ...]
    knobs_at_first: Mapping[str, KnobValue]
    verdicts: tuple[VerdictDuration, ...]
    phases: tuple[PhaseTotal, ...]
    energy: EnergyUse
    tuner: tuple[CommandRecord, ...]
    tuner_events: tuple[Event, ...]
    shifts: tuple[Event, ...]
    events: tuple[Event, ...]
    work: float | None = None
    targets: tuple[TargetTime, ...] = ()
    details: RunDetails | None = None
    stacks: RunSamples = NO_SAMPLES
    curves: RunCurves = NO_CURVES
    stretches: tuple[VerdictStretch, ...] = ()
    job: JobCourse | None = None
    nodes: tuple[NodeReport, ...] = ()

    @property
    def hosts(self) -> list[str]:
        """The nodes with recordings."""
        return [self.host, *(node.host for node in self.nodes)]

    @property
    def all_gpus(self) -> list[GpuInfo]:
        """The GPUs of the run on these nodes."""
        return [*self.gpus, *(gpu for node in self.nodes for gpu in node.gpus)]

    def wall(self, t: int) -> float:
        """Return a stamp as seconds since 1970."""
        return (t + self.wall_offset_ns) / 1e9


PHASE = "phase/"


@dataclass
class Sums:
    """Seconds in iterations, and in each phase by its path.

    `work` is in units of the rate, from the `measured` iterations whose work is known. `numbered` is the
    number of iterations by their numbers, `last_step` the greatest of these.
    """

    seconds: float = 0.0
    work: float = 0.0
    measured: int = 0
    numbered: int = 0
    last_step: int | None = None
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def covered(self) -> float:
        """The share of the iterations whose work is known."""
        return self.measured / self.numbered if self.numbered else 0.0


def summed(recording: Recording, source: str, names: Sequence[str], rate: str) -> Sums:
    """Sum up the rows of a run that still exist, in one pass.

    Args:
        rate: the metric that counts work, "" for none.
    """
    sums = Sums()
    wanted = tuple(n for n in names if n in (ITERATION, rate) or n.startswith(PHASE))
    before: int | None = None
    for part in recording.rows(source, names=wanted):
        columns = {name: array("d", raw) for name, raw in zip(part.names, part.values, strict=True)}
        seconds = columns.get(ITERATION, array("d"))
        # Other rows of an iteration may come after the next iteration: GPU results are logged once they are
        # known.
        for step in (n for n, s in zip(part.steps(), seconds, strict=False) if s == s and n >= 0):
            # A run that went back to a checkpoint repeats some numbers. Only numbers skipped on the way up
            # are missing.
            sums.numbered += 1 if before is None else max(0, step - before)
            before = step
            sums.last_step = max(step, sums.last_step or 0)
        sums.seconds += sum(_known(seconds))
        if rate in columns:
            done = _known(array("d", map(mul, columns[rate], seconds)))
            sums.work += sum(done)
            sums.measured += len(done)
        for name, column in columns.items():
            if name.startswith(PHASE):
                path = name.removeprefix(PHASE)
                sums.phases[path] = sums.phases.get(path, 0.0) + sum(_known(column))
    return sums


def _known(column: array[float]) -> array[float]:
    """Return the values that are not NaN."""
    total = sum(column)
    return column if total == total else array("d", [value for value in column if value == value])


SECOND = 1_000_000_000
LONGEST_S = 60.0
PART = 3  # without changes: the first and the last third, if that is shorter
FEWEST = 3  # least number of iterations for figures
POINTS = 240  # buckets that replace deleted rows
OF_GPUS = (
    "busy", "sm_active", "tensor_active", "dram_active", "memory_used_bytes", "temperature_c", "sm_clock_mhz",
)  # fmt: skip
TOGETHER = ("power_w", "energy_per_unit_j", "mfu", "mfu_estimated")

Edges = tuple[int, int]


class Sources(NamedTuple):
    """The sources of a run: its own rows and their relevant names, derived rows, and its GPUs.

    `derived` is "" if there are none. `gpus` is empty if one of them is not recorded.
    """

    run: str
    names: tuple[str, ...]
    derived: str
    gpus: Sequence[str]


def ends(first: int, last: int, changes: Sequence[CommandRecord]) -> tuple[Edges | None, Edges | None]:
    """Return the last minute before the first change, and the last minute after all changes.

    `first` and `last` are the stamps of the run's rows. Without changes they are the first and the last
    minute, or third. None if there is nothing there.
    """
    longest = round(LONGEST_S * SECOND)
    if not changes:
        longest = min(longest, (last - first) // PART)
        return ((first, first + longest), (last - longest, last)) if longest else (None, None)
    before = min(change.settled or change.t for change in changes) - 1
    after = max((c.settled or c.t) + round((c.took_s or 0.0) * SECOND) for c in changes) + 1
    return (
        (max(first, before - longest), before) if before > first else None,
        (max(after, last - longest), last) if after < last else None,
    )


def stretch(recording: Recording, sources: Sources, edges: Edges | None) -> Period | None:
    """Return the figures between two stamps, usually medians; None with fewer than `FEWEST` iterations."""
    if edges is None:
        return None
    t0, t1 = edges
    steps, values = _values(recording, sources.run, sources.names, t0, t1)
    if len(values.get(ITERATION, ())) < FEWEST or not steps:
        return None
    figures = {name: _usual(name, values.get(name, ())) for name in sources.names}
    if sources.derived:
        _, together = _values(recording, sources.derived, TOGETHER, t0, t1)
        figures |= {f"derived/{name}": _median(together.get(name, ())) for name in TOGETHER}
    each = [_values(recording, gpu, OF_GPUS, t0, t1)[1] for gpu in sources.gpus]
    for name in OF_GPUS if each else ():
        medians = [_median(values.get(name, ())) for values in each]
        known = [value for value in medians if value is not None]
        figures[f"gpu/{name}"] = fmean(known) if len(known) == len(medians) else None
    return Period(t0, t1, (steps[0], steps[-1]), figures)


def _values(
    recording: Recording, source: str, names: tuple[str, ...], t0: int, t1: int
) -> tuple[list[int], dict[str, list[float]]]:
    """Return the iterations and the known values of each name between two stamps.

    Where rows are deleted, they are means of groups.
    """
    if not names:
        return [], {}
    found: dict[str, list[float]] = {name: [] for name in names}
    steps: list[int] = []
    if t0 < (recording.thinned_before or t0):
        groups = recording.buckets(source, names, t0, t1, POINTS)
        steps += [step for step in array("q", groups.step) if step >= 0]
        for name, raw in zip(groups.names, groups.mean, strict=True):
            found[name] += [value for value in array("d", raw) if value == value]
        return steps, found
    for part in recording.rows(source, t0, t1, names):
        steps += [step for step in part.steps() if step >= 0]
        for name, raw in zip(part.names, part.values, strict=True):
            found[name] += [value for value in array("d", raw) if value == value]
    return steps, found


def _usual(name: str, values: Sequence[float]) -> float | None:
    """Return `throughput.level` of a rate, else the median.

    Seconds of an iteration are treated as rates too, because waits for data must count.
    """
    known = usable(values)
    if len(known) < len(values) or not known:
        return _median(values)
    if name.endswith("_per_s"):
        return level(known)
    return 1 / level([1 / value for value in known]) if name == ITERATION else _median(values)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


TUNER, SHIFT = "tuner", "shift"
TOOK_EFFECT = ("applied", "reverted")
FINE = 4096  # buckets for the integration of watts
ALL_ITERATIONS = 0.98  # with a smaller share, the run did more work than its rows show
# A count of energy that ended earlier than this before the end is incomplete: seconds, and share of the
# whole.
OLD_S, OLD = 60.0, 0.05


def read(recording: Recording, points: int = MOST_POINTS_TOGETHER) -> Report:
    """Return the figures of an open recording, without those of other nodes (see `hoptui.model.job_report`).

    Args:
        points: the most buckets of all curves together.

    Raises:
        RecordingError: it cannot be read, has no run, or is empty.
    """
    store = RecordedStore(recording)
    if not store.run_id:
        raise RecordingError(library.without_run(recording.path))
    store.seek(store.span[1])
    state, node, sources = store.chronicle.run_at(store.span[1]), store.node, store.pages.sources
    run, derived = f"run/{state.run}", f"derived/{state.run}"
    about = {f"gpu/{uuid}" for uuid in state.gpus}
    events = [e for e in store.chronicle.events if e.run == state.run or e.source in about]
    own = [event for event in events if event.run == state.run]
    commands = [left(c) if state.exit_reason else c for c in store.chronicle.commands]
    sets = [record for record in commands if record.verb == "set"]
    changes = sorted((c for c in sets if c.stage in TOOK_EFFECT), key=lambda c: c.settled or c.t)
    rows = first = last = None
    metric = ""
    if run in sources:
        names = recording.names(run)
        metric = _metric(state, names)
        rows = summed(recording, run, names, _rate(state, metric))
        telling = Sources(
            run,
            tuple(n for n in names if n in (ITERATION, metric) or n.startswith(PHASE)),
            derived if derived in sources else "",
            sorted(about) if about <= sources.keys() else (),
        )
        began, ended, _ = sources[run]
        first, last = (stretch(recording, telling, edges) for edges in ends(began, ended, changes))
    phases = _phases(rows) if rows else ()
    curves = run_curves(recording, store, state, metric, [f"{PHASE}{one.name}" for one in phases], points)
    verdicts = _verdicts(own, store.span)
    complete = rows is not None and recording.thinned_before is None and rows.covered >= ALL_ITERATIONS
    work = rows.work if rows is not None and complete and rows.work else None
    return Report(
        state=state,
        host=node.host if node else "",
        gpus=tuple(gpu for gpu in node.gpus if gpu.uuid in state.gpus) if node else (),
        span=store.span,
        wall_offset_ns=recording.wall_offset_ns,
        complete_from=recording.thinned_before,
        alive_s=alive_s(own, *store.span),
        steps=finished(rows.last_step, state.total) if rows and rows.last_step is not None else None,
        iterating_s=rows.seconds if rows and recording.thinned_before is None else None,
        curve=curves.of(run, metric),
        first=first,
        last=last,
        changes=tuple(changes),
        refused=tuple(c for c in sets if c.stage not in TOOK_EFFECT),
        commands=tuple(c for c in commands if c.verb != "set"),
        knobs_at_first={
            k.spec.name: k.value for k in store.chronicle.run_at(first.t1 if first else store.span[0]).knobs
        },
        verdicts=verdicts,
        phases=phases,
        energy=energy_use(recording, state, work, sources.get(derived)),
        work=work,
        tuner=tuple(c for c in commands if c.origin.kind == TUNER),
        tuner_events=tuple(e for e in own if e.kind == TUNER),
        shifts=tuple(e for e in own if e.kind == SHIFT),
        events=tuple(e for e in events if e.kind not in (TUNER, SHIFT, DIAGNOSIS)),
        targets=target_times(own, state.targets, store.span[1]),
        details=store.details[state.run],
        stacks=_stacks(store),
        curves=curves,
        stretches=tuple(verdict_stretches(own, *store.span)) if verdicts else (),
    )


def _stacks(store: RecordedStore) -> RunSamples:
    """Return the stack samples of rank 0, or of the first rank that has any."""
    found = store.stacks.between(0, 0, only=0)
    return found if found.ranks or not found.known else store.stacks.between(0, 0, only=found.known[0])


def _metric(state: RunState, names: Sequence[str]) -> str:
    """Return the throughput metric: the declared one, else the first rate, else the iteration's seconds."""
    if state.headline in names:
        return state.headline
    found = next((name for name in names if name.endswith("_per_s")), "")
    return found or (ITERATION if ITERATION in names else "")


def _rate(state: RunState, metric: str) -> str:
    """Return the metric if it is a rate, else ""."""
    return metric if metric.endswith("_per_s") or state.units.get(metric, "").endswith("/s") else ""


def _verdicts(events: Sequence[Event], span: tuple[int, int]) -> tuple[VerdictDuration, ...]:
    """Return the verdicts, none if the recording has no diagnosis at all.

    Without a diagnosis, the time does not count as undiagnosed.
    """
    if not any(event.kind == DIAGNOSIS for event in events):
        return ()
    return tuple(held(events, *span))


def _phases(rows: Sums) -> tuple[PhaseTotal, ...]:
    """Return the outermost phases, the longest first."""
    outer = {n: s for n, s in rows.phases.items() if n.rpartition("/")[0] not in rows.phases}
    whole = max(rows.seconds, sum(outer.values()))
    found = [PhaseTotal(name, seconds, seconds / whole) for name, seconds in outer.items() if whole > 0]
    return tuple(sorted(found, key=lambda phase: -phase.seconds))


def energy_use(
    recording: Recording, state: RunState, work: float | None, extent: tuple[int, int, int] | None
) -> EnergyUse:
    """Return the energy of the run's GPUs on this node, where all iterations have done so much `work`.

    With fewer GPUs than ranks, the energy per unit of work is unknown.
    """
    if extent is None:
        return EnergyUse(None, None, None, None)
    names = ("energy_j", "power_w", "idle_power_w")
    found = recording.buckets(f"derived/{state.run}", names, extent[0], extent[1], FINE)
    counted = [(t, j) for t, j in zip(array("q", found.t), array("d", found.high[0]), strict=True) if j == j]
    patience = max(OLD_S * 1e9, OLD * (extent[1] - extent[0]))
    total = counted[-1][1] if counted and extent[1] - counted[-1][0] <= patience else None
    per_unit = None
    if work is not None and total is not None and len(state.gpus) >= state.world:
        per_unit = total / work
    watts, idle = _integrated(array("q", found.t), array("d", found.mean[1]), array("d", found.mean[2]))
    return EnergyUse(total, watts, idle, per_unit)


def _integrated(
    t: Sequence[int], power: Sequence[float], idle: Sequence[float]
) -> tuple[float | None, float | None]:
    """Return the mean watts, and the share of energy spent on SM time without work.

    The share is None unless both are known most of the time.
    """
    seconds = joules = both = wasted = 0.0
    for i in range(1, len(t)):
        used = power[i] * (t[i] - t[i - 1])
        if power[i - 1] != power[i - 1] or used != used:  # a gap lasts from its stamp to the next bucket
            continue
        seconds += t[i] - t[i - 1]
        joules += used
        if idle[i] == idle[i]:
            both += used
            wasted += idle[i] * (t[i] - t[i - 1])
    if not seconds:
        return None, None
    return joules / seconds, wasted / both if both > joules / 2 else None
