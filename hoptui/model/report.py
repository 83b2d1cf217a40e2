"""The facts of a recorded run, ended or not: figures, no words. The command line writes a page of them.

It reads an open recording and keeps nothing. What a recording does not hold is None, and no figure is
guessed. Stamps are the recording's, in ns. The durations of verdicts come from its events.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from statistics import fmean, median
from typing import NamedTuple

from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import Fact
from hoptui.domain.knobs import KnobValue
from hoptui.domain.throughput import level, usable
from hoptui.model.command_history import left
from hoptui.model.recorded.point_in_time import ALIVE, diagnosis_of
from hoptui.model.recorded.store import RecordedStore
from hoptui.protocol.messages import CommandRecord, Event, RunState
from hoptui.recording import Recording

DIAGNOSIS = "diagnosis"
UNDIAGNOSED = ""
"""In place of a verdict: before the first one of an epoch."""


class VerdictDuration(NamedTuple):
    """A verdict, for how many seconds it held in all, and the facts it was based on when it last began."""

    verdict: str
    seconds: float
    facts: tuple[Fact, ...]


class _Stretch(NamedTuple):
    start: int
    end: int
    verdict: str
    facts: tuple[Fact, ...]


def held(events: Iterable[Event], first: int, end: int) -> list[VerdictDuration]:
    """The verdicts of a run that lived between two stamps, the longest first, and the time without one last.

    A verdict holds until the next one, or until the process that it was found for ends; nothing is said of
    the time in which none lived. `events` are the run's, oldest first.
    """
    seconds: dict[str, float] = {}
    facts: dict[str, tuple[Fact, ...]] = {}
    for stretch in _stretches(events, first, end):
        seconds[stretch.verdict] = seconds.get(stretch.verdict, 0.0) + (stretch.end - stretch.start) / 1e9
        facts[stretch.verdict] = stretch.facts
    found = [
        VerdictDuration(verdict, spent, facts[verdict]) for verdict, spent in seconds.items() if spent > 0
    ]
    return sorted(found, key=lambda one: (one.verdict == UNDIAGNOSED, -one.seconds))


def alive_s(events: Iterable[Event], first: int, end: int) -> float:
    """The seconds between two stamps in which a process of the run lived."""
    return sum((stretch.end - stretch.start) / 1e9 for stretch in _stretches(events, first, end))


def _stretches(events: Iterable[Event], first: int, end: int) -> Iterator[_Stretch]:
    """A run whose beginning was not recorded lived from the start."""
    at, verdict, lives = first, UNDIAGNOSED, True
    facts: tuple[Fact, ...] = ()
    for event in events:
        if event.kind not in (*ALIVE, "exited", DIAGNOSIS) or not first <= event.t <= end:
            continue
        if lives:
            yield _Stretch(at, event.t, verdict, facts)
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
        yield _Stretch(at, end, verdict, facts)


ITERATION = "iteration_s"
"""What stands for the throughput of a run that tells no rate: the seconds of an iteration, of which fewer are
better."""


class MetricCurve(NamedTuple):
    """A metric over the life of a run: its mean in buckets, oldest first, each with the stamp of its last
    row; NaN is a gap."""

    metric: str
    t: Sequence[int]
    mean: Sequence[float]


class PhaseTotal(NamedTuple):
    """What an outermost phase took of all recorded iterations: seconds, and their share of all seconds in
    iterations."""

    name: str
    seconds: float
    share: float


class Period(NamedTuple):
    """Some seconds of a run, told by medians (throughput by `wire.pace.level`). `steps` are its first and
    last iteration.

    `figures` are by name: those of the run under their own, of its GPUs (the mean over all of them) as
    `gpu/busy`, and of both together as `derived/power_w`.
    """

    t0: int
    t1: int
    steps: tuple[int, int]
    figures: Mapping[str, float | None]


class EnergyUse(NamedTuple):
    """What the run's GPUs have used: joules, the mean watts, and the shares that fell on SM time without
    work.

    `per_unit_j` is all of it, start-up and pauses included, for each unit of the headline rate.
    """

    joules: float | None
    watts: float | None
    idle: float | None
    per_unit_j: float | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of it.

    `span` are the first and last stamps of the recording, and `wall_offset_ns` added to one gives wall time.
    `alive_s` is the time in which a process of the run lived, `iterating_s` what recorded iterations took of
    it. `gpus` are the run's own on this node. `complete_from` is the stamp from which on all rows are there
    still, None where none was deleted. `changes` took effect, in the order in which they did; `refused` are
    the changes that did not, `commands` all that were none. `shifts` tell of throughput that changed though
    no knob was turned; `events` are all others of the run and its GPUs, without verdicts and without what the
    tuner said.
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

    def wall(self, t: int) -> float:
        """Seconds since 1970 of a stamp."""
        return (t + self.wall_offset_ns) / 1e9


PHASE = "phase/"


@dataclass
class Sums:
    """Seconds in iterations and in each phase, by its path; `work` in units of the rate, told by so many
    iterations (`told`).

    `numbered` is how many iterations there were by their numbers, `last_step` the greatest of these.
    """

    seconds: float = 0.0
    work: float = 0.0
    told: int = 0
    numbered: int = 0
    last_step: int | None = None
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def covered(self) -> float:
        """The share of the iterations whose work is known."""
        return self.told / self.numbered if self.numbered else 0.0


def summed(recording: Recording, source: str, names: Sequence[str], rate: str) -> Sums:
    """One pass over the rows of a run that are still there.

    Args:
        rate: the metric that work is counted by, "" for none.
    """
    sums = Sums()
    wanted = tuple(n for n in names if n in (ITERATION, rate) or n.startswith(PHASE))
    before: int | None = None
    for part in recording.rows(source, names=wanted):
        columns = {name: array("d", raw) for name, raw in zip(part.names, part.values, strict=True)}
        seconds = columns.get(ITERATION, array("d"))
        # Other rows of an iteration may come later than the next one: what was computed on the GPU is logged
        # when it is known.
        for step in (n for n, s in zip(part.steps(), seconds, strict=False) if s == s and n >= 0):
            # A run that went back to a checkpoint numbers some again: only what is left out on the way up is
            # missing.
            sums.numbered += 1 if before is None else max(0, step - before)
            before = step
            sums.last_step = max(step, sums.last_step or 0)
        sums.seconds += sum(_known(seconds))
        if rate in columns:
            done = _known(array("d", map(mul, columns[rate], seconds)))
            sums.work += sum(done)
            sums.told += len(done)
        for name, column in columns.items():
            if name.startswith(PHASE):
                path = name.removeprefix(PHASE)
                sums.phases[path] = sums.phases.get(path, 0.0) + sum(_known(column))
    return sums


def _known(column: array[float]) -> array[float]:
    """What is no NaN."""
    total = sum(column)
    return column if total == total else array("d", [value for value in column if value == value])


SECOND = 1_000_000_000
LONGEST_S = 60.0
PART = 3  # of a run that nobody changed: its first and its last third, where that is shorter
FEWEST = 3  # iterations that figures are taken of
POINTS = 240  # in place of rows that are no longer kept
OF_GPUS = (
    "busy", "sm_active", "tensor_active", "dram_active", "memory_used_bytes", "temperature_c", "sm_clock_mhz",
)  # fmt: skip
TOGETHER = ("power_w", "energy_per_unit_j", "mfu", "mfu_estimated")

Edges = tuple[int, int]


class Sources(NamedTuple):
    """What tells of a run: its own rows and which names of them count, those of it and its GPUs together ("":
    none), and those of all of its GPUs (none where one of them is not recorded)."""

    run: str
    names: tuple[str, ...]
    derived: str
    gpus: Sequence[str]


def ends(first: int, last: int, changes: Sequence[CommandRecord]) -> tuple[Edges | None, Edges | None]:
    """Of a run with rows from `first` to `last`: the last minute before anybody changed it, and the last
    minute after all changes.

    Without changes the first and the last minute, or third. None where nothing lies there.
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
    """The figures between two stamps, medians as a rule; None where fewer than `FEWEST` iterations ended
    there."""
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
    """The iterations and the known values of each name between two stamps; means of groups where rows are
    gone."""
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
    """Of rates as `level` has it, and of the seconds of an iteration, which are rates as well: one that waits
    for data is no exception."""
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
# Pieces of the curve: a few iterations in each, so that an evaluation now and then does not look like a gap,
# one for two columns of text at least, and at most four for a column or one for 3 px of a picture.
ROWS, FEWEST_PIECES, MOST_PIECES = 8, 36, 288
FINE = 4096  # buckets that watts are integrated over
ALL_ITERATIONS = 0.98  # with fewer of them a run has worked more than its rows tell
# A count of energy that ended longer before the end, in seconds and as a share of the whole, is not all of
# it.
OLD_S, OLD = 60.0, 0.05


def read(recording: Recording) -> Report:
    """What an open recording tells of its run.

    Raises:
        RecordingError: it cannot be read, does not say which run it is of, or has nothing in it.
    """
    store = RecordedStore(recording)
    store.seek(store.span[1])
    state, node, sources = store.chronicle.run_at(store.span[1]), store.node, store.pages.sources
    run, derived = f"run/{state.run}", f"derived/{state.run}"
    about = {f"gpu/{uuid}" for uuid in state.gpus}
    events = [e for e in store.chronicle.events if e.run == state.run or e.source in about]
    own = [event for event in events if event.run == state.run]
    commands = [left(c) if state.exit_reason else c for c in store.chronicle.commands]
    sets = [record for record in commands if record.verb == "set"]
    changes = sorted((c for c in sets if c.stage in TOOK_EFFECT), key=lambda c: c.settled or c.t)
    rows = curve = first = last = None
    if run in sources:
        names = recording.names(run)
        metric = _metric(state, names)
        rows = summed(recording, run, names, _rate(state, metric))
        curve = _curve(recording, run, metric, store.span, sources[run][2]) if metric else None
        telling = Sources(
            run,
            tuple(n for n in names if n in (ITERATION, metric) or n.startswith(PHASE)),
            derived if derived in sources else "",
            sorted(about) if about <= sources.keys() else (),
        )
        began, ended, _ = sources[run]
        first, last = (stretch(recording, telling, edges) for edges in ends(began, ended, changes))
    return Report(
        state=state,
        host=node.host if node else "",
        gpus=tuple(gpu for gpu in node.gpus if gpu.uuid in state.gpus) if node else (),
        span=store.span,
        wall_offset_ns=recording.wall_offset_ns,
        complete_from=recording.thinned_before,
        alive_s=alive_s(own, *store.span),
        steps=rows.last_step if rows else None,
        iterating_s=rows.seconds if rows and recording.thinned_before is None else None,
        curve=curve,
        first=first,
        last=last,
        changes=tuple(changes),
        refused=tuple(c for c in sets if c.stage not in TOOK_EFFECT),
        commands=tuple(c for c in commands if c.verb != "set"),
        knobs_at_first={
            k.spec.name: k.value for k in store.chronicle.run_at(first.t1 if first else store.span[0]).knobs
        },
        verdicts=_verdicts(own, store.span),
        phases=_phases(rows) if rows else (),
        energy=_energy(recording, state, rows, sources.get(derived)),
        tuner=tuple(c for c in commands if c.origin.kind == TUNER),
        tuner_events=tuple(e for e in own if e.kind == TUNER),
        shifts=tuple(e for e in own if e.kind == SHIFT),
        events=tuple(e for e in events if e.kind not in (TUNER, SHIFT, DIAGNOSIS)),
    )


def _metric(state: RunState, names: Sequence[str]) -> str:
    """What stands for the run's throughput: as it has declared, else its first rate, else the seconds of an
    iteration."""
    if state.headline in names:
        return state.headline
    found = next((name for name in names if name.endswith("_per_s")), "")
    return found or (ITERATION if ITERATION in names else "")


def _rate(state: RunState, metric: str) -> str:
    """The metric if it is a rate, "" otherwise."""
    return metric if metric.endswith("_per_s") or state.units.get(metric, "").endswith("/s") else ""


def _curve(recording: Recording, run: str, metric: str, span: tuple[int, int], rows: int) -> MetricCurve:
    pieces = min(MOST_PIECES, max(FEWEST_PIECES, rows // ROWS))
    found = recording.buckets(run, (metric,), span[0], span[1], pieces)
    return MetricCurve(metric, array("q", found.t), array("d", found.mean[0]))


def _verdicts(events: Sequence[Event], span: tuple[int, int]) -> tuple[VerdictDuration, ...]:
    """Nothing where none was ever told: a recording without a diagnosis is not one that was undiagnosed for
    so long."""
    if not any(event.kind == DIAGNOSIS for event in events):
        return ()
    return tuple(held(events, *span))


def _phases(rows: Sums) -> tuple[PhaseTotal, ...]:
    """The outermost phases, the longest first."""
    outer = {n: s for n, s in rows.phases.items() if n.rpartition("/")[0] not in rows.phases}
    whole = max(rows.seconds, sum(outer.values()))
    found = [PhaseTotal(name, seconds, seconds / whole) for name, seconds in outer.items() if whole > 0]
    return tuple(sorted(found, key=lambda phase: -phase.seconds))


def _energy(
    recording: Recording, state: RunState, rows: Sums | None, extent: tuple[int, int, int] | None
) -> EnergyUse:
    """Of the run's GPUs on this node. With fewer of them than the run has ranks, nothing is said of a unit of
    its work."""
    if extent is None:
        return EnergyUse(None, None, None, None)
    names = ("energy_j", "power_w", "idle_power_w")
    found = recording.buckets(f"derived/{state.run}", names, extent[0], extent[1], FINE)
    counted = [(t, j) for t, j in zip(array("q", found.t), array("d", found.high[0]), strict=True) if j == j]
    patience = max(OLD_S * 1e9, OLD * (extent[1] - extent[0]))
    total = counted[-1][1] if counted and extent[1] - counted[-1][0] <= patience else None
    per_unit = None
    complete = rows is not None and recording.thinned_before is None and rows.covered >= ALL_ITERATIONS
    if rows is not None and complete and total is not None and rows.work and len(state.gpus) >= state.world:
        per_unit = total / rows.work
    watts, idle = _integrated(array("q", found.t), array("d", found.mean[1]), array("d", found.mean[2]))
    return EnergyUse(total, watts, idle, per_unit)


def _integrated(
    t: Sequence[int], power: Sequence[float], idle: Sequence[float]
) -> tuple[float | None, float | None]:
    """The mean watts, and the share of the energy that fell on SM time without work, where both are known
    most of the time."""
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
