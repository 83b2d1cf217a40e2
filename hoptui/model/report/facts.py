"""The facts of a report. Stamps are the recording's, in ns; None is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hoptui.domain.devices import GpuInfo
from hoptui.domain.knobs import KnobValue
from hoptui.model.report.diagnosis_time import VerdictDuration
from hoptui.protocol.messages import CommandRecord, Event, RunState

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
