"""Commands as the training thread carries them out, on all ranks alike.

Each rank does exactly what the others do. Between two operations of the agreement nothing raises.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection
from typing import Any

from msgspec import structs

from hoptui.domain.facts import LONGEST_ERROR, Fact, clean_text, exception_text, fact
from hoptui.domain.knobs import KnobValue, check_value, coefficient, same
from hoptui.domain.tuning import Change
from hoptui.protocol.authors import author
from hoptui.protocol.messages import NOT_AS_ASKED, Command, Outcome
from hoptui.sdk import process
from hoptui.sdk.command_inbox import superseded
from hoptui.sdk.knobs import LiveKnob, SetterError
from hoptui.sdk.metric_values import MICROSECONDS
from hoptui.sdk.process import Handover, RestartCommand
from hoptui.sdk.ranks import RankAgreement
from hoptui.sdk.shared_state import PhaseTimer, SharedState

log = logging.getLogger("hoptui")


class CommandExecution:
    """Carries out commands and reports their outcomes.

    `applied` counts the commands that were applied, over all restarts. `waiting` holds, by knob, the commands
    that only a new process can carry out. `handover` is what this process was started to carry out, until
    `finish_restart`.
    """

    def __init__(self, state: SharedState, agreement: RankAgreement, applied: int) -> None:
        self.applied = applied
        self.waiting: dict[str, RestartCommand] = {}
        self.handover: Handover | None = None
        self._state = state
        self._agreement = agreement
        self._declarations = state.declarations
        self._declarations.on_revert = self._report_revert

    def run(self, commands: Collection[Command]) -> None:
        """Carry out the commands of one boundary, in order."""
        if not commands:
            return
        stood = {name: knob.value for name, knob in self._declarations.knobs.items()}
        asked = {command.knob for command in commands}
        for command in commands:
            self._carry_out(command, stood, asked)

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

    def refuse_restart(self, reason: str) -> None:
        """Fail the commands that wait for a new process."""
        for name in tuple(self.waiting):
            knob = self._declarations.knobs[name]
            knob.revert(knob.value, reason)

    def void_restart(self, reason: str) -> None:
        """Void the commands that wait for a new process: the run ends instead."""
        why = fact("run_ended", reason=reason)
        self._state.inbox.done.extend(
            Outcome(id=each.command, stage="voided", code=why.code, fields=why.fields)
            for each in self.waiting.values()
        )

    def hand_over(self, where: str, began_ns: int) -> None:
        """Leave the waiting commands to the process that replaces this one."""
        state, waiting = self._state, tuple(self.waiting.values())
        process.leave_handover(os.environ, Handover(os.getpid(), state.id, began_ns, waiting))
        for each in waiting if state.rank == 0 else ():
            fields = {"checkpoint": clean_text(where, 300)}
            state.inbox.done.append(
                Outcome(id=each.command, stage="scheduled", step=state.step, code="restarting", fields=fields)
            )

    # inside -------------------------------------------------------------------------------------------------

    def _carry_out(self, command: Command, stood: dict[str, KnobValue], asked: Collection[str]) -> None:
        began = time.monotonic()
        outcome = self._do(command, stood)
        if outcome is None:  # it waits for a new process
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
        self.applied += outcome.stage == "applied"
        if self._state.rank == 0:
            self._state.inbox.done.append(outcome)

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
        problem = self._agreement.problem(own)
        if problem is not None and own is None:
            try:
                knob.undo()
            except SetterError as error:
                problem = fact("several", facts=[problem, error.fact])
        if problem is None and self._awaits_restart(command, knob):
            return None
        done = structs.replace(done, before=before, effective=knob.value, version=knob.version)
        if problem is not None:
            return _failed(done, problem)
        if knob.in_effect:
            return done
        fields = {"reason": knob.reason} if knob.reason else {}
        return structs.replace(done, code=NOT_AS_ASKED, fields=fields)

    def _call(self, command: Command, done: Outcome) -> Outcome:
        """Have the training script write a checkpoint or start a trace."""
        declarations, phases = self._declarations, self._state.phases
        own: Fact | None = None
        try:
            if command.verb == "profile" and declarations.profile_handler and isinstance(command.value, int):
                declarations.profile_handler(command.value, **command.options)
                done = structs.replace(done, code="tracing", fields={"iterations": command.value})
            elif declarations.checkpoint_handler:
                with PhaseTimer(phases, "checkpoint"):
                    path = declarations.checkpoint_handler()
                if path:
                    written = {"path": clean_text(path, LONGEST_ERROR)}
                    done = structs.replace(done, code="written", fields=written)
        except Exception as error:
            own = _raised(error)
        problem = self._agreement.problem(own)
        return done if problem is None else _failed(done, problem)

    def _awaits_restart(self, command: Command, knob: LiveKnob[Any]) -> bool:
        """Return whether the value takes effect in a new process only. It replaces one that waited before."""
        older = self.waiting.pop(knob.name, None)
        if older is not None and self._state.rank == 0:
            self._state.inbox.done.append(superseded(older.command, command))
        if not knob.awaits_restart:
            return False
        self.waiting[knob.name] = RestartCommand(
            command.id, knob.name, knob.wanted, author(command.origin, sentence=True)
        )
        return True

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
        waiting = self.waiting.pop(knob.name, None)
        if (command := waiting.command if waiting else knob.command) and state.rank == 0:
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


def _failed(done: Outcome, why: Fact) -> Outcome:
    return structs.replace(done, stage="failed", code=why.code, fields=why.fields)


def _raised(error: Exception) -> Fact:
    return fact("raised", error=exception_text(error))
