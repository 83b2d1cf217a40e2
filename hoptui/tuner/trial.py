"""One change on its way: the state of its commands, and whether it is worth keeping. Also the budget of the
search, in seconds of the run's time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

from msgspec import structs

from hoptui.diagnosis.knob_roles import reads
from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobValue
from hoptui.domain.throughput import level, usable
from hoptui.domain.tuning import YOUNG_S, Change, Limits, Measured, Result, Trial
from hoptui.protocol.messages import FINAL, LATER_CODE, CommandRecord
from hoptui.tuner.effect import BLOCK, CLEAR, LOOKS, PATIENT, WARM_UP, WORTH
from hoptui.tuner.observation import Observation
from hoptui.tuner.search.memory_model import ABOVE
from hoptui.tuner.search.space import Candidate, Lever

BORNE = 0.04
"""The most that a smaller setting, which leaves memory free, may lose, if it probably loses nothing."""
PATIENCE = 4
"""A trial is ended after this many times its expected duration without a measured iteration."""
HARMFUL = 0.5
"""A trial at less than this share of the speed before is ended before its first look."""
CAUTIOUS = 0.25
"""The part of the budget that guesses may cost before one was kept: the values in effect may be the best."""
FIRST_GUESSES = 3
"""So many guesses are tried although they cost more, if the whole budget covers them. Otherwise one unclear
trial of slow iterations would be the only one. They are brief once that part is spent. A second look at an
unclear one is none of them: what was never tried comes first."""
ALLOWANCE = 0.2
"""The part of the remaining budget that the iterations of a trial may cost. After it and the first look, the
trial is decided by what is measured."""
ALLOWANCE_AGAIN = 0.5
"""The same for a trial whose first result was unclear: nothing better is left then."""
FEW = 2
"""If the budget is overdrawn, this many iterations after the first suffice to show harm. Each may cost as
much as the whole budget."""
NOT_ITS_FAULT = (
    "held_by_person",
    "stale_epoch",
    "restarting",
    "no_such_run",
    "version_conflict",
    "pending_conflict",
)
"""Codes of refusals that do not depend on the value."""

Decision = Literal["keep", "drop", "more"]


class Ending(NamedTuple):
    """How a trial ends: kept or reverted, and `why`. With `figure`, the reason is the trial's measured
    effect.

    `found` is what the search learns about its speed. None if the trial exceeded a limit, however fast it
    was.
    """

    kept: bool
    found: Measured | None
    why: Fact | None = None
    figure: bool = False


@dataclass
class ChangeSet:
    """Knobs set together: the commands made of them, and the run's reports about these."""

    changes: tuple[Change, ...]
    why: tuple[Fact, ...]
    ids: Mapping[str, str] = field(default_factory=dict)
    _heard: dict[str, CommandRecord] = field(default_factory=dict)

    def own(self, records: Sequence[CommandRecord]) -> list[CommandRecord]:
        """The latest known state of its commands. `records` are only the newest of the run, so earlier ones
        are kept here.
        """
        mine = set(self.ids.values())
        self._heard |= {r.id: r for r in records if r.id in mine}
        return list(self._heard.values())

    def trouble(self, records: Sequence[CommandRecord]) -> CommandRecord | None:
        """The first of its commands that failed or was undone."""
        return next((r for r in self.own(records) if r.stage in FINAL and r.stage != "applied"), None)

    def applied(self, records: Sequence[CommandRecord]) -> int | None:
        """The first iteration with all knobs in effect. None while some are not."""
        steps = [r.step for r in self.own(records) if r.stage == "applied" and r.step is not None]
        return max(steps) if self.ids and len(steps) == len(self.ids) else None

    def awaited(self, records: Sequence[CommandRecord]) -> bool:
        """Whether the run has taken a change that takes effect later, such as at the next epoch."""
        return any(r.stage == "scheduled" and r.code == LATER_CODE for r in self.own(records))

    def settled(self, records: Sequence[CommandRecord]) -> bool:
        """Whether all of its known commands are final."""
        return all(r.stage in FINAL for r in self.own(records))

    def effective(self, records: Sequence[CommandRecord]) -> dict[str, KnobValue]:
        """The values in effect that were read back, by knob."""
        return {
            r.knob: r.effective for r in self.own(records) if r.stage == "applied" and r.effective is not None
        }

    def standstill(self, records: Sequence[CommandRecord]) -> float:
        """Seconds that the run paused for it."""
        return sum(r.took_s or 0.0 for r in self.own(records))


@dataclass
class RunningTrial:
    """A trial under way: its changes, its baseline and its duration so far.

    `throughput` is the throughput before it, if the baseline is of another objective. A `brief` trial may be
    decided by its first block.
    """

    move: ChangeSet
    tried: Candidate
    before: list[float]
    told: Trial
    expected_s: float
    retries: float | None
    allowance_s: float = math.inf
    seconds: float = 0.0
    throughput: Sequence[float] = ()
    brief: bool = False

    def ending(
        self,
        observation: Observation,
        limits: Limits,
        after: Sequence[float],
        found: Measured,
        *,
        overdrawn: bool,
    ) -> Ending | None:
        """How it ends, given all values since it took effect and their result. None while it continues."""
        if (too_much := self.too_much(observation, limits, len(after))) is not None:
            return Ending(False, None, too_much)
        spent = self.seconds - self.move.standstill(observation.records)
        over_allowance = spent > self.allowance_s
        # A brief trial is short in any case, and its warm-up alone may use its allowance.
        if harmful(self.before, after, overdrawn=overdrawn or (over_allowance and not self.brief)):
            return Ending(False, Measured(), fact("trial.harmful"))
        if found.gain is None and self.seconds > max(60.0, PATIENCE * self.expected_s):
            return Ending(False, found, fact("trial.unmeasured"))
        out_of_time = (overdrawn or over_allowance) and found.gain is not None
        if found.iterations < LOOKS[0] and not (found.settled or out_of_time):
            return None  # only a brief trial has a figure, and only the end of its time calls for it
        match decide(found, smaller=self.tried.way < 0, out_of_time=out_of_time):
            case "keep":
                return Ending(True, found, doubt(found))
            case "drop":
                return Ending(False, found, figure(found), figure=True)
            case "more":
                return None

    def too_much(self, observation: Observation, limits: Limits, iterations: int) -> Fact | None:
        """The limit that the trial exceeds after this many iterations, however fast it is. None if none."""
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
    """The ended trial as a candidate. None if no lever has its knob."""
    lead = trial.changes[0]
    for lever in levers:
        if lever.name == lead.knob:
            larger = lever.size_of(lead.value) > lever.size_of(lead.before)
            way = (1 if larger else -1) if lever.ordered else 0
            return Candidate(((lever, lead.value),), way, trial.why)
    return None


def ended(trial: Trial, result: Result, why: tuple[Fact, ...]) -> Trial:
    """Return a trial as it has ended. An effect for which it measured too little is left out."""
    measured, throughput = _final(trial.measured), _final(trial.throughput)
    return structs.replace(trial, result=result, measured=measured, throughput=throughput, why=why)


def _final(measured: Measured | None) -> Measured | None:
    if measured is None or measured.gain is None:
        return None
    return structs.replace(measured, settled=True)


def length(
    changes: Iterable[Change], gain: float | None = None, most: float = math.inf, *, brief: bool = False
) -> int:
    """Iterations that a trial of these changes usually takes: fewer with a large expected `gain`, or if only
    `most` are allowed. A `brief` one may begin while a block is allowed, its warm-up not counted."""
    if any(reads(change.knob) for change in changes):
        return WARM_UP + PATIENT[0]
    usual = WARM_UP + LOOKS[0 if gain is not None and gain > 2 * CLEAR else 1]
    if usual <= most:
        return usual
    return BLOCK if brief else WARM_UP + LOOKS[0]


def blames(trouble: CommandRecord) -> bool:
    """Whether a command that failed or was undone shows that the run cannot have the value."""
    return trouble.stage not in ("superseded", "expired", "voided") and trouble.code not in NOT_ITS_FAULT


def obstacle(observation: Observation, limits: Limits) -> Fact | None:
    """Why nothing can be tried now, None if it can."""
    if observation.state != "live":
        return fact("wait.run_state", state=observation.state)
    if limits.power_w is not None and observation.power_w is None:
        return fact("wait.power_unknown")
    if limits.objective == "energy" and observation.drawn_w is None:
        return observation.no_energy or fact("wait.total_power_unknown")
    return None


def decide(found: Measured, *, smaller: bool, out_of_time: bool = False) -> Decision:
    """Keep a change that surely gains more than 2 %. Without a later look, keep one that very likely does,
    else the smaller setting.

    `out_of_time` asks for a decision from the present data.
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
    """Why a change is kept although its gain is not certain to suffice. None if it is certain.

    The fact includes the figure if the trial's effect shows none because it is not detectable.
    """
    if found.gain is None or found.interval is None or found.gain - WORTH > found.interval:
        return None
    likely = found.gain - WORTH > found.interval / 2
    effect = None if found.detectable else figure(found)
    return fact("trial.likely" if likely else "trial.smaller", effect=effect)


def harmful(before: Sequence[float], after: Sequence[float], *, overdrawn: bool = False) -> bool:
    """Whether a block of iterations after the warm-up already shows that the run is far slower than before.
    With an `overdrawn` budget, `FEW` iterations suffice.
    """
    then, now, enough = usable(before), usable(after[WARM_UP:]), BLOCK
    if overdrawn and len(now) < BLOCK:
        now, enough = usable(after[1:]), FEW
    if len(now) < enough or not then:
        return False
    # The faster of the two: neither a spike nor a wait in every second iteration may look like harm.
    return max(median(now), level(now)) < HARMFUL * level(then)


def figure(found: Measured) -> Fact:
    """The effect of a trial, or the fact that there is none yet."""
    if found.gain is None or found.interval is None:
        return fact("trial.too_few")
    return fact("trial.effect", gain=found.gain, interval=found.interval)


class Budget:
    """The share of a run's time that goes into trials.

    A trial costs the time for which the run paused for it. Unless it is kept, it also costs its iterations:
    those of a kept change were faster than they would have been. Time in which the run does not train does
    not count.

    Until a trial is kept, guesses may cost only a part of the share: the values in effect may be the best.
    """

    def __init__(self, share: float, now: int) -> None:
        self.share = share
        self.lived = 0.0
        self.spent = 0.0
        self.fruitless = False
        """Whether a trial was reverted before."""
        self.fruitful = False
        """Whether one was kept."""
        self.voided = 0.0
        """Seconds of trials that something else disturbed. Guesses need not make up for them."""
        self.guesses = 0
        """The guesses that were reverted."""
        self._t = now

    def take_over(
        self, lived: float, share: float, *, fruitless: bool, fruitful: bool, guesses: int = 0
    ) -> None:
        """Continue the account of an earlier tuner of the run: `lived` seconds, and the `share` of them that
        its trials cost. `guesses` of them were reverted."""
        self.guesses += guesses
        self.lived += lived
        self.spent += share * lived
        self.fruitless |= fruitless
        self.fruitful |= fruitful

    def tick(self, t: int, *, training: bool, trying: bool) -> float:
        """Advance the clock to `t` (monotonic ns). `training` and `trying` describe the time since the last
        tick. Return the seconds that count as the run's time."""
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

    def allowance_s(self, *, again: bool, advised: bool) -> float:
        """Seconds of iterations after which a trial that begins now is decided by what is measured.

        More if it is tried `again`, because nothing better is left. A guess before one was kept has half of
        the part for guesses, or all of it when it is tried again.
        """
        if self.cautious(advised=advised):
            left = max(0.0, self._for_guesses)
            return left if again else ALLOWANCE_AGAIN * left
        return (ALLOWANCE_AGAIN if again else ALLOWANCE) * max(0.0, self.left)

    def cautious(self, *, advised: bool) -> bool:
        """Whether a trial is a guess before one was kept."""
        return not (advised or self.fruitful)

    def brief(self, *, advised: bool) -> bool:
        """Whether a trial may be decided by its first block: a guess after one was reverted, before one was
        kept. Otherwise one unclear trial of slow iterations would be the only one."""
        return self.fruitless and self.cautious(advised=advised)

    def left_for(self, *, advised: bool, again: bool = False) -> float:
        """Seconds that may still be spent on a trial, fewer on a guess until one was kept.

        `advised`: the diagnosis or an earlier run speaks for it. `again`: it was unclear before.
        """
        exempt = (self.guesses < FIRST_GUESSES and not again) or not self.cautious(advised=advised)
        return self.left if exempt else self._for_guesses

    @property
    def _for_guesses(self) -> float:
        kept_back = (1 - CAUTIOUS) * self.share * max(self.lived, YOUNG_S)
        return self.left - max(0.0, kept_back - self.voided)

    @property
    def share_spent(self) -> float:
        """The share of the run's time so far that was spent."""
        return self.spent / self.lived if self.lived else 0.0

    def affords(
        self, standstill: float, iterations: float, *, advised: bool = False, again: bool = False
    ) -> bool:
        """Whether the budget covers a trial: seconds of pausing, and of iterations.

        Until the first trial is reverted, iterations do not count. Otherwise a run with iterations of minutes
        could never try anything.
        """
        cost = standstill + (iterations if self.fruitless else 0.0)
        return cost <= self.left_for(advised=advised, again=again)

    def refund(self, seconds: float) -> None:
        """Give back the seconds of a kept trial that cost nothing."""
        self.spent = max(0.0, self.spent - seconds)
