"""The tuner of one run: it observes, changes one thing, measures, and keeps or reverts. No clock, no I/O, no
thread."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from hoptui.domain.facts import Fact, fact
from hoptui.domain.tuning import Change, Limits, Measured, Result, Stand, Trial, TunerState
from hoptui.protocol.messages import CommandRecord, Verb
from hoptui.tuner.effect import WARM_UP, measure, plan_for
from hoptui.tuner.learning_check import changed_learning
from hoptui.tuner.observation import Observation, PriorResult, Proposal
from hoptui.tuner.outside_load import OutsideLoad
from hoptui.tuner.overrides import KnobOverrides, asks, holds
from hoptui.tuner.regret import Regret
from hoptui.tuner.rollback import Rollback
from hoptui.tuner.search.memory_guard import MemoryGuard
from hoptui.tuner.search.parameter_history import ParameterHistories
from hoptui.tuner.search.space import Candidate, Lever
from hoptui.tuner.search.strategy import NoCandidate, Search
from hoptui.tuner.throughput_series import Incumbent, ObjectiveSeries
from hoptui.tuner.trial import Budget, ChangeSet, RunningTrial, again, blames, ended, length, obstacle

DISTURBING: tuple[Verb, ...] = ("pause", "checkpoint", "profile")
"""Commands that change the speed of the iterations after them."""
MOST_REOPENED = 2
"""After so many changes of the speed without a trial that was kept, the rejected values stay rejected."""
MOST_VOIDS = 3
"""The same change is measured anyway after so many trials that something disturbed."""
TOLD = 50
"""The number of ended trials that are reported."""


class Tuner:
    """Turns the knobs of one run, one change at a time.

    Call `look` about once a second and at new iterations. Make commands of what it returns, and pass their
    ids to `sent`. Their outcome is read from the records of the next observation. Times are monotonic
    nanoseconds. `incumbent` holds the values that the tuner would now return to. `overrides` are the knobs
    that it leaves alone.
    """

    def __init__(
        self,
        limits: Limits,
        now: int,
        user: str,
        known: PriorResult | None = None,
        overrides: KnobOverrides | None = None,
    ) -> None:
        self.overrides = overrides or KnobOverrides()
        self._state = TunerState(
            stand="baseline", facts=(fact("tuner.begins"),), limits=limits, started=now, user=user
        )
        self._limits = limits
        self._budget = Budget(limits.budget, now)
        self._regret = Regret()
        self._tracks = ParameterHistories(limits)
        self._search = Search(self._tracks, known)
        self.incumbent = Incumbent(ObjectiveSeries(limits.objective))
        self._room = MemoryGuard(self._tracks)
        self._outside = OutsideLoad()
        self._reopened = 0
        self._voids: Counter[tuple[Change, ...]] = Counter()
        self._seen_choices: set[str] = set()  # ids of users' commands
        self._observation: Observation | None = None
        self._attempt: RunningTrial | None = None
        self._rollback: Rollback | None = None
        self._offered: ChangeSet | None = None
        self._failed: tuple[Trial, ...] = ()  # of an earlier tuner
        self._rested = False
        self._uneven = False  # the other ranks waited for one at the last look
        self._own_values = False  # the values in effect are those of the last kept trial
        self._stand: Stand = "baseline"
        self._facts: tuple[Fact, ...] = ()

    @property
    def state(self) -> TunerState:
        """The state that is reported."""
        return structs.replace(self._state, frozen=self.overrides.names)

    def found(self) -> PriorResult | None:
        """The result to remember of this run. None until something was measured, and either nothing better is
        left to try or the rest is too expensive.

        A run gives no result while users hold a knob that would otherwise be turned: their value need not be
        the best. It also gives none while the prior result of another run could not be afforded: that one may
        be better.
        """
        told = any(trial.result in ("kept", "reverted") for trial in self._state.tried)
        if not told or not self._rested or self._search.owed or self._observation is None:
            return None
        names = {n for lever in self._tracks.levers(self._observation, set()) for n in lever.names}
        if names & self.overrides.all:
            return None
        values = {n: v for n, v in self.incumbent.values.items() if n in names}
        return PriorResult(values, self._room.peak or None)

    def take_over(self, left: TunerState) -> None:
        """Continue for an earlier tuner of this run that was cut off: with its expenses, its overrides and
        its failed trials."""
        self.overrides.freeze(left.frozen)
        self.charge(left)
        self._failed = tuple(trial for trial in left.tried if trial.result == "failed")

    def charge(self, left: TunerState) -> None:
        """Continue the account of the run: the expenses of an earlier tuner count."""
        results = [trial.result for trial in left.tried]
        self._budget.take_over(
            left.lived_s, left.spent, fruitless=bool(set(results) - {"kept"}), fruitful="kept" in results,
            guesses=results.count("reverted"),
        )  # fmt: skip
        self._regret.take_over(left.regret_units, left.best_rate)
        self._state = structs.replace(self._state, **self._account())

    def stop(self, now: int) -> Rollback | None:
        """End for good. Return the rollback of an unfinished trial, None if there is none."""
        self._budget.tick(now, training=True, trying=False)
        stopped = fact("trial.tuner_stopped")
        rollback = self._cut_off("interrupted", stopped)
        self._state = structs.replace(
            self._state, stand="off", facts=(fact("tuner.stopped"),), trial=None, next=()
        )
        if rollback is not None and rollback.report:
            why = (*rollback.trial.why, stopped)
            self._tell(structs.replace(rollback.trial, result="interrupted", why=why))
        return rollback

    def sent(self, ids: Mapping[str, str]) -> None:
        """Take the command ids, by knob, of the newest proposal. Without this call, the proposal counts as
        never made."""
        if self._offered is None:
            return
        self._offered.ids = dict(ids)
        if self._attempt is not None and self._attempt.move is self._offered:
            self._search.made()
            self._regret.begin(self.incumbent.rate, self._budget.lived)
        elif self._rollback is not None and self._observation is not None:
            self._rollback.sent(self._offered, self._observation.t)
        self._offered = None

    def look(self, observation: Observation) -> Proposal | None:
        """What to change now, if anything."""
        if self._state.stand == "off":
            return None
        observation = observation.current()
        self._withdraw()
        self._notice(observation)
        self._observation = observation
        proposal, following = self._act(observation)
        self._state = structs.replace(
            self._state,
            stand=self._stand,
            facts=self._facts,
            trial=self._attempt.told if self._attempt else None,
            next=following,
            **self._account(),
        )
        return proposal

    def _account(self) -> dict[str, float | None]:
        """What trials have cost, as fields of the reported state."""
        return {
            "spent": self._budget.share_spent,
            "lived_s": round(self._budget.lived, 1),
            "regret_units": self._regret.units,
            "best_rate": self._regret.best,
        }

    # what has happened --------------------------------------------------------------------------------------

    def _withdraw(self) -> None:
        """Drop a proposal for which no commands were sent."""
        if self._attempt is not None and self._attempt.move is self._offered:
            self._attempt = None
        self._offered = None

    def _notice(self, observation: Observation) -> None:
        awaited = self._attempt is not None and self._attempt.move.awaited(observation.records)
        trying = self._rollback is not None or (self._attempt is not None and not awaited)
        passed = self._budget.tick(
            observation.t, training=observation.state in ("live", "busy"), trying=trying
        )
        if self._attempt is not None and not awaited:
            self._attempt.seconds += passed
        if self._observation is None:
            # Earlier iterations may have run with other values.
            self.incumbent.rest(observation, observation.points[-1][0] + 1 if observation.points else 0)
            levers = self._tracks.levers(observation, set())
            for trial in self._failed:
                if (tried := again(trial, levers)) is not None:
                    self._tracks.failed(tried, trial.t)
        elif observation.epoch != self._observation.epoch:
            self._restarted(observation)
        before = self.incumbent.series.backwards
        self.incumbent.series.take(observation)
        self._count_work()
        if not awaited:
            self._regret.look(passed, self.incumbent.series.work, self._budget.lived)
        if self._attempt is None and self._rollback is None and self._regret.counts and self.incumbent.seen:
            self._regret.end()
        if self.incumbent.series.backwards != before:
            self._abandon("interrupted", fact("trial.run_went_back"))
        self._tracks.expire(observation.t)
        self._listen(observation)
        self._void(observation)
        if observation.memory is not None:
            self._room.watch(observation)
            self._learn_memory(observation)
        if observation.shift is not None and self._attempt is None and self._rollback is None:
            if self._reopened < MOST_REOPENED:  # on a busy host the speed never stays
                self._reopened += 1
                self._tracks.reopen()
            self.incumbent.rest(observation, self.incumbent.series.newest + 1)

    def _count_work(self) -> None:
        """Add the work since the last look to the trial whose values are in effect: it gives the
        energy saved."""
        work = self.incumbent.series.work if self._limits.objective == "energy" else None
        if not work or not self._own_values or self._attempt is not None or self._rollback is not None:
            return
        tried = list(self._state.tried)
        kept = max((i for i, trial in enumerate(tried) if trial.result == "kept"), default=None)
        if kept is None:  # only the newest trials are reported
            return
        tried[kept] = structs.replace(tried[kept], units=tried[kept].units + work)
        self._state = structs.replace(self._state, tried=tuple(tried))

    def _restarted(self, observation: Observation) -> None:
        """Handle a new process: nothing of the old one is comparable, and a trial that was cut off is not
        known to be good."""
        self._rollback = self._cut_off("unfinished", fact("trial.run_restarted"))
        self._own_values = False
        self.incumbent.left()
        self.incumbent.series.cut()
        self._tracks.forget_memory()
        self.incumbent.rest(observation, 0)

    def _listen(self, observation: Observation) -> None:
        """End the trial if a user sets a knob. The user's value stays."""
        commands = [record for record in observation.records if asks(record)]
        fresh = [record for record in commands if record.id not in self._seen_choices]
        self._seen_choices = {record.id for record in commands}
        new = {record.knob for record in fresh}
        held = {record.knob for record in fresh if holds(record)}
        own = self._underway
        self.overrides.choose(held)
        if held & own:  # one knob may follow another
            self.overrides.choose(own)
        if self._attempt is None:
            return
        if new:
            self._abandon("interrupted", fact("trial.user_set", knobs=sorted(new)))
        elif aside := own & self.overrides.all:
            self._abandon("interrupted", fact("trial.left_alone", knobs=sorted(aside)))

    def _void(self, observation: Observation) -> None:
        """End a trial in which something else changed the speed. It shows nothing, so it may be tried
        again."""
        attempt = self._attempt
        if attempt is None:
            if self._rollback is None:
                self._outside.before(observation)
            return
        step = attempt.move.applied(observation.records)
        if step is None or self._voids[attempt.move.changes] >= MOST_VOIDS:
            return
        self._outside.within(observation)
        done = (r.verb for r in observation.records if r.step is not None and r.step >= step)
        verb = next((verb for verb in done if verb in DISTURBING), None)
        why = fact("trial.disturbed", verb=verb) if verb is not None else self._outside.changed()
        if why is None and observation.straggler is not None:
            why = fact("trial.straggler", why=observation.straggler)
        if why is not None:
            self._voids[attempt.move.changes] += 1
            self._budget.voided += attempt.seconds
            self._abandon("interrupted", why)

    @property
    def _underway(self) -> set[str]:
        """The knobs of the trial or of its rollback."""
        if self._attempt is not None:
            return {c.knob for c in self._attempt.move.changes}
        return set(self._rollback.targets) if self._rollback is not None else set()

    def _learn_memory(self, observation: Observation) -> None:
        attempt = self._attempt
        if attempt is None and self._rollback is None:
            self._room.learn(observation, seen=self.incumbent.seen)
        elif attempt is not None and (step := attempt.move.applied(observation.records)) is not None:
            names = {lever.name for lever, _ in attempt.tried.settings}
            self._room.learn(observation, names, seen=len(self.incumbent.series.since(step)) > WARM_UP)

    # what to do ---------------------------------------------------------------------------------------------

    def _act(self, observation: Observation) -> tuple[Proposal | None, tuple[Change, ...]]:
        if self._attempt is not None:
            return self._conduct(self._attempt, observation), ()
        if self._rollback is not None:
            return self._roll_back(self._rollback, observation), ()
        if self.incumbent.differs(observation):
            self._read_otherwise(observation)
        if room := self._make_room(observation):
            return room, ()
        if observation.straggler is not None and not self._limits.dry:
            self._uneven = True
            self._say("waiting", _waits_for(observation.straggler))
            return None, ()
        if self._uneven:
            self._uneven = False
            self.incumbent.rest_anew(observation)
        waits = obstacle(observation, self._limits)
        if not self.incumbent.seen:  # their memory is unknown too, so nothing is known of other values
            if waits is not None:
                self._say("waiting", waits)
            else:
                self._say("baseline", _to_go(self.incumbent.missing(None)))
            return None, ()
        candidate = self._search.next(observation, self.overrides.all, self._affords)
        expected = candidate.gain if isinstance(candidate, Candidate) else None
        missing = self.incumbent.missing(expected)
        if not missing:
            self._regret.know(self.incumbent.rate)
        if not missing and self._otherwise(observation.t):
            candidate = self._search.next(observation, self.overrides.all, self._affords)
        if isinstance(candidate, NoCandidate):
            if candidate.yet:
                self._say("baseline", candidate.why)
                return None, ()
            self._rested = self._rested or not missing
            self._say("holding", *self._untried(candidate.why, observation))
            return None, ()
        if self._limits.dry:
            would = fact("tuner.would_set", changes=candidate.changes, why=candidate.why)
            self._say("holding", would, *((fact("tuner.not_now", why=waits),) if waits is not None else ()))
        elif waits is not None:
            self._say("waiting", waits)
        elif missing:
            self._say("baseline", _to_go(missing))
        elif not self._affords(candidate):
            self._rested = True
            left_s = max(0.0, self._budget.left_for(advised=candidate.advised))
            cautious = self._affords(replace(candidate, advised=True))
            self._say("holding", fact("budget.cautious" if cautious else "budget.too_small", left_s=left_s))
        else:
            return self._begin(candidate, observation), ()
        return None, candidate.changes

    def _untried(self, why: Fact, observation: Observation) -> tuple[Fact, ...]:
        """Why nothing is tried, and which knobs are left alone that it could otherwise turn."""
        free: Sequence[Lever] = self._tracks.levers(observation, self.overrides.all)
        names = {lever.name for lever in free}
        out = {
            n
            for lever in self._tracks.levers(observation, ())
            if lever.name not in names
            for n in lever.names
        }
        if not (aside := sorted(out & self.overrides.all)):
            return (fact("tuner.nothing_tried", why=why),)
        if not free:
            return (fact("tuner.nothing_tried", why=fact("search.all_left_alone", knobs=aside)),)
        return fact("tuner.nothing_tried", why=why), fact("tuner.knobs_left_alone", knobs=aside)

    def _affords(self, tried: Candidate) -> bool:
        """Whether the remaining budget covers a trial of it."""
        each = self.incumbent.series.seconds
        most = self._allowance_s(tried) / each if each else math.inf
        brief = self._budget.brief(advised=tried.advised)
        iterations = length(tried.changes, tried.gain, most, brief=brief) * each
        pauses = tried.standstill + tried.way_back
        return self._budget.affords(pauses, iterations, advised=tried.advised, again=tried.gain == 0.0)

    def _allowance_s(self, tried: Candidate) -> float:
        return self._budget.allowance_s(again=tried.gain == 0.0, advised=tried.advised)

    def _otherwise(self, t: int) -> bool:
        """Whether refused values may be tried again, because the speed of the run has changed."""
        if self.incumbent.another():
            self._tracks.reopen()
            return True
        level = self.incumbent.level
        return level is not None and self._tracks.sway(self.incumbent.values, level, t)

    def _read_otherwise(self, observation: Observation) -> None:
        """Accept a knob value that a user or the run itself has changed."""
        self._own_values = False
        self.incumbent.left()
        if self._room.gave_way(observation, self.incumbent.values, self.overrides.chosen):
            self.incumbent.explained()
        self.incumbent.rest_anew(observation)

    def _begin(self, tried: Candidate, observation: Observation) -> Proposal:
        expected = tried.standstill + length(tried.changes) * self.incumbent.series.seconds
        told = Trial(changes=tried.changes, t=observation.t, why=tried.why)
        move = self._offered = ChangeSet(tried.changes, tried.why)
        self._attempt = RunningTrial(
            move,
            tried,
            self.incumbent.baseline,
            told,
            expected,
            observation.alloc_retries,
            self._allowance_s(tried),
            throughput=self.incumbent.throughput,
            brief=self._budget.brief(advised=tried.advised),
        )
        self._say("trial", fact("tuner.tries", changes=tried.changes))
        return Proposal(tried.changes, tried.why)

    def _conduct(self, attempt: RunningTrial, observation: Observation) -> Proposal | None:
        move = attempt.move
        if trouble := move.trouble(observation.records):
            return self._fail(attempt, trouble, observation)
        step = move.applied(observation.records)
        attempt.told = structs.replace(attempt.told, step=step, seconds=round(attempt.seconds, 1))
        if step is None:
            self._say("trial", fact("tuner.sets", changes=move.changes))
            return None
        effective = move.effective(observation.records)
        if all(effective.get(c.knob, c.value) == c.before for c in move.changes):
            self._tracks.ignored(attempt.tried)
            if attempt.tried.way:
                return self._take_back("failed", fact("trial.ignored"), observation)
            return self._take_back("reverted", fact("trial.no_change"), observation)
        after = self.incumbent.series.since(step)
        knobs = (change.knob for change in move.changes)
        plan = plan_for(knobs, trial=True, seconds=self.incumbent.series.seconds, brief=attempt.brief)
        found = measure(self.incumbent.series.metric, attempt.before, after, plan)
        read = tuple(structs.replace(c, value=effective.get(c.knob, c.value)) for c in move.changes)
        attempt.told = structs.replace(
            attempt.told,
            changes=read,
            measured=found,
            throughput=self._effect_on_throughput(attempt, step),
            iterations=found.iterations,
        )
        self._say("trial", fact("tuner.measures", changes=read, iterations=found.iterations))
        levers = [lever for lever, _ in attempt.tried.settings]
        if (learned := changed_learning(levers, observation, step)) is not None:
            self.overrides.freeze(learned.fields["knobs"])
            return self._take_back("failed", learned, observation)
        if observation.state not in ("live", "busy"):
            return None
        ending = attempt.ending(observation, self._limits, after, found, overdrawn=self._budget.left < 0)
        if ending is None:
            return None
        if not ending.kept:
            if ending.found is None:
                self._tracks.failed(attempt.tried, observation.t)
            else:
                self._tracks.dropped(attempt.tried, ending.found)
            return self._take_back("reverted", ending.why, observation, told=ending.figure)
        self._tracks.kept(attempt.tried, found)
        self._reopened = 0
        self._budget.fruitful = True
        paused_s = move.standstill(observation.records)
        self._budget.refund(max(0.0, attempt.seconds - paused_s))
        self._regret.kept(paused_s)
        self._end("kept", ending.why)
        self._own_values = True
        self._attempt = None
        self._room.peak = 0
        self.incumbent.rest(observation, step + WARM_UP)
        return None

    def _effect_on_throughput(self, attempt: RunningTrial, step: int) -> Measured | None:
        """What a trial does to the throughput. None if the throughput is the objective itself."""
        series = self.incumbent.series.throughput
        if series is None:
            return None
        plan = plan_for(change.knob for change in attempt.move.changes)
        return measure(series.metric, attempt.throughput, series.since(step), plan)

    def _fail(
        self, attempt: RunningTrial, trouble: CommandRecord, observation: Observation
    ) -> Proposal | None:
        """Handle a command of the trial that failed or was undone."""
        why = fact("trial.command_ended", stage=trouble.stage, reason=trouble.reason)
        if trouble.code and not trouble.reason:
            why = Fact(trouble.code, trouble.fields)
        if trouble.code == "held_by_person":
            self.overrides.choose([trouble.knob])
        if not blames(trouble):
            return self._take_back("interrupted", why, observation)
        self._tracks.failed(attempt.tried, observation.t, trouble.knob)
        return self._take_back("failed", why, observation)

    def _take_back(
        self, result: Result, why: Fact | None, observation: Observation, *, told: bool = False
    ) -> Proposal | None:
        self._abandon(result, why, told=told)
        return self._roll_back(self._rollback, observation) if self._rollback else None

    def _abandon(self, result: Result, why: Fact | None, *, told: bool = False) -> None:
        """End the trial and start its rollback. With `told`, the measured figure is the reason."""
        if self._attempt is not None:
            self._budget.fruitless = True
            self._budget.guesses += not self._attempt.tried.advised and result == "reverted"
            self._end(result, None if told else why)
            attempt, self._attempt = self._attempt, None
            self._rollback = Rollback.undo(attempt.told, fact("rollback.ended", why=why), attempt.move)

    def _roll_back(self, rollback: Rollback, observation: Observation) -> Proposal | None:
        self._say("trial", *rollback.why)
        changes = rollback.look(observation, self.overrides)
        if rollback.done:
            self._rollback = None
            self._own_values &= not (rollback.left or rollback.missing)
            self.incumbent.rest_anew(observation)
            if (trial := rollback.outcome(observation, self.overrides.chosen)) is not None:
                self._tell(trial)
            return None
        if rollback.waits is not None:
            self._say("waiting", fact("rollback.waits", why=rollback.why, until=rollback.waits))
        if not changes:
            return None
        self._offered = ChangeSet(changes, rollback.why)
        return Proposal(changes, rollback.why)

    def _make_room(self, observation: Observation) -> Proposal | None:
        """Reduce a size before memory runs out."""
        if self._limits.dry or obstacle(observation, self._limits) is not None:
            return None
        found = self._room.made(observation, self.overrides.all, seen=self.incumbent.seen)
        if found is None:
            return None
        tried, why = found
        self._own_values = False
        self._rollback = Rollback.free_memory(Trial(changes=tried.changes, t=observation.t, why=(why,)))
        return self._roll_back(self._rollback, observation)

    def _cut_off(self, result: Result, how: Fact) -> Rollback | None:
        """End what is under way, and leave the values as they are. Return the rollback that is left to do."""
        self._withdraw()
        attempt, rollback = self._attempt, self._rollback
        if attempt is not None:
            self._end(result, how)
            rollback = Rollback.undo(attempt.told)
        self._attempt = self._rollback = None
        return rollback.afresh() if rollback is not None else None

    # keeping count ------------------------------------------------------------------------------------------

    def _end(self, result: Result, how: Fact | None) -> None:
        if self._attempt is not None:
            told = self._attempt.told
            why = told.why if how is None else (*told.why, how)
            self._tell(ended(told, result, why))

    def _tell(self, trial: Trial) -> None:
        self._state = structs.replace(self._state, tried=(*self._state.tried, trial)[-TOLD:])

    def _say(self, stand: Stand, *facts: Fact) -> None:
        self._stand, self._facts = stand, facts


def _to_go(iterations: int) -> Fact:
    return fact("tuner.measures_baseline", iterations=iterations)


def _waits_for(straggler: Fact) -> Fact:
    """Why tuning waits while one rank is slow. Its knobs would only hide that.

    The other ranks do the same work in the part of the time in which they do not wait.
    """
    waits, others_wait = straggler.fields["waits"], straggler.fields["others_wait"]
    slower = (1 - waits) / max(1 - others_wait, 0.01) - 1
    return fact("wait.straggler", rank=straggler.fields["rank"], slower=slower, why=straggler)
