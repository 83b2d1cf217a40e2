"""What the tuner does and what a change achieved, as the daemon sends it to viewers and recordings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from hoptui.domain.enumerations import unknown
from hoptui.domain.facts import Fact
from hoptui.domain.knobs import KnobSpec, KnobValue, shown


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a change on throughput: relative `gain` ± `interval` (0.061 is +6.1 %).

    Both are None while unknown. `before` and `after` are values of `metric` (see `throughput.level`),
    `iterations` is how many were measured after the change. `detectable` is False if the interval includes
    zero. `interval` is its upper, wider side, so a large gain may be detectable although it is smaller than
    that. `settled` means that the measurement is complete. Until then, it goes on up to `until` iterations; 0
    means that it does not, or that this is unknown. `remarks` give the reason for a missing figure, or
    the changes that share it. `note` is the text of an older recording.
    """

    metric: str = ""
    before: float | None = None
    after: float | None = None
    gain: float | None = None
    interval: float | None = None
    detectable: bool = False
    iterations: int = 0
    until: int = 0
    settled: bool = False
    remarks: tuple[Fact, ...] = ()
    note: str = ""


ADVISED = "advised: "
"""Begins the note of a change that takes the advice of a verdict. The knob stays the tuner's."""
TUNER = "the tuner"
"""The tuner's name as the author of a command."""
Objective = Literal["throughput", "energy"]
WORK_PER_JOULE = "units_per_joule"
"""The metric of the objective `energy`."""
Stand = Literal["off", "baseline", "trial", "holding", "waiting"]
Result = Literal["running", "kept", "reverted", "failed", "interrupted", "unfinished"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a tuner.

    `memory` is the share of a GPU's memory that a trial may be expected to use, other processes included.
    `power_w` is the most watts per GPU, `budget` the share of the run's time that trials may cost. `learning`
    names the knobs of effect `learning` that it may change ("*": see `may_turn`). With `dry`, it reports what
    it would try and tries nothing.
    """

    memory: float = 0.92
    power_w: float | None = None
    budget: float = 0.04
    objective: Objective = "throughput"
    learning: tuple[str, ...] = ()
    dry: bool = False


YOUNG_S = 3600.0
"""The tuner may spend the budget of this many seconds on a younger run. Else it could not try anything early,
when a gain matters most."""


SAVES = ("save", "saving", "checkpoint", "ckpt", "snapshot", "dump", "backup")
REPORTS = ("log", "logging", "eval", "evaluation", "val", "validation", "test")
"""Words in the names of knobs about what a run does besides training."""
INTERVALS = frozenset(
    f"{prefix}_{suffix}"
    for prefix in SAVES + REPORTS
    for suffix in ("steps", "interval", "every", "freq", "frequency")
) | {"log_every_n_steps", "val_check_interval", "check_val_every_n_epoch"}
"""Names of knobs that say how often a run does something besides training. It costs time alone."""
BESIDES = frozenset((*SAVES, *REPORTS, "checkpoints", "snapshots", "evaluate", "validate")) - {"val", "test"}
"""Words in the name of a switch of such work, as in `save_checkpoints`. `checkpointing` is none of them."""


def may_turn(spec: KnobSpec, limits: Limits) -> bool:
    """Return whether a tuner within `limits` may change a knob.

    It never changes a knob of cost `restart`. It changes one of effect `learning` if its name is allowed. "*"
    allows all of them except those of cost `free`: these are read inside the step and do not affect speed. It
    changes an interval, or a switch of what a run does besides training, only if its name is allowed: a run
    without checkpoints is faster, and nobody wants it.
    """
    if spec.cost == "restart" or unknown(spec.cost):
        return False
    besides = spec.kind == "bool" and not BESIDES.isdisjoint(spec.name.lower().split("_"))
    if spec.name in INTERVALS or besides:
        return spec.name in limits.learning
    if spec.effect == "speed" or spec.name in limits.learning:
        return True
    return "*" in limits.learning and spec.cost != "free"


def check_limits(limits: Limits) -> None:
    """Reject invalid limits.

    Raises:
        ValueError: one sentence that names the limit. NaN is invalid.
    """
    if not 0 < limits.memory <= 1:
        raise ValueError(f"the memory limit is a share above 0 and at most 1, not {limits.memory:g}")
    if limits.power_w is not None and not 0 < limits.power_w < 1e6:
        raise ValueError(f"the power limit is in watts and above 0, not {limits.power_w:g}")
    if not 0 < limits.budget <= 1:
        raise ValueError(f"the budget is a share above 0 and at most 1, not {limits.budget:g}")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one knob in a trial."""

    knob: str
    before: KnobValue
    value: KnobValue


def written(changes: Iterable[Change]) -> str:
    """Format changes for a sentence: `micro_batch 32 → 64, grad_accum 16 → 8`."""
    return ", ".join(f"{c.knob} {shown(c.before)} → {shown(c.value)}" for c in changes)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A change that the tuner tried, or tries now.

    `measured` is the effect on what the tuner improves. If that is energy, `throughput` is the effect on the
    throughput, and `units` is the work done with the values of a kept trial while the tuner tried nothing
    else. `why` has the reasons and, once it has ended, the ending. `text` is the sentence of an older
    recording.
    """

    changes: tuple[Change, ...]
    result: Result = "running"
    t: int = 0
    step: int | None = None
    iterations: int = 0
    seconds: float = 0.0
    measured: Measured | None = None
    throughput: Measured | None = None
    units: float = 0.0
    why: tuple[Fact, ...] = ()
    text: str = ""


class TunerState(msgspec.Struct, frozen=True, kw_only=True):
    """The tuner of one run.

    `stand` is `baseline` while it measures the values in effect, `holding` while it watches and tries
    nothing, and `waiting` if it cannot continue now. `facts` are what it does, `text` is the sentence of an
    older recording. `next` are the changes that it would try next. `tried` are ended trials, oldest first,
    including those of earlier tuners of this run. It leaves `frozen` knobs alone. `spent` is the share of
    the run's time since its start that trials have cost: pauses, and changes that were not kept. `lived_s`
    is that time in seconds, without the time in which the run did not train. `regret_units` is the work lost
    to trials in the first hour of it, `best_rate` the highest known throughput of the values to return to,
    in units per second. Both are None while unknown.
    """

    stand: Stand = "off"
    facts: tuple[Fact, ...] = ()
    text: str = ""
    limits: Limits = Limits()
    trial: Trial | None = None
    next: tuple[Change, ...] = ()
    tried: tuple[Trial, ...] = ()
    frozen: tuple[str, ...] = ()
    spent: float = 0.0
    lived_s: float = 0.0
    regret_units: float | None = None
    best_rate: float | None = None
    started: int = 0
    user: str = ""


class Tune(msgspec.Struct, frozen=True, kw_only=True, tag="tune"):
    """A request to the tuner of a run.

    `op` starts it within `limits`, stops it, or makes it leave `knob` alone (`freeze`) or not (`release`).
    """

    id: int
    run: str
    op: Literal["start", "stop", "freeze", "release"]
    knob: str = ""
    limits: Limits = Limits()


class Tuned(msgspec.Struct, frozen=True, kw_only=True, tag="tuned"):
    """The answer to a Tune: `granted`, or a refusal whose reason is in `code` and `fields`.

    Older daemons send the sentence `reason` instead.
    """

    id: int
    run: str
    granted: bool
    code: str = ""
    fields: dict[str, Any] = {}
    reason: str = ""
    state: TunerState = TunerState()
