"""One change on its way: what became of its commands, and whether it is worth keeping. And the budget of the
search, in seconds of the run's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

from msgspec import structs

from hoptui.diagnosis.knob_roles import reads
from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobValue
from hoptui.domain.throughput import level, usable
from hoptui.domain.tuning import YOUNG_S, Change, Limits, Measured, Trial
from hoptui.protocol.messages import FINAL, CommandRecord
from hoptui.tuner.effect import BLOCK, LOOKS, PATIENT, WARM_UP, WORTH
from hoptui.tuner.observation import Observation
from hoptui.tuner.search.space import Candidate, Lever

BORNE = 0.04
"""What a smaller setting, which leaves room, may lose at worst where it is more likely to lose nothing."""
PATIENCE = 4
"""One that takes so many times as long as it should, without an iteration to show for it, is ended."""
ABOVE = 0.03
"""What a trial may take of all memory beyond the limit, which what is expected of it keeps within: else it is
ended."""
HARMFUL = 0.5
"""A trial at less than this share of the speed before is ended before its first look."""
FEW = 2
"""So many iterations after the first show that where the budget is overdrawn: each may cost what all of it
was meant to."""
NOT_ITS_FAULT = (
    "held_by_person",
    "stale_epoch",
    "restarting",
    "no_such_run",
    "version_conflict",
    "pending_conflict",
)
"""Codes of refusals that say nothing of the value."""

Decision = Literal["keep", "drop", "more"]


class Ending(NamedTuple):
    """How a trial ends: kept or reverted, and `why`. With `figure` this is the effect that the trial has.

    `found` is what is to be learned of its speed, None where it asked too much of the run, however fast it
    was.
    """

    kept: bool
    found: Measured | None
    why: Fact | None = None
    figure: bool = False


@dataclass
class ChangeSet:
    """Knobs set together: the commands made of it, and what the run says of them."""

    changes: tuple[Change, ...]
    why: tuple[Fact, ...]
    ids: Mapping[str, str] = field(default_factory=dict)
    _heard: dict[str, CommandRecord] = field(default_factory=dict)

    def own(self, records: Sequence[CommandRecord]) -> list[CommandRecord]:
        """Its commands, as they were last heard of: `records` are a run's newest, and others may have come
        since.
        """
        mine = set(self.ids.values())
        self._heard |= {r.id: r for r in records if r.id in mine}
        return list(self._heard.values())

    def trouble(self, records: Sequence[CommandRecord]) -> CommandRecord | None:
        """The first of its commands that came to nothing, or was undone."""
        return next((r for r in self.own(records) if r.stage in FINAL and r.stage != "applied"), None)

    def applied(self, records: Sequence[CommandRecord]) -> int | None:
        """The first iteration with all of it in effect, None while some of it is not."""
        steps = [r.step for r in self.own(records) if r.stage == "applied" and r.step is not None]
        return max(steps) if self.ids and len(steps) == len(self.ids) else None

    def settled(self, records: Sequence[CommandRecord]) -> bool:
        """Whether nothing of it is pending any more."""
        return all(r.stage in FINAL for r in self.own(records))

    def effective(self, records: Sequence[CommandRecord]) -> dict[str, KnobValue]:
        """What was read back, by knob, of what is in effect."""
        return {
            r.knob: r.effective for r in self.own(records) if r.stage == "applied" and r.effective is not None
        }

    def standstill(self, records: Sequence[CommandRecord]) -> float:
        """Seconds that the run stood still for it."""
        return sum(r.took_s or 0.0 for r in self.own(records))


@dataclass
class RunningTrial:
    """A trial under way: what it is, against what it is measured, how long it has taken."""

    move: ChangeSet
    tried: Candidate
    before: list[float]
    told: Trial
    expected_s: float
    retries: float | None
    seconds: float = 0.0

    def ending(
        self,
        observation: Observation,
        limits: Limits,
        after: Sequence[float],
        found: Measured,
        *,
        overdrawn: bool,
    ) -> Ending | None:
        """How it ends, given all values since it took effect and what they come to; None while it goes on."""
        if (too_much := self.too_much(observation, limits, len(after))) is not None:
            return Ending(False, None, too_much)
        if harmful(self.before, after, overdrawn=overdrawn):
            return Ending(False, Measured(), fact("trial.harmful"))
        if found.gain is None and self.seconds > max(60.0, PATIENCE * self.expected_s):
            return Ending(False, found, fact("trial.unmeasured"))
        out_of_time = overdrawn and found.gain is not None
        match decide(found, smaller=self.tried.way < 0, out_of_time=out_of_time):
            case "keep":
                return Ending(True, found, doubt(found))
            case "drop":
                return Ending(False, found, figure(found), figure=True)
            case "more":
                return None

    def too_much(self, observation: Observation, limits: Limits, iterations: int) -> Fact | None:
        """What a trial must not do, however fast it is, after so many iterations; None for nothing."""
        if (
            self.retries is not None
            and observation.alloc_retries is not None
            and observation.alloc_retries > self.retries
        ):
            return fact("trial.alloc_retries")
        if iterations <= WARM_UP:
            slow = self.seconds > max(60.0, PATIENCE * self.expected_s)
            return fact("trial.stalled") if slow else None
        most, power = limits.power_w, observation.power_w
        if most is not None and power is not None and power > most:
            return fact("trial.power", power_w=power, limit_w=most)
        if self.tried.way > 0 and observation.taken > limits.memory + ABOVE:
            return fact("trial.memory", share=observation.taken)
        return None


def again(trial: Trial, levers: Sequence[Lever]) -> Candidate | None:
    """What an ended trial has tried, as something to try; None where none of the levers has its knob."""
    lead = trial.changes[0]
    for lever in levers:
        if lever.name == lead.knob:
            larger = lever.size_of(lead.value) > lever.size_of(lead.before)
            way = (1 if larger else -1) if lever.ordered else 0
            return Candidate(((lever, lead.value),), way, trial.why)
    return None


def figured(trial: Trial) -> Measured | None:
    """The last figure of a trial that has ended, None where it measured too little for one."""
    if trial.measured is None or trial.measured.gain is None:
        return None
    return structs.replace(trial.measured, settled=True)


def length(changes: Iterable[Change]) -> int:
    """Iterations that a trial of these changes takes as a rule."""
    return WARM_UP + (PATIENT[0] if any(reads(change.knob) for change in changes) else LOOKS[1])


def blames(trouble: CommandRecord) -> bool:
    """Whether a command that came to nothing, or was undone, says that the run cannot have the value."""
    return trouble.stage not in ("superseded", "expired", "voided") and trouble.code not in NOT_ITS_FAULT


def obstacle(observation: Observation, limits: Limits) -> Fact | None:
    """Why nothing can be tried now, None if it can."""
    if observation.state != "live":
        return fact("wait.run_state", state=observation.state)
    if limits.power_w is not None and observation.power_w is None:
        return fact("wait.power_unknown")
    if limits.objective == "energy" and observation.drawn_w is None:
        return fact("wait.total_power_unknown")
    return None


def decide(found: Measured, *, smaller: bool, out_of_time: bool = False) -> Decision:
    """Keep what surely gains more than 2 %; what very likely does once there is no later look; else the
    smaller setting.

    `out_of_time` asks for an answer from what there is.
    """
    if found.gain is None or found.interval is None:
        return "drop" if out_of_time or found.settled else "more"
    if abs(found.gain - WORTH) > found.interval:
        return "keep" if found.gain > WORTH else "drop"
    if not (found.settled or out_of_time):
        return "more"
    likely = found.gain - WORTH > found.interval / 2
    return "keep" if likely or (smaller and 0 < found.gain > found.interval - BORNE) else "drop"


def doubt(found: Measured) -> Fact | None:
    """Why something is kept that is not sure to gain enough, None where it is.

    It has the figure where the trial's effect shows none, because it is not detectable.
    """
    if found.gain is None or found.interval is None or found.gain - WORTH > found.interval:
        return None
    likely = found.gain - WORTH > found.interval / 2
    effect = None if found.detectable else figure(found)
    return fact("trial.likely" if likely else "trial.smaller", effect=effect)


def harmful(before: Sequence[float], after: Sequence[float], *, overdrawn: bool = False) -> bool:
    """Whether a block of iterations after the warm-up says already that the run is far slower than it was; a
    `FEW` where the budget is `overdrawn`.
    """
    then, now, enough = usable(before), usable(after[WARM_UP:]), BLOCK
    if overdrawn and len(now) < BLOCK:
        now, enough = usable(after[1:]), FEW
    if len(now) < enough or not then:
        return False
    # The faster of the two: neither a spike nor a wait in every second iteration is to look like harm.
    return max(median(now), level(now)) < HARMFUL * level(then)


def figure(found: Measured) -> Fact:
    """The effect of a trial, or that there is none yet."""
    if found.gain is None or found.interval is None:
        return fact("trial.too_few")
    return fact("trial.effect", gain=found.gain, interval=found.interval)


class Budget:
    """The share of a run's time that goes into trials.

    What counts is what a trial costs: how long the run stood still for it and, unless it is kept, the
    iterations in it. Those of a change that is kept were faster than they would have been. Time in which the
    run does not train is no time here.
    """

    def __init__(self, share: float, now: int) -> None:
        self.share = share
        self.lived = 0.0
        self.spent = 0.0
        self.fruitless = False
        """Whether a trial was taken back before."""
        self._t = now

    def take_over(self, lived: float, share: float, *, fruitless: bool) -> None:
        """Go on from what another tuner of the run has left: seconds of its time, and the share of them that
        trials have cost."""
        self.lived += lived
        self.spent += share * lived
        self.fruitless |= fruitless

    def tick(self, t: int, *, training: bool, trying: bool) -> float:
        """The clock is at `t` (monotonic ns); what was the run doing since the last tick? Seconds that count
        as its time."""
        passed = max(0, t - self._t) / 1e9 if training else 0.0
        self._t = max(t, self._t)
        self.lived += passed
        if trying:
            self.spent += passed
        return passed

    @property
    def left(self) -> float:
        """Seconds that may still be spent, negative when overdrawn."""
        return self.share * max(self.lived, YOUNG_S) - self.spent

    @property
    def share_spent(self) -> float:
        """Of the run's time so far."""
        return self.spent / self.lived if self.lived else 0.0

    def affords(self, standstill: float, iterations: float) -> bool:
        """Whether a trial can be paid for: seconds of standing still, and of iterations.

        Until one was taken back, iterations may take as long as they do: where one takes minutes, nothing
        could ever be tried.
        """
        return standstill + (iterations if self.fruitless else 0.0) <= self.left

    def refund(self, seconds: float) -> None:
        """A trial was kept: so much of it cost nothing."""
        self.spent = max(0.0, self.spent - seconds)
