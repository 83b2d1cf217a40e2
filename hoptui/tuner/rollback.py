"""Bringing knobs to values that are known to be good. One state machine for every reason; no clock, no I/O.

A rollback ends a trial: one that brought nothing, one that a user interrupted, and one that was cut off when
the daemon was killed or the run crashed. It also sets a smaller size before memory runs out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.domain.tuning import Change, Trial, TunerState
from hoptui.protocol.messages import FINAL, CommandRecord
from hoptui.tuner.observation import Observation
from hoptui.tuner.overrides import ASKED, KnobOverrides, by_choice
from hoptui.tuner.trial import ChangeSet, ended

RETRY_S, TRIES = 10.0, 5
"""The seconds between attempts of a refused rollback, and the number of attempts. A retry costs nothing.
Giving up leaves the run with a value that is not known to be good."""
DECLARED_S = 60.0
"""A new process declares its knobs one by one. After this many seconds, undeclared knobs count as
missing."""
UNHEARD_S, UNHEARD_ITERATIONS = 10.0, 2
"""For so many seconds, and so many iterations, the run may still carry out a command that another daemon
sent. It is unknown whether the command came before the present iteration."""

BACK = fact("rollback.trial")
STUCK = ("rollback.refused", "rollback.not_declared")
"""The codes that end the report of a rollback that could not be carried out."""


@dataclass
class Rollback:
    """Sets `targets`, unless a user has chosen one of these knobs since `trial` began.

    A choice is overtaken when a later process, resumed from an older checkpoint, has another value.

    Call `look` at each look at the run. Send the changes that it returns, and pass their commands to `sent`.
    `waits` is what it waits for. At the end it is `done`. `left` are then the changes that were refused,
    and `missing` those of knobs that the run has not declared. These knobs stay as they are, and are frozen.

    `trial` is what is undone. With `report` it is what is set, and `outcome` is its end.
    """

    targets: dict[str, KnobValue]
    why: tuple[Fact, ...]
    trial: Trial
    move: ChangeSet | None = None
    report: bool = False
    done: bool = False
    waits: Fact | None = None
    left: tuple[Change, ...] = ()
    missing: tuple[Change, ...] = ()
    tries: int = 0
    _not_before: int = 0
    _began: int = 0
    _step: int = 0

    @classmethod
    def undo(cls, trial: Trial, why: Fact = BACK, move: ChangeSet | None = None) -> Rollback:
        """Undo a trial. `move` are its commands, if they may still be on their way."""
        return cls({change.knob: change.before for change in trial.changes}, (why,), trial, move)

    @classmethod
    def free_memory(cls, trial: Trial) -> Rollback:
        """Set the changes of `trial`, because memory would run out otherwise."""
        return cls({c.knob: c.value for c in trial.changes}, trial.why, trial, report=True)

    def afresh(self) -> Rollback:
        """The same in another process of the run, which has seen none of it."""
        return Rollback(self.targets, self.why, self.trial, report=self.report)

    def look(self, observation: Observation, overrides: KnobOverrides) -> tuple[Change, ...]:
        """What to set now, given all commands of the run since the trial began."""
        if not self._began:
            self._began, self._step = observation.t, observation.step
        self.waits, values = None, observation.values()
        if self._pending(observation):
            return ()
        self.missing = tuple(
            Change(knob=c.knob, before=c.value, value=self.targets[c.knob])
            for c in self.trial.changes
            if c.knob not in values
        )
        if self.missing and observation.t - self._began < DECLARED_S * 1e9:
            self.waits = fact("rollback.once_declared", knobs=_knobs(self.missing))
            return ()
        users = self._of_users(observation.records)
        choices = [r for r in users if r.stage in ASKED and not _overtaken(r, observation.epoch, values)]
        if any(record.stage not in FINAL for record in choices):
            self.waits = fact("rollback.once_answered")
            return ()
        if choices:
            if any(record.released is None for record in choices):
                overrides.choose(self.targets)  # one knob may follow another
            changes: tuple[Change, ...] = ()
        else:  # what was refused or overtaken holds no knob
            held = overrides.chosen - _moved(users)
            changes = self._changes(values, values, observation.records, held)
        if not changes or self.tries >= TRIES:
            self.done, self.left = True, changes
            if not self.report:
                overrides.freeze(change.knob for change in (*self.left, *self.missing))
            return ()
        if observation.t < self._not_before or observation.state in ("exited", "unresponsive"):
            self.waits = fact("rollback.once_possible")
            return ()
        return changes

    def sent(self, move: ChangeSet, t: int) -> None:
        """The changes were sent as these commands."""
        self.move, self.tries, self._not_before = move, self.tries + 1, t + round(RETRY_S * 1e9)

    def at_once(
        self, knobs: Iterable[KnobState], records: Sequence[CommandRecord], chosen: Collection[str]
    ) -> tuple[Change, ...]:
        """The changes to send if there will be no further look. A pending command counts as carried out."""
        if self.chosen(records):
            return ()
        values = {knob.spec.name: knob.value for knob in knobs}
        coming = [r for r in self._own(records) if r.stage not in FINAL and r.wanted is not None]
        then = values | {r.knob: r.wanted for r in coming if r.wanted is not None}
        return self._changes(values, then, records, chosen)

    def chosen(self, records: Sequence[CommandRecord]) -> bool:
        """Whether a user has chosen one of its knobs, also by a command that the run has not answered."""
        return any(record.stage in ("sent", *ASKED) for record in self._of_users(records))

    def outcome(self, observation: Observation, chosen: Collection[str]) -> Trial | None:
        """How it ended, as a trial to report. None if there is nothing to report."""
        if not self.report:
            if not (stuck := (*self.left, *self.missing)):
                return None
            how = fact("rollback.refused", tries=TRIES) if self.left else fact("rollback.not_declared")
            return Trial(changes=stuck, result="failed", t=observation.t, why=(*self.why, how))
        told = self.trial
        if self.missing:
            gone = fact("trial.not_declared", knobs=_knobs(self.missing))
            return structs.replace(told, result="failed", why=(*told.why, gone))
        if self.left:
            return structs.replace(told, result="failed")
        if theirs := sorted(self.targets.keys() & set(chosen)):
            return structs.replace(
                told, result="interrupted", why=(*told.why, fact("trial.user_set", knobs=theirs))
            )
        values = observation.values()
        read = tuple(structs.replace(c, value=values.get(c.knob, c.value)) for c in told.changes)
        return structs.replace(told, changes=read, result="kept")

    def _pending(self, observation: Observation) -> bool:
        """Whether the run may still carry out a command of the trial or of this rollback."""
        if self.move is not None and not self.move.settled(observation.records):
            return True
        known = set(self.move.ids.values()) if self.move is not None else set()
        early = (
            observation.t - self._began < UNHEARD_S * 1e9
            or observation.step < self._step + UNHEARD_ITERATIONS
        )
        return any(
            r.step >= observation.step if r.step is not None else early
            for r in self._own(observation.records)
            if r.stage not in FINAL and r.id not in known and r.epoch == observation.epoch
        )

    def _changes(
        self,
        values: Mapping[str, KnobValue],
        then: Mapping[str, KnobValue],
        records: Sequence[CommandRecord],
        chosen: Collection[str],
    ) -> tuple[Change, ...]:
        """The changes to send if the values will be `then`. Empty if none of these is from the trial."""
        off = [k for k, v in self.targets.items() if k in values and then[k] != v and k not in chosen]
        brought = self._brought(records)
        if not self.report and not any((knob, then[knob]) in brought for knob in off):
            return ()
        return tuple(Change(knob=knob, before=values[knob], value=self.targets[knob]) for knob in off)

    def _brought(self, records: Sequence[CommandRecord]) -> set[tuple[str, KnobValue]]:
        """The values that the tuner has set since the trial began, as asked for and as read back."""
        found = {(change.knob, change.value) for change in self.trial.changes}
        for r in self._own(records):
            found |= {(change.knob, change.value) for change in r.followed}
            found |= {(r.knob, value) for value in (r.wanted, r.effective) if value is not None}
        return found

    def _of_users(self, records: Sequence[CommandRecord]) -> list[CommandRecord]:
        """The users' commands since the trial began that concern a knob of it."""
        knobs = self.targets.keys() | _moved(r for r in self._own(records) if r.stage == "applied")
        users = (record for record in self._since(records) if by_choice(record.origin))
        return [record for record in users if knobs & _moved([record])]

    def _own(self, records: Sequence[CommandRecord]) -> list[CommandRecord]:
        return [record for record in self._since(records) if record.origin.kind == "tuner"]

    def _since(self, records: Sequence[CommandRecord]) -> list[CommandRecord]:
        return [record for record in records if record.verb == "set" and record.t >= self.trial.t]


def _overtaken(choice: CommandRecord, epoch: int, values: Mapping[str, KnobValue]) -> bool:
    """Whether a user's choice went to an earlier process, and this one has another value."""
    return choice.epoch != epoch and values.get(choice.knob) not in (choice.wanted, choice.effective)


def _moved(records: Iterable[CommandRecord]) -> set[str]:
    """The knobs of these commands, and those that followed."""
    return {knob for r in records for knob in (r.knob, *(change.knob for change in r.followed))}


def _knobs(changes: Iterable[Change]) -> list[str]:
    return sorted(change.knob for change in changes)


def cut_off(state: TunerState, cause: Fact) -> TunerState:
    """The state of a tuner that was cut off. A running trial ends as unfinished."""
    tried, trial = state.tried, state.trial
    if trial is not None:
        reasons = (fact("trial.note", text=trial.text),) if trial.text else trial.why
        why = (*reasons, fact("trial.cut_off", cause=cause))
        tried = (*tried, structs.replace(ended(trial, "unfinished", why), text=""))
    return structs.replace(state, trial=None, next=(), tried=tried, stand="waiting", facts=(cause,), text="")


def unfinished(state: TunerState) -> Trial | None:
    """The trial to undo when a tuner in this state is cut off. The last one, if it was kept, is not.

    The last one may be of an earlier tuner: a process that resumes from an older checkpoint has its value
    again. A dry tuner undoes none of these, because it sets nothing. The report of a rollback that could not
    be carried out is not a trial.
    """
    trials = [trial for trial in state.tried if not (trial.why and trial.why[-1].code in STUCK)]
    last = state.trial if state.trial is not None else trials[-1] if trials else None
    if last is None or last.result == "kept":
        return None
    return None if state.limits.dry and last.t < state.started else last
