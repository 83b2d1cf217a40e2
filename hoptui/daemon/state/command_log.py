"""The life of every command, without I/O: permission, order, outcome and effect.

The run checks bounds, types, versions and pending commands, because the knob lives there. The daemon decides
one conflict: the tuner and agents do not set a knob that a user set. The order of arrival here is the order
for all viewers. The effect of a change is measured over iterations, or taken from the trial that measured it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import structs

from hoptui.daemon.state.commit_barrier import CommitBarrier
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.columns import Columns
from hoptui.domain.facts import Fact, fact
from hoptui.domain.throughput import ASIDE_COLUMNS
from hoptui.domain.tuning import Change, Measured, Trial, TunerState
from hoptui.protocol.authors import author
from hoptui.protocol.messages import (
    FATE_UNKNOWN,
    FINAL,
    LATER_CODE,
    Command,
    CommandRecord,
    Origin,
    Outcome,
    Stage,
    record_of,
)
from hoptui.tuner.effect import WARM_UP, measure, plan_for
from hoptui.tuner.overrides import KnobOverrides, asks, holds

KEPT = 2000
"""Commands of a run with a final stage that stay in memory."""
MOST_OPEN = 2000
"""Commands of a run without a final stage. Further ones are refused at once."""
LONGEST_HOLD_S = 3600.0
LONGEST_WHY = 300
REPEATED_S = 20.0
"""Viewers repeat a command for so long: `hoptui.client.conversation.PATIENCE_S`, plus a reconnect."""
ORDER: dict[Stage, int] = {"sent": 0, "accepted": 1, "scheduled": 2}


class Book:
    """All commands, by run, in order of arrival. `record` is called with every record that changed.

    Those that another node has reported are among them.

    `barrier` has the outcomes that viewers do not see yet.
    """

    def __init__(self, record: Callable[[CommandRecord], None]) -> None:
        self._record = record
        self._runs: dict[str, OrderedDict[str, CommandRecord]] = {}
        self._commands: dict[str, Command] = {}  # without a final stage, in the form for sending
        self._open: dict[str, set[str]] = {}  # by run: ids of commands without a final stage
        self._given: set[str] = set()  # ids of open commands that were passed to their runs
        # Restored ids of which neither their run nor a viewer has spoken. A viewer does not count for a
        # restart, nor for a command whose process is gone.
        self._unheard: set[str] = set()
        self._senders: dict[str, str] = {}  # command id -> viewer
        self._overrides: dict[str, KnobOverrides] = {}  # by run
        self._seq = 0
        self.barrier = CommitBarrier()

    # commands -----------------------------------------------------------------------------------------------

    def submit(
        self, command: Command, run: TrackedRun | None, viewer: str, wall: float, t: int
    ) -> tuple[CommandRecord, Command | None]:
        """Process a viewer's command. Returns the answer, and the command for the run (None: nothing to
        send).

        `command.origin` is the peer that the kernel reports. A repeated id is answered with its current
        stage. It is forwarded again until its stage is final, because the command or its outcome may be lost
        with a connection; the run answers a repetition with what it said last. A command that an earlier
        daemon may have passed to a process that is gone is `unknown` instead of rejected. One that has waited
        here until its viewer gave it up has expired.
        """
        known = self.known(command.run, command.id)
        if known is not None:
            self._senders[command.id] = viewer
            gone = run is None or run.exited or run.state.epoch != known.epoch
            if not (restarting(known) or gone):
                self._unheard.discard(command.id)
            if known.stage in FINAL or restarting(known) or gone:
                return known, None
            again = structs.replace(command, origin=known.origin, why=known.why, purpose=known.purpose)
            if command.id not in self._commands:  # from a recording
                self._given.add(command.id)
            return known, self._commands.setdefault(command.id, _bounded(again))
        refusal = self._refusal(command, run)
        stage: Stage = "rejected"
        if refusal is not None and command.repeated and not _lives(command, run):
            refusal, stage = fact(FATE_UNKNOWN, why=refusal), "voided"
        waited_s = (t - command.t) / 1e9 if command.t and not command.repeated else 0.0
        if refusal is None and waited_s > REPEATED_S:
            refusal, stage = fact("no_daemon", waited_s=waited_s), "expired"
        record = structs.replace(
            record_of(command, t=t, wall=wall),
            before=_value(run, command.knob) if run else None,
            why=command.why[:LONGEST_WHY],
            purpose=command.purpose if command.origin.kind == "tuner" else (),
        )
        if refusal is not None:
            record = structs.replace(record, stage=stage, code=refusal.code, fields=refusal.fields, settled=t)
            if run is not None:
                self._senders[command.id] = viewer
                self._put(record, hide=not run.exited)  # the recording of an exited run is closed
            return record, None
        self._senders[command.id] = viewer
        if command.repeated:
            self._given.add(command.id)
        command = _bounded(structs.replace(command, why=record.why, purpose=record.purpose))
        self._commands[command.id] = command
        self._put(record)
        return record, command

    def undecided(self, command: Command, run: TrackedRun | None) -> bool:
        """Return whether only the outcomes that a run is about to tell decide on a command.

        The run may have it from an earlier daemon, or a user may hold the knob against the tuner. The viewer
        repeats a command that is not answered.
        """
        if run is None or run.told or not _lives(command, run) or self.known(run.id, command.id) is not None:
            return False
        refused = self._refusal(command, run) is not None
        return command.origin.kind in ("tuner", "agent") or (command.repeated and refused)

    def outcome(self, run: str, outcome: Outcome, t: int, wall: float = 0.0) -> CommandRecord | None:
        """Process a run's report on a command. None if it is not news (a repeat, or a stage already
        passed).

        A command that is not known, because an earlier daemon was killed before it was on disk, is taken from
        the outcome. `wall` is the wall time of the outcome then.
        """
        known = self.known(run, outcome.id) or _taken_over(run, outcome, outcome.t or t, wall)
        if known is None:
            return None
        self._unheard.discard(outcome.id)
        undone = known.stage == "applied" and outcome.stage == "reverted"
        # The run knows better than the daemon, which voided what the run had not answered.
        corrected = known.stage == "voided" and outcome.stage in FINAL and outcome.stage != "voided"
        if known.stage in FINAL and not undone and not corrected:
            return None
        restarts = outcome.code == "restarting" != known.code
        waits = restarts or outcome.code == LATER_CODE != known.code
        if outcome.stage in ORDER and ORDER[outcome.stage] <= ORDER.get(known.stage, 0) and not waits:
            return None
        if outcome.stage in FINAL or restarts:
            self._drop(outcome.id)
        took_effect = outcome.stage in ("applied", "failed", "reverted")
        found = self._put(
            structs.replace(
                known,
                stage=outcome.stage,
                step=outcome.step if outcome.step is not None else known.step,
                before=known.before if undone or outcome.before is None else outcome.before,
                effective=outcome.effective if took_effect else None,
                version=outcome.version if took_effect else None,
                code=outcome.code,
                fields=outcome.fields,
                reason=outcome.reason,
                settled=(outcome.t or t) if outcome.stage in FINAL else 0,
                took_s=outcome.took_s if outcome.took_s is not None else known.took_s,
                followed=_followed(known, outcome) if undone else outcome.followed or known.followed,
            )
        )
        if asks(found):
            self._hold(run, found.knob)
        elif asks(known) and found.stage in FINAL:
            self._let_go(run, found.knob)
        return found

    def measured(self, record: CommandRecord, measured: Measured) -> CommandRecord:
        """Store the effect of an applied command, as far as it is known."""
        return self._put(structs.replace(self._runs[record.run][record.id], measured=measured))

    def void(
        self, run: str, why: Fact, t: int, *, ended: bool = True, told: int | None = None
    ) -> list[CommandRecord]:
        """Void pending commands after the end or a restart of a run.

        What became of a command that was given to the run is unknown, unless its process has told all that it
        knows: that of restart `told`, None if it has not. It knows nothing of a command for an earlier
        process. A command that the run restarted for may still happen. It has `failed` only if the run ended,
        and is unknown if the new process may have reported it to an earlier daemon, which was killed before
        that was on disk. A restart keeps the knobs that users chose; the end of the run does not.
        """
        voided = []
        for record in self.of(run):
            if record.stage in FINAL or (restarting(record) and not ended):
                continue
            unsent = record.id in self._commands and record.id not in self._given
            stage: Stage = "voided"
            cause, certain = why, unsent or record.epoch == told
            if restarting(record):
                stage = "failed"
                cause = fact("lost_in_restart", why=why, **record.fields)
                certain = record.id not in self._unheard
            if not certain:
                stage, cause = "voided", fact(FATE_UNKNOWN, why=cause)
            voided.append(self._end(record, stage, cause, t))
        if ended:
            self.overrides(run).end_process()
        return voided

    def void_unreported(self, run: str, epoch: int, t: int) -> list[CommandRecord]:
        """Void the commands that a process before that of `epoch` was started for.

        It can no longer report them. What it has reported was lost with an earlier daemon.
        """
        voided = []
        for record in self.of(run):
            if restarting(record) and record.epoch + 1 < epoch:
                ended = fact("run_restarted", restart=record.epoch + 1)
                voided.append(self._end(record, "voided", fact(FATE_UNKNOWN, why=ended), t))
        return voided

    def lose(self, run: str, epoch: int, t: int, *, away: bool = False) -> list[CommandRecord]:
        """Void the commands of an earlier daemon that never reached the run, and that no viewer has repeated
        while their process was there.

        Call it once the process of restart `epoch` has told all that it knows. What became of a command for
        an earlier process is unknown. So it is where rank 0 is `away`: no process here receives commands.
        """
        lost = [record for record in self.of(run) if record.id in self._unheard and not restarting(record)]
        why = fact("daemon_ended")
        unknown = fact(FATE_UNKNOWN, why=why)
        return [
            self._end(record, "voided", why if record.epoch == epoch and not away else unknown, t)
            for record in lost
        ]

    def give(self, command: str) -> None:
        """Record that a command was passed to its run, which may have carried it out from now on."""
        self._given.add(command)

    def _end(self, record: CommandRecord, stage: Stage, why: Fact, t: int) -> CommandRecord:
        self._drop(record.id)
        ended = structs.replace(record, stage=stage, code=why.code, fields=why.fields, reason="", settled=t)
        return self._put(ended)

    def _drop(self, command: str) -> None:
        self._commands.pop(command, None)
        self._given.discard(command)
        self._unheard.discard(command)

    def unanswered(self, run: str) -> list[Command]:
        """Return the commands to send (again) to a run that has just connected."""
        return [c for c in self._commands.values() if c.run == run]

    @property
    def asking(self) -> bool:
        """Whether the outcome of a command is still open."""
        return any(self._open.values())

    def sender(self, command: str) -> str:
        """Return the viewer that sent a command last, "" if unknown."""
        return self._senders.get(command, "")

    def of(self, run: str) -> list[CommandRecord]:
        """Return every command of a run, in order of arrival."""
        return list(self._runs.get(run, OrderedDict()).values())

    def since(self, seq: int, run: str = "") -> list[CommandRecord]:
        """Return the records that changed after `seq`, of one run or of all, oldest change first.

        An outcome that viewers do not see yet is left out, with all that changed later.
        """
        if seq >= self._seq:
            return []
        runs: Iterable[OrderedDict[str, CommandRecord]]
        runs = (self._runs.get(run, OrderedDict()),) if run else self._runs.values()
        shown = (self.barrier.shown(r) for records in runs for r in records.values() if r.seq > seq)
        first = self.barrier.first
        return sorted((r for r in shown if r is not None and seq < r.seq < first), key=lambda r: r.seq)

    def written(self, run: str, command: str, seq: int) -> CommandRecord | None:
        """Process that a record is on disk. Return the record that viewers may see now, None if they have
        it."""
        known = self.known(run, command)
        if known is None or not self.barrier.written(command, seq):
            return None
        return self._put(structs.replace(known, unsaved=False)) if known.unsaved else known

    def overdue(self, t: int) -> list[CommandRecord]:
        """Return the records whose outcome viewers may see, although it is not on disk. They are marked."""
        ids = set(self.barrier.overdue(t))
        late = [r for records in self._runs.values() for r in records.values() if r.id in ids] if ids else []
        return [self._put(structs.replace(record, unsaved=True)) for record in late]

    @property
    def seq(self) -> int:
        return self._seq

    def restore(self, records: Iterable[CommandRecord], ended: Fact | None = None) -> None:
        """Add commands from a recording. Known ones are not changed.

        `ended`: the run has exited. A command that is still open is unknown then: the daemon that wrote the
        end could not read it. The recording stays as it is.
        """
        newest: dict[str, int] = {}
        wishes: list[CommandRecord] = []
        found = records if ended is None else [_ended(record, ended) for record in records]
        for record in found:
            known = self._runs.setdefault(record.run, OrderedDict()).setdefault(record.id, record)
            if known is record and record.stage not in FINAL:
                self._open.setdefault(record.run, set()).add(record.id)
                self._unheard.add(record.id)
            self._seq = max(self._seq, record.seq)
            newest[record.run] = max(record.epoch, newest.get(record.run, 0))
            if asks(record):
                wishes.append(record)
        for record in wishes:
            if record.epoch == newest[record.run]:
                self._hold(record.run, record.knob)

    def adopt(self, record: CommandRecord) -> None:
        """Store a command that another node has reported with its end."""
        self._put(record)

    def forget(self, run: str) -> None:
        """Remove all commands of a run."""
        self._overrides.pop(run, None)
        self._open.pop(run, None)
        for record in self._runs.pop(run, OrderedDict()):
            self._senders.pop(record, None)
            self.barrier.forget(record)
            self._drop(record)

    def number(self, wall: float) -> int:
        """Return a sequence number that rises across restarts of the daemon: microseconds of wall time, or
        one more."""
        self._seq = max(self._seq + 1, int(wall * 1e6))
        return self._seq

    def known(self, run: str, command: str) -> CommandRecord | None:
        """Return the record of a command, None if it is not known."""
        return self._runs.get(run, OrderedDict()).get(command)

    def _put(self, record: CommandRecord, *, hide: bool = True) -> CommandRecord:
        record = structs.replace(record, seq=self.number(record.wall))
        records = self._runs.setdefault(record.run, OrderedDict())
        before = records.get(record.id)
        if hide and record.stage in FINAL and (before is None or before.stage != record.stage):
            record = structs.replace(record, unsaved=False)
            self.barrier.add(record, before)
        records[record.id] = record
        unsettled = self._open.setdefault(record.run, set())
        if record.stage in FINAL:
            unsettled.discard(record.id)
        else:
            unsettled.add(record.id)
        while len(records) - len(unsettled) > KEPT:
            gone = next(name for name in records if name not in unsettled)
            del records[gone]
            self._senders.pop(gone, None)
            self.barrier.forget(gone)
        self._record(record)
        return record

    def _refusal(self, command: Command, run: TrackedRun | None) -> Fact | None:
        if run is None:
            return fact("no_such_run", run=command.run)
        if run.exited:
            return fact("no_such_run", name=run.state.name, exit_reason=run.state.exit_reason)
        if run.restarting:
            return fact("restarting", name=run.state.name)
        if command.epoch != run.state.epoch:
            return fact("stale_epoch", name=run.state.name)
        if run.logs_only:
            return fact("no_boundaries", name=run.state.name)
        if len(self._open.get(command.run, ())) >= MOST_OPEN:
            return fact("too_many_commands", name=run.state.name, most=MOST_OPEN)
        if command.verb == "set":
            return self._held_against(command)
        return None

    def _held_against(self, command: Command) -> Fact | None:
        """Why the author of a command may not set its knob. None if it may."""
        run, knob = command.run, command.knob
        if command.origin.kind == "tuner" and knob in self.overrides(run).chosen:
            return fact("held_by_person", knob=knob)
        if command.origin.kind == "agent" and (holder := self.holders(run).get(knob)) is not None:
            return fact("held_by_person", knob=knob, by=holder)
        return None

    # knobs that users have set -----------------------------------------------------------------------------

    def overrides(self, run: str) -> KnobOverrides:
        """Return which knobs of a run the tuner leaves alone."""
        return self._overrides.setdefault(run, KnobOverrides())

    def held(self, run: str) -> frozenset[str]:
        """The knobs of a run that users and agents have set."""
        return self.overrides(run).chosen

    def holders(self, run: str) -> dict[str, str]:
        """The knobs of a run that a person holds, with the author of the last wish ("" if not known).

        A wish for a knob also moves those that follow it.

        What an agent has set is held against the tuner alone.
        """
        held = self.held(run)
        last: dict[str, CommandRecord] = {}
        for record in reversed(self.of(run)) if held else ():
            if asks(record):
                for knob in held.intersection((record.knob, *(change.knob for change in record.followed))):
                    last.setdefault(knob, record)
                if len(last) == len(held):
                    break
        return {
            knob: author(last[knob].origin) if knob in last else ""
            for knob in sorted(held)
            if knob not in last or last[knob].origin.kind == "person"
        }

    def release(self, run: str, knob: str, who: Origin) -> None:
        """Let the tuner turn a knob again. The user's changes that held it then show who released it."""
        chosen = knob in self.overrides(run).chosen
        self.overrides(run).release(knob)
        if not chosen:
            return
        wishes = [record for record in self.of(run) if record.knob == knob and asks(record)]
        done = [record for record in wishes if record.stage in FINAL]
        for record in {r.id: r for r in (*wishes[-1:], *done[-1:])}.values():  # a pending one may still fail
            self._put(structs.replace(record, released=who))

    def _hold(self, run: str, knob: str) -> None:
        """Reserve a knob that a user has set, unless it was released since the last change.

        A last change that took advice gives it back.
        """
        last = self._last_wish(run, knob)
        if last is not None and last.released is None:
            self._follow_wish(run, last)

    def _let_go(self, run: str, knob: str) -> None:
        """A user's command for a knob was refused after all: the one before counts, if there is one."""
        last = self._last_wish(run, knob)
        if last is None:
            self.overrides(run).withdraw(knob)
        else:
            self._follow_wish(run, last)

    def _follow_wish(self, run: str, wish: CommandRecord) -> None:
        """Reserve the knob of the last wish for it, or give it back."""
        if holds(wish):
            self.overrides(run).choose([wish.knob])
        else:
            self.overrides(run).withdraw(wish.knob)

    def _last_wish(self, run: str, knob: str) -> CommandRecord | None:
        return next((r for r in reversed(self.of(run)) if r.knob == knob and asks(r)), None)


def _lives(command: Command, run: TrackedRun | None) -> bool:
    """Return whether the process that a command is meant for can still say what it did with it."""
    return run is not None and not (run.exited or run.restarting) and run.state.epoch == command.epoch


def _ended(record: CommandRecord, why: Fact) -> CommandRecord:
    """Return a record with an unknown end if it has none."""
    if record.stage in FINAL:
        return record
    unknown = fact(FATE_UNKNOWN, why=why)
    return structs.replace(record, stage="voided", code=unknown.code, fields=unknown.fields, reason="")


def restarting(record: CommandRecord) -> bool:
    """Return whether its run has left its process for a command whose outcome is still open."""
    return record.stage == "scheduled" and record.code == "restarting"


def _taken_over(run: str, outcome: Outcome, t: int, wall: float) -> CommandRecord | None:
    """Return the record of a command that only the run knows. It was given when it says, else before `t`."""
    command = outcome.command
    if command is None or command.id != outcome.id:
        return None
    given = command.t if 0 < command.t < t else t
    record = record_of(command, t=given, wall=wall - (t - given) / 1e9)
    return structs.replace(record, run=run, why=command.why[:LONGEST_WHY])


def _bounded(command: Command) -> Command:
    return structs.replace(command, hold_s=min(max(command.hold_s, 1.0), LONGEST_HOLD_S))


def _followed(known: CommandRecord, undone: Outcome) -> tuple[Change, ...]:
    """Return everything that an undone change moved: from the state before it to the present one."""
    before = {change.knob: change.before for change in known.followed}
    moved = (structs.replace(c, before=before.get(c.knob, c.before)) for c in undone.followed)
    return tuple(change for change in moved if change.before != change.value)


def _value(run: TrackedRun, knob: str) -> bool | int | float | str | None:
    return next((k.value for k in run.state.knobs if k.spec.name == knob), None)


LATEST = 32
"""How many of a run's newest commands are examined. As many knobs may change together and still be
measured."""
CHANGED = ("applied", "reverted")
RESTARTED = "restarted"
"""The code of a change that took effect in a new process."""


def unsettled(records: Sequence[CommandRecord], epoch: int) -> tuple[list[CommandRecord], list[int]]:
    """Return the newest changes that took effect up to `epoch`, and the indices of those still being
    measured.

    The changes are oldest first. A change by a restart takes effect in the next epoch, which continues where
    the previous one ended, so the changes of both count. Any other restart begins anew. A change that was
    reverted later is included, because nothing before it may count for the next one; it is not measured.
    """
    newest = [r for r in records[-LATEST:] if r.verb == "set"]
    left = {r.epoch for r in newest if r.code in ("restarting", RESTARTED)}
    first = epoch
    while first - 1 in left:
        first -= 1
    changes = [
        r
        for r in newest
        if r.stage in CHANGED and r.step is not None and r.epoch + (r.code == RESTARTED) >= first
    ]
    return changes, [i for i, r in enumerate(changes) if _open(r)]


def lost(
    records: Sequence[CommandRecord], counted: Sequence[CommandRecord]
) -> Iterator[tuple[CommandRecord, Measured]]:
    """Yield the newest changes that are not `counted` and will never be measured completely."""
    ids = {record.id for record in counted}
    for record in records[-LATEST:]:
        if record.verb == "set" and record.step is not None and _open(record) and record.id not in ids:
            found = record.measured or Measured()
            if found.gain is None:
                found = structs.replace(found, remarks=(fact("effect.restarted"),))
            yield record, structs.replace(found, settled=True)


def _open(record: CommandRecord) -> bool:
    return record.stage == "applied" and (record.measured is None or not record.measured.settled)


def measured(
    applied: Sequence[CommandRecord],
    places: Sequence[int],
    rows: Columns,
    metric: str,
    tuner: TunerState | None = None,
) -> Iterator[tuple[CommandRecord, Measured]]:
    """Yield the effects of these changes on `metric` from `rows`, the run's newest. Only changed effects.

    Changes that were applied at one boundary have one effect, and each names the others. A change in a trial
    of the `tuner` has the trial's figure, unless the trial ended without one.
    """
    points = throughput(rows, metric)
    steps = [record.step or 0 for record in applied]
    for i in places:
        at = steps[i]
        with_it = [r for j, r in enumerate(applied) if steps[j] == at and (j == i or r.stage == "applied")]
        trial = trial_of(applied[i], tuner)
        if trial is not None and (trial.result == "running" or trial.measured is not None):
            ended = trial.result != "running"
            found = structs.replace(trial.measured, settled=ended) if trial.measured is not None else None
        else:
            earlier, later = [s for s in steps if s < at], [s for s in steps if s > at]
            start = max(earlier) + WARM_UP if earlier else 0
            end = min(later) if later else None
            before = [v for step, v in points if start <= step < at]
            after = [v for step, v in points if at <= step and (end is None or step < end)]
            bounds = [0, *sorted({s + WARM_UP for s in earlier})]
            stretches = [[v for step, v in points if a <= step < b - WARM_UP] for a, b in pairwise(bounds)]
            found = measure(metric, before, after, plan_for(r.knob for r in with_it), stretches)
            if end is not None and not found.settled:
                cut = (fact("effect.cut_short"),) if found.gain is None else found.remarks
                found = structs.replace(found, settled=True, remarks=cut)
        if found is None:
            continue
        if others := [r.knob for r in with_it if r is not applied[i]]:
            found = structs.replace(found, remarks=(*found.remarks, fact("effect.shared", knobs=others)))
        if found != applied[i].measured:
            yield applied[i], found


def trial_of(record: CommandRecord, tuner: TunerState | None) -> Trial | None:
    """Return the trial of a command, None for a user's command and for one that undoes a trial."""
    if tuner is None or record.origin.kind != "tuner":
        return None
    trials = (*tuner.tried, *((tuner.trial,) if tuner.trial is not None else ()))
    begun = [trial for trial in trials if trial.t <= record.t]
    changes = begun[-1].changes if begun else ()
    own = any(c.knob == record.knob and c.before != record.wanted for c in changes)
    return begun[-1] if own else None


def throughput(rows: Columns, metric: str) -> list[tuple[int, float]]:
    """Return (iteration, throughput) of the iterations that only trained.

    If the run went back to a checkpoint, only those since then.
    """
    try:
        values = rows.column(metric)
    except KeyError:
        return []
    aside = [rows.column(name) for name in ASIDE_COLUMNS if name in rows.names]
    points: list[tuple[int, float]] = []
    for i, (step, value) in enumerate(zip(rows.steps(), values, strict=True)):
        if math.isnan(value):
            continue
        if points and step < points[-1][0]:
            points.clear()
        if all(math.isnan(a[i]) for a in aside):
            points.append((step, value))
    return points
