"""What holds a run back, and what the tuner does about it: as the daemon tells it to every viewer and
recording."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import msgspec
from msgspec import structs

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobSpec, KnobValue, shown


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did to the throughput: relative `gain` ± `interval` (0.061 is +6.1 %), None while
    unknown.

    `before` and `after` are `metric` as `pace.level` has it, `iterations` how many were measured after the
    change. `detectable` is False where the interval includes zero. `remarks` say why there is no figure, or
    what shares it; `note` is the same in the words of an older recording.
    """

    metric: str = ""
    before: float | None = None
    after: float | None = None
    gain: float | None = None
    interval: float | None = None
    detectable: bool = False
    iterations: int = 0
    settled: bool = False
    remarks: tuple[Fact, ...] = ()
    note: str = ""


Verdict = Literal[
    "launch-bound",  # the GPU waits for kernels to be launched
    "data-bound",  # it waits for the input
    "env-bound",  # it waits for environments that are stepped on the CPU
    "memory-bandwidth-bound",
    "compute-bound",  # it is near what its arithmetic units can do
    "power-limited",
    "heat-limited",
    "communication-bound",  # it waits for other ranks
    "memory-unused",  # work is cut smaller than memory asks for
    "healthy",  # nothing stands out
    "unknown",  # too little is known, and the facts name what is missing
]
VERDICTS: frozenset[str] = frozenset(get_args(Verdict))
TUNER = "the tuner"
"""Its name where it is told who did something."""
Objective = Literal["throughput", "energy"]
WORK_PER_JOULE = "units_per_joule"
"""The metric of the objective `energy`."""
Stand = Literal["off", "baseline", "trial", "holding", "waiting"]
Result = Literal["running", "kept", "reverted", "failed", "interrupted", "unfinished"]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A change that might help: which knob, which way, what it would cost.

    `value` is what to set, None where no more than the direction can be said; `knob` is empty where no knob
    of the run helps. `fact` has what a sentence needs; None in an older recording.
    """

    knob: str = ""
    direction: Literal["up", "down", "to", ""] = ""
    value: KnobValue | None = None
    fact: Fact | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What limits a run, over the `seconds` before `t`.

    `verdict` is one of `VERDICTS`. That of a newer hoptui becomes `unknown`, and a first fact has its name.
    `confidence` is 0 to 1, 0 also where it is not known; `facts` are the evidence, the strongest first.
    `stale` means that a knob has another value since: what the run is like with that is not seen yet.
    """

    verdict: str = "unknown"
    confidence: float = 0.0
    facts: tuple[Fact, ...] = ()
    advice: tuple[Advice, ...] = ()
    seconds: float = 0.0
    t: int = 0
    stale: bool = False

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            newer = fact("diagnosis.newer_verdict", verdict=self.verdict)
            structs.force_setattr(self, "facts", (newer, *self.facts))
            structs.force_setattr(self, "verdict", "unknown")
            structs.force_setattr(self, "confidence", 0.0)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Within what the tuner works.

    `memory` is the share of a GPU's memory that a trial may be expected to take, other processes' included;
    `power_w` the most watts a GPU; `budget` the share of the run's time that trials may cost; `learning` the
    knobs of that effect it may turn besides those of effect `speed` ("*": see `may_turn`); `dry` says what it
    would try, and tries nothing.
    """

    memory: float = 0.92
    power_w: float | None = None
    budget: float = 0.02
    objective: Objective = "throughput"
    learning: tuple[str, ...] = ()
    dry: bool = False


YOUNG_S = 3600.0
"""A run that is tuned for less may spend what this long a one may: else nothing could be tried while it
matters most."""


def may_turn(spec: KnobSpec, limits: Limits) -> bool:
    """Whether a tuner within `limits` may turn such a knob: one of cost `restart` never, one of effect
    `learning` where it is allowed.

    That is by name, or with "*" where it costs something to turn: those that are read inside the step are not
    there for speed.
    """
    if spec.cost == "restart":
        return False
    if spec.effect == "speed" or spec.name in limits.learning:
        return True
    return "*" in limits.learning and spec.cost != "free"


def check_limits(limits: Limits) -> None:
    """Refuse limits that nobody can work within.

    Raises:
        ValueError: one sentence that names the limit; NaN is none.
    """
    if not 0 < limits.memory <= 1:
        raise ValueError(f"memory is a share of a GPU's, more than 0 and at most 1, not {limits.memory:g}")
    if limits.power_w is not None and not 0 < limits.power_w < 1e6:
        raise ValueError(f"power is in watts, more than 0, not {limits.power_w:g}")
    if not 0 < limits.budget <= 1:
        raise ValueError(
            f"the budget is a share of the run's time, more than 0 and at most 1, not {limits.budget:g}"
        )


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A knob of a trial: from what to what."""

    knob: str
    before: KnobValue
    value: KnobValue


def written(changes: Iterable[Change]) -> str:
    """Changes in a sentence: `micro_batch 32 → 64, grad_accum 16 → 8`."""
    return ", ".join(f"{c.knob} {shown(c.before)} → {shown(c.value)}" for c in changes)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the tuner tried, or tries now.

    `why` has the reasons and, once it has ended, how it ended. `text` is the same in the words of an older
    recording.
    """

    changes: tuple[Change, ...]
    result: Result = "running"
    t: int = 0
    step: int | None = None
    iterations: int = 0
    seconds: float = 0.0
    measured: Measured | None = None
    why: tuple[Fact, ...] = ()
    text: str = ""


class TunerState(msgspec.Struct, frozen=True, kw_only=True):
    """The tuner of one run.

    `stand`: `baseline` measures the values in effect, `holding` watches and tries nothing, `waiting` cannot
    go on now. `facts` are what it does, `text` the same in the words of an older recording. `next` are the
    changes that it would try next. `tried` are ended trials, oldest first, with those of tuners of this run
    before it; `frozen` knobs that it leaves alone, `spent` the share of the run's time since its start that
    trials have cost: standing still, and what was not kept. `lived_s` is that time, in seconds: what the run
    did not train in is not counted.
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
    started: int = 0
    user: str = ""


class Tune(msgspec.Struct, frozen=True, kw_only=True, tag="tune"):
    """A request to the tuner of a run: start it within `limits`, stop it, leave `knob` alone (`freeze`) or
    not (`release`)."""

    id: int
    run: str
    op: Literal["start", "stop", "freeze", "release"]
    knob: str = ""
    limits: Limits = Limits()


class Tuned(msgspec.Struct, frozen=True, kw_only=True, tag="tuned"):
    """The answer to a Tune: `granted`, or `code` and `fields` that say why not.

    `reason` is the sentence that older daemons send instead.
    """

    id: int
    run: str
    granted: bool
    code: str = ""
    fields: dict[str, Any] = {}
    reason: str = ""
    state: TunerState = TunerState()
