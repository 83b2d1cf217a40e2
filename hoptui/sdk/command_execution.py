"""Commands as the training thread carries them out, on all ranks alike.

Each rank does exactly what the others do. Between two operations of the agreement nothing raises.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from hoptui.domain.facts import LONGEST_ERROR, Fact, clean_text, exception_text, fact
from hoptui.domain.knobs import KnobValue, check_value, coefficient, same
from hoptui.domain.tuning import Change
from hoptui.protocol.authors import author
from hoptui.protocol.messages import LATER_CODE, NOT_AS_ASKED, Command, Outcome
from hoptui.sdk import process
from hoptui.sdk.command_inbox import superseded
from hoptui.sdk.knobs import LATER, LiveKnob, SetterError
from hoptui.sdk.metric_values import MICROSECONDS
from hoptui.sdk.process import Handover, RestartCommand
from hoptui.sdk.ranks import RankAgreement
from hoptui.sdk.shared_state import PhaseTimer, SharedState

log = logging.getLogger("hoptui")

FOLLOW_EVERY_NS = 1_000_000_000
"""How often knobs with a reader are read back while no command is due."""


@dataclass(slots=True)
class WaitingCommand:
    """A command that the boundary has taken and that is not carried out yet.

    A new process carries it out, or, if it is `later`, the training script says when. Then `end` is how it
    ended on this rank, None before. `before` is the knob's value when it was given.
    """

    command: Command
    before: KnobValue | None = None
    later: bool = False
    end: Outcome | None = None

    @property
    def by(self) -> str:
        return author(self.command.origin, sentence=True)


CHECKPOINT = "checkpoint/"
"""The key of a checkpoint that waits. No knob has this name."""


class CommandExecution:
    """Carries out commands and reports their outcomes.

    `applied` counts the commands that were applied, over all restarts. `waiting` holds the commands that a
    new process or the training script carries out, by knob. `handover` is what this process was started to
    carry out, until `finish_restart`. `held`: the training script has ended one that waits, and the ranks
    have not exchanged that yet. `taken` are those that rank 0 has taken for this boundary and that have
    neither ended nor begun to wait, by id.
    """

    def __init__(self, state: SharedState, agreement: RankAgreement, applied: int) -> None:
        self.applied = applied
        self.waiting: dict[str, WaitingCommand] = {}
        self.held = False
        self.taken: dict[str, Command] = {}
        self.handover: Handover | None = None
        self._state = state
        self._agreement = agreement
        self._declarations = state.declarations
        self._declarations.on_revert = self._report_revert
        self._declarations.on_hold = self._hold
        self.next_follow = 0
        self._unread: set[str] = set()  # knobs whose reader has raised

    def run(self, commands: Collection[Command]) -> None:
        """Carry out the commands of one boundary, in order."""
        if not commands:
            return
        if any(command.verb == "set" for command in commands):
            self._follow()
        stood = {name: knob.value for name, knob in self._declarations.knobs.items()}
        asked = {command.knob for command in commands}
        for command in commands:
            self._carry_out(command, stood, asked)
            self.taken.pop(command.id, None)

    def finish_restart(self) -> None:
        """Report the outcome of the commands of a restart. The knobs are declared by now."""
        handover, self.handover = self.handover, None
        if handover is None:
            return
        state = self._state
        outcomes = process.outcomes_after(handover, self._declarations.knobs, state.step, time.monotonic_ns())
        self.applied += sum(outcome.stage == "applied" for outcome in outcomes)
        self._declarations.revision += 1
        if state.rank == 0:
            state.inbox.done.extend(outcomes)

    @property
    def restarts(self) -> dict[str, WaitingCommand]:
        """The commands that wait for a new process, by knob."""
        return {knob: each for knob, each in self.waiting.items() if not each.later}

    def refuse_restart(self, reason: str) -> None:
        """Fail the commands that wait for a new process."""
        for name in self.restarts:
            knob = self._declarations.knobs[name]
            knob.revert(knob.value, reason)

    def void_waiting(self, why: Fact, *, later: bool = False) -> None:
        """Void the commands that wait, because nothing will carry them out. `later`: only those that are."""
        for name, each in tuple(self.waiting.items()):
            if each.later or not later:
                del self.waiting[name]
                self._report(Outcome(id=each.command.id, stage="voided", code=why.code, fields=why.fields))

    def void_taken(self, why: Fact) -> None:
        """Void the commands that the ranks could not finish. The knobs may have their values or not."""
        for command in self.taken:
            self._report(Outcome(id=command, stage="voided", code=why.code, fields=why.fields))
            self._declarations.revision += 1
        self.taken.clear()

    def hand_over(self, where: str, began_ns: int) -> None:
        """Leave the commands that wait for a new process to the one that replaces this one."""
        state = self._state
        self.void_waiting(fact("run_restarted", restart=state.epoch), later=True)
        waiting = tuple(
            RestartCommand(
                each.command.id, name, self._declarations.knobs[name].wanted, each.by, each.command
            )
            for name, each in self.waiting.items()
        )
        process.leave_handover(os.environ, Handover(os.getpid(), state.id, began_ns, waiting))
        for one in waiting:
            fields = {"checkpoint": clean_text(where, 300)}
            self._report(
                Outcome(id=one.command, stage="scheduled", step=state.step, code="restarting", fields=fields)
            )

    def follow(self, now: int) -> None:
        """Read back what the script may have changed itself. `next_follow` is when to do so again.

        Both times are monotonic nanoseconds.
        """
        self.next_follow = now + FOLLOW_EVERY_NS
        if self._agreement.alone:
            self._follow()
        elif self._state.rank == 0:  # the loops of several ranks must not see a value at different iterations
            self._follow(LiveKnob.look)

    def checkpointed(self, path: object, error: Exception | None = None) -> None:
        """A checkpoint is written that its handler promised for later, or could not be."""
        waiting = self.waiting.pop(CHECKPOINT, None)
        if waiting is None:
            return
        if error is not None:
            done = Outcome(
                id=waiting.command.id, stage="applied", step=self._state.step, t=time.monotonic_ns()
            )
            self._report(_failed(done, _raised(error)))
            self._state.wake_link()
            return
        fields = {"path": _absolute(path)} if path else {}
        self.applied += 1
        self._report(
            Outcome(
                id=waiting.command.id,
                stage="applied",
                step=self._state.step,
                t=time.monotonic_ns(),
                code="written" if fields else "",
                fields=fields,
            )
        )
        self._state.wake_link()

    def finish_held(self) -> None:
        """Report the values that hold on all ranks by now. All ranks call it at the same boundary."""
        self.held = False
        later = {name: each for name, each in self.waiting.items() if each.later and name != CHECKPOINT}
        if not later:
            return
        mine = {each.command.id: _problem_of(each.end) for each in later.values() if each.end is not None}
        ended = self._agreement.ended(mine)
        for name, each in later.items():
            if each.end is not None and each.command.id in ended:
                self._end(name, each.end, ended[each.command.id])

    # inside -------------------------------------------------------------------------------------------------

    def _report(self, outcome: Outcome) -> None:
        """Report an outcome. Rank 0 speaks for the run."""
        if self._state.rank == 0:
            self._state.inbox.done.append(outcome)

    def _follow(self, read: Callable[[LiveKnob[Any]], bool] = LiveKnob.follow) -> None:
        for knob in self._declarations.knobs.values():
            try:
                if read(knob):
                    self._declarations.revision += 1
            except Exception as error:
                if knob.name not in self._unread:
                    self._unread.add(knob.name)
                    log.warning("hoptui: reading %s back raised %s", knob.name, error)

    def _hold(self, knob: LiveKnob[Any], problem: Fact | None) -> None:
        """A value that was to take effect later holds on this rank, or could not be read back."""
        self._declarations.revision += 1
        waiting = self.waiting.get(knob.name)
        if waiting is None or not waiting.later:
            return
        done = Outcome(
            id=waiting.command.id,
            stage="applied",
            step=self._state.step,
            before=waiting.before,
            effective=knob.value,
            t=time.monotonic_ns(),
        )
        waiting.end = done if problem is None else _failed(done, problem)
        if self._agreement.alone:
            self._end(knob.name, waiting.end, problem)
        else:
            self.held = True

    def _end(self, name: str, end: Outcome, problem: Fact | None) -> None:
        """End a command that a later point of the script has carried out, on all ranks alike."""
        knob, waiting = self._declarations.knobs[name], self.waiting.pop(name)
        if problem is None:
            knob.confirm(waiting.by)
            knob.command, knob.took_s = waiting.command.id, None
            self.applied += 1
            followed = self._refresh_others(name)
            end = self._as_read(structs.replace(end, version=knob.version, followed=followed), knob)
        else:
            if end.stage == "applied":  # it holds here, and failed on another rank
                problem = _undone(knob, waiting.before, problem)
            end = _failed(structs.replace(end, effective=knob.value, version=knob.version), problem)
        self._declarations.revision += 1
        self._report(end)
        self._state.wake_link()

    def _carry_out(self, command: Command, stood: dict[str, KnobValue], asked: Collection[str]) -> None:
        began = time.monotonic()
        outcome = self._do(command, stood)
        if outcome is None:  # it waits for a new process
            return
        if outcome.code == LATER_CODE:
            self._declarations.revision += 1
            self._report(outcome)
            return
        took_s = round(time.monotonic() - began, MICROSECONDS)
        if command.verb not in ("pause", "resume", "stop"):
            outcome = structs.replace(outcome, took_s=took_s)
        if command.verb == "set" and (knob := self._declarations.knobs.get(command.knob)) is not None:
            followed = tuple(c for c in self._refresh_others(command.knob) if c.knob not in asked)
            if outcome.stage == "applied":
                knob.command, knob.took_s = command.id, took_s
                outcome = structs.replace(outcome, followed=followed)
            else:
                self._declarations.revision += 1  # so that the daemon gets the value that is in effect
        if self._state.rank:  # the daemon of a node without rank 0 gets no outcomes
            self._declarations.revision += 1
        self.applied += outcome.stage == "applied"
        self._report(outcome)

    def _do(self, command: Command, stood: dict[str, KnobValue]) -> Outcome | None:
        state = self._state
        done = Outcome(id=command.id, stage="applied", step=state.step, t=time.monotonic_ns())
        match command.verb:
            case "pause":
                state.paused, state.paused_until = True, time.monotonic() + command.hold_s
            case "resume":
                state.paused = False
            case "stop":
                state.stop_by, state.stopping = author(command.origin, sentence=True), True
            case _:
                if problem := self._agreement.problem(self._declarations.objection(command)):
                    return _failed(done, problem)
                return self._set(command, done, stood) if command.verb == "set" else self._call(command, done)
        return done

    def _set(self, command: Command, done: Outcome, stood: dict[str, KnobValue]) -> Outcome | None:
        """Set a knob on all ranks or on none. Return None if it waits for a new process.

        The value before is the one in `stood`, at the start of the boundary. An earlier command of the same
        boundary may have changed this knob too.
        """
        knob = self._declarations.knobs[command.knob]
        before = stood.pop(command.knob, knob.value)
        own: Fact | None = None
        try:
            knob.set(check_value(knob.spec, command.value), author(command.origin, sentence=True))
        except Exception as error:
            own = error.fact if isinstance(error, SetterError) else _raised(error)
        problem = self._agreement.problem(own, later=knob.later)
        if problem is not None and own is None:
            problem = _undone(knob, None, problem)
        if problem is None:
            self._replace(knob.name, command)
            if knob.later or knob.awaits_restart:
                self.waiting[knob.name] = WaitingCommand(command, before, knob.later)
                return _later(done) if knob.later else None
        done = structs.replace(done, before=before, effective=knob.value, version=knob.version)
        if problem is not None:
            return _failed(done, problem)
        return self._as_read(done, knob)

    def _as_read(self, done: Outcome, knob: LiveKnob[Any]) -> Outcome:
        """Add that another value is in effect than was asked for."""
        if knob.in_effect:
            return done
        fields = {"reason": knob.reason} if knob.reason else {}
        return structs.replace(done, code=NOT_AS_ASKED, fields=fields)

    def _call(self, command: Command, done: Outcome) -> Outcome:
        """Have the training script write a checkpoint or start a trace."""
        declarations, phases = self._declarations, self._state.phases
        own: Fact | None = None
        later = False
        try:
            if command.verb == "profile" and declarations.profile_handler and isinstance(command.value, int):
                declarations.profile_handler(command.value, **command.options)
                done = structs.replace(done, code="tracing", fields={"iterations": command.value})
            elif declarations.checkpoint_handler:
                with PhaseTimer(phases, "checkpoint"):
                    path = declarations.checkpoint_handler()
                later = path is LATER
                if later:
                    done = _later(done)
                elif path:
                    done = structs.replace(done, code="written", fields={"path": _absolute(path)})
        except Exception as error:
            own = _raised(error)
        problem = self._agreement.problem(own, later=later)
        if problem is not None:
            return _failed(done, problem)
        if later:
            self._replace(CHECKPOINT, command)
            self.waiting[CHECKPOINT] = WaitingCommand(command, later=True)
        return done

    def _replace(self, name: str, command: Command) -> None:
        """A command takes the place of the one that waited before."""
        if (older := self.waiting.pop(name, None)) is not None:
            self._report(superseded(older.command.id, command))

    def _refresh_others(self, changed: str) -> tuple[Change, ...]:
        """Read back the other knobs, which may depend on the changed one. Return those that changed too."""
        moved = []
        for name, knob in self._declarations.knobs.items():
            before = knob.value
            try:
                if name != changed and knob.refresh():
                    self._declarations.revision += 1
            except Exception as error:
                log.warning("hoptui: reading %s back raised %s", name, error)
            # A schedule changes coefficients all the time.
            if not same(knob.value, before) and not coefficient(knob.spec):
                moved.append(Change(knob=name, before=before, value=knob.value))
        return tuple(moved)

    def _report_revert(self, knob: LiveKnob[Any], before: KnobValue, why: Fact) -> None:
        """Report a revert: as the outcome of the command that set the knob, or as an event."""
        state = self._state
        followed = self._refresh_others(knob.name)
        waiting = self.waiting.get(knob.name)
        if waiting is not None and waiting.later and not self._agreement.alone:
            waiting.end = _failed(Outcome(id=waiting.command.id, stage="failed", step=state.step), why)
            self.held = True  # the command ends where all ranks can know it
            return
        self.waiting.pop(knob.name, None)
        if (command := waiting.command.id if waiting else knob.command) and state.rank == 0:
            state.inbox.done.append(
                Outcome(
                    id=command,
                    stage="failed" if waiting else "reverted",
                    step=state.step,
                    before=before,
                    effective=knob.value,
                    version=knob.version,
                    code=why.code,
                    fields=why.fields,
                    t=time.monotonic_ns(),
                    followed=followed,
                )
            )
        elif not command:
            state.warn(fact("knob.reverted", knob=knob.name, before=before, value=knob.value, why=why))
        state.wake_link()


def _absolute(path: object) -> str:
    """Return where a checkpoint is, as users find it: the script may change its working directory later.

    A URL, and what is no path, stays as it is.
    """
    if isinstance(path, str | os.PathLike):
        with suppress(OSError, TypeError):  # the working directory was deleted; Ray's class is no path
            text = os.fsdecode(path)
            path = text if "://" in text else Path(text).absolute()
    return clean_text(path, LONGEST_ERROR)


def _failed(done: Outcome, why: Fact) -> Outcome:
    return structs.replace(done, stage="failed", code=why.code, fields=why.fields)


def _undone(knob: LiveKnob[Any], value: KnobValue | None, problem: Fact) -> Fact:
    """Undo what failed on another rank. Return the problem, with the error if that fails too."""
    try:
        knob.undo(value)
    except SetterError as error:
        return fact("several", facts=[problem, error.fact])
    return problem


def _later(done: Outcome) -> Outcome:
    """Return the outcome so far of a command that the training script carries out later."""
    return Outcome(id=done.id, stage="scheduled", step=done.step, code=LATER_CODE)


def _problem_of(end: Outcome) -> Fact | None:
    return None if end.stage == "applied" else Fact(end.code, end.fields)


def _raised(error: Exception) -> Fact:
    return fact("raised", error=exception_text(error))
