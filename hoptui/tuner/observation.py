"""What the tuner is shown of a run at one look, and what it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.facts import Fact
from hoptui.domain.knobs import KnobState, KnobValue, coefficient
from hoptui.domain.tuning import Change
from hoptui.protocol.messages import CommandRecord, State

RECENT_NS = 3_000_000_000
"""Readings so young are the present ones: longer than from one look to the next, so that no peak of memory is
missed."""


@dataclass(frozen=True)
class MemoryReading:
    """Bytes of one of a run's GPUs; for a run without a GPU, of the host.

    `used` is the most that the run itself has held since the last look. `others` is what other processes hold
    there now. If the driver does not distinguish processes, all of it counts as the run's. That errs on the
    safe side. `gpu` is the GPU. `fixed` is a part of `used` that no size of a batch changes, such as the
    parameters: at least so much. 0 where it is unknown.
    """

    used: int
    others: int
    total: int
    gpu: str = ""
    fixed: int = 0

    @property
    def filled(self) -> float:
        """The part that the run holds of what others leave: where that is greatest, a run that grows has no
        room first.

        Not the fullest: of a small and a large GPU with as much of the run on both, the large one may be
        fuller, by a neighbour, and yet have more room.
        """
        return self.used / max(1, self.total - self.others)


@dataclass(frozen=True)
class GpuNeighbours:
    """The processes on one of a run's GPUs that are not the run's.

    `busy` is their share of the GPU's time, 0 to 1. None while unknown.
    """

    gpu: str
    pids: frozenset[int] = frozenset()
    busy: float | None = None


@dataclass(frozen=True)
class ChangePoint:
    """The throughput changed from `before` to `after` at about iteration `step`, without a change of a knob.

    `cause` is the likeliest cause, or the fact that none was found. `t` is when the change was noticed.
    """

    t: int
    step: int
    before: float
    after: float
    cause: Fact


@dataclass(frozen=True)
class Observation:
    """A run at one look; times are monotonic nanoseconds.

    Args:
        points: (iteration, throughput), newest last, of iterations that did nothing but train
            (`hoptui.daemon.state.command_log.throughput`). At least the newest 200, as far as there are.
        samples, losses: (iteration, value) of the same iterations: the work that the throughput counts, and
            the training loss. Empty where the run does not log them.
        durations: (iteration, seconds) of the same iterations, empty where unknown.
        records: the run's newest commands, oldest first, those of the tuner and of users.
        memories: of each of the run's GPUs, or of the host; none where one of them is unknown.
        neighbours: of those of the run's GPUs on which the driver tells the run's processes from others.
        alloc_retries, power_w, drawn_w, host_busy, others_busy: None where unknown. `alloc_retries` counts
        since the run began,
            `power_w` is that of the GPU that draws most, `drawn_w` that of all GPUs that take part in the
            run, `host_busy` the share of the host's CPUs at work (0 to 1), `others_busy` the part of it that
            is not the run's own.
        no_energy: why the energy of the run cannot be measured, None where it can.
        throttled: what holds the GPUs' clocks down now, in the driver's words, "" for nothing.
        straggler: the report that the other ranks wait for one of them, None while they are even or unknown.
        metric: the name of what `points` are values of.
        step: the iteration that the run is in.
        shift: a change of the throughput without a command, present at the one look after it was found.
    """

    t: int
    epoch: int
    state: State
    knobs: tuple[KnobState, ...]
    points: Sequence[tuple[int, float]] = ()
    samples: Sequence[tuple[int, float]] = ()
    losses: Sequence[tuple[int, float]] = ()
    durations: Sequence[tuple[int, float]] = ()
    records: Sequence[CommandRecord] = ()
    memories: tuple[MemoryReading, ...] = ()
    neighbours: tuple[GpuNeighbours, ...] = ()
    alloc_retries: float | None = None
    power_w: float | None = None
    drawn_w: float | None = None
    no_energy: Fact | None = None
    diagnosis: Diagnosis | None = None
    host_busy: float | None = None
    others_busy: float | None = None
    throttled: str = ""
    shift: ChangePoint | None = None
    straggler: Fact | None = None
    metric: str = ""
    step: int = 0

    @property
    def memory(self) -> MemoryReading | None:
        """Of the GPU that has no room first, None where that is unknown."""
        return max(self.memories, key=lambda one: one.filled, default=None)

    @property
    def taken(self) -> float:
        """The share of all memory that is taken on the fullest GPU, by whomever; 0 where that is unknown."""
        return max(((one.used + one.others) / one.total for one in self.memories if one.total), default=0.0)

    def values(self) -> dict[str, KnobValue]:
        """What is in effect, by knob."""
        return {k.spec.name: k.value for k in self.knobs}

    def settings(self) -> dict[str, KnobValue]:
        """Of those, what makes a run another one where it changes; a schedule's coefficients do not."""
        return {k.spec.name: k.value for k in self.knobs if not coefficient(k.spec)}

    def current(self) -> Observation:
        """The same with what commands have come to since the knobs were read."""
        newest: dict[str, CommandRecord] = {}
        for record in self.records:
            if record.epoch == self.epoch and record.version is not None and record.effective is not None:
                newest[record.knob] = record
        knobs = []
        for knob in self.knobs:
            told = newest.get(knob.spec.name)
            if told is not None and (told.version or 0) > knob.version and told.effective is not None:
                knob = structs.replace(knob, value=told.effective, version=told.version or 0)
            knobs.append(knob)
        return replace(self, knobs=tuple(knobs))


@dataclass(frozen=True)
class Proposal:
    """Knobs to set together, at one boundary, and why."""

    changes: tuple[Change, ...]
    why: tuple[Fact, ...]


@dataclass(frozen=True)
class PriorResult:
    """What served a run of the same kind best: values by knob, and the most memory it held with them (bytes;
    None: unknown)."""

    values: Mapping[str, KnobValue] = field(default_factory=dict)
    peak: int | None = None
