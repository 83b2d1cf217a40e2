"""What happens between two iterations: commands are carried out, pauses waited for, stops agreed. The half of `Run` that acts.

All ranks pass the same boundaries, and each does here exactly what the others do: between two operations of the
agreement nothing raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection
from typing import Any, Literal

from msgspec import structs

from hoptui.domain.knobs import KnobValue, check_value, coefficient, shown
from hoptui.domain.tuning import Change
from hoptui.protocol.messages import Command, Note, Outcome
from hoptui.sdk.declarations import Declarations
from hoptui.sdk.desk import Desk, who
from hoptui.sdk.knobs import KnobHandle, SetterError
from hoptui.sdk.phases import Phase, Phases
from hoptui.sdk.ranks import Agreement, Identity, Ranks, SharingError, Single, Turn
from hoptui.sdk.restart import Handover, Waiting, arrived
from hoptui.sdk.values import travelling

log = logging.getLogger("hoptui")

MICROSECONDS = 6
"""Decimals of a duration: further ones are noise, and noise is what a recording cannot compress."""
COMPANY_S = 0.25
"""Before a restart the run stands so long for more: values that are sent together may reach two sides of a boundary."""
LONGEST_REASON = 1000
"""Characters of what an error of the training script says: a compiler's can be longer than a message may be."""
PAUSE_TURN_S = 1.0
"""While paused, the ranks meet so often, and whenever something is due: none of them waits for long."""


class Boundary(Declarations):
    """`rank` of `world`; `stopping` and `paused` are what all ranks agreed on, `paused_until` is rank 0's lease."""

    def __init__(self, ranks: Ranks | None) -> None:
        super().__init__()
        self._agreement = Agreement(ranks or Single())
        self.rank, self.world = self._agreement.rank, ranks.world if ranks else 1
        self.desk = Desk(self.knob_handles, self.can)
        self.notes: deque[Note] = deque(maxlen=256)
        self.phases = Phases()
        self.step = 0
        self.applied = 0
        self.alive = True
        self.stopping = False
        self.paused = False
        self.paused_until = 0.0
        self._stop_by = ""
        self._wish: str | None = None  # to stop, not agreed yet
        self._waiting: dict[str, Waiting] = {}  # by knob: what only a new process can carry out
        self._handover: Handover | None = None  # what this process was started to carry out
        self._resume_now = threading.Event()
        self._link: Any = None

    def phase(self, name: str) -> Phase:
        """`with run.phase("rollout"):`; phases nest, and `rollout/env` is a part of `rollout`.

        It reads the host's clock: for work that the GPU does later, measure with events and use `phase_seconds`.
        """
        return Phase(self.phases, name)

    def stop(self, by: str = "") -> None:
        """End the loop at its next boundary, as if a viewer had asked; safe in a signal handler. `by` is told to viewers.

        With several ranks one of them is enough: all stop at the same boundary.
        """
        if self._agreement.alone:
            self._stop_by = by
            self.stopping = True
        else:
            self._wish = by

    @property
    def stop_asked(self) -> bool:
        """Whether a stop was asked for, agreed on by all ranks or not yet."""
        return self.stopping or self._wish is not None

    @property
    def restart_wanted(self) -> dict[str, KnobValue]:
        """Values of knobs of cost `restart` that were asked for and wait for a new process: on all ranks the same.

        With any, write a checkpoint, call `hand_over` and replace this process (`os.execv`) by one that declares these
        knobs with these values; where that cannot be, call `refuse_restart`.
        """
        return {knob: waiting.value for knob, waiting in self._waiting.items()}

    def refuse_restart(self, reason: str) -> None:
        """There will be no new process: what waits for one has `failed`. Call it on all ranks alike."""
        for knob in tuple(self._waiting):
            handle = self.knob_handles[knob]
            handle.revert(handle.value, reason)

    def event(self, text: str, *, level: Literal["info", "warning"] = "info") -> None:
        """A line on the time axis. Rank 0 speaks for all: elsewhere it does nothing."""
        if self.alive and self.rank == 0:
            self.notes.append(
                Note(t=time.monotonic_ns(), step=self.step, text=travelling(text, 500), level=level)
            )

    def reverted(self, handle: KnobHandle[Any], before: KnobValue, reason: str) -> None:
        """A knob was set back by the training script: the command that had set it is told, or else everybody."""
        super().reverted(handle, before, reason)
        followed = self._follow(handle.name)
        waiting = self._waiting.pop(handle.name, None)
        if (command := waiting.command if waiting else handle.command) and self.rank == 0:
            self.desk.done.append(
                Outcome(
                    id=command,
                    stage="failed" if waiting else "reverted",
                    step=self.step,
                    before=before,
                    effective=handle.value,
                    version=handle.version,
                    reason=travelling(reason, 300),
                    t=time.monotonic_ns(),
                    followed=followed,
                )
            )
        elif not command:
            self.event(f"{handle.name} {shown(before)} → {shown(handle.value)}: {reason}", level="warning")
        if self._link is not None:
            self._link.wake()

    # called by the link thread -----------------------------------------------------------------------------------------

    def hold(self, seconds: float) -> None:
        """The pause lease is renewed."""
        if self.paused_until:
            self.paused_until = time.monotonic() + seconds

    def wake(self) -> None:
        """Something is due: a paused loop looks at once."""
        self._resume_now.set()

    def unlink(self) -> None:
        """Show nothing any more and take no commands; what the ranks have agreed on stays so."""
        self.alive = False
        self.paused_until = 0.0

    # inside ------------------------------------------------------------------------------------------------------------

    def _know(self, own: Identity) -> Identity:
        """Rank 0's identity of this run."""
        try:
            return self._agreement.identity(own)
        except SharingError as error:
            self._part(error)
            return own

    def _meet(self) -> None:
        """Carry out what is due, on all ranks alike, and wait while paused."""
        agreement = self._agreement
        if agreement.alone and not self.alive:
            return
        try:
            if not agreement.quiet(self._wish is None and not (self.alive and self.desk.due)):
                waiting = dict(self._waiting)
                self._turn()
                if self._waiting and self._waiting != waiting and not (self.paused or self.stopping):
                    self._turn_again()
            news = agreement.difference(lambda: {n: h.wanted for n, h in self.knob_handles.items()})
            if news:
                self.event(news, level="warning")
            if self.paused:
                self._wait_while_paused()
        except SharingError as error:
            self._part(error)

    def _part(self, error: SharingError) -> None:
        """The ranks cannot agree any more; each of them comes here. The trainer's own collectives will say why."""
        log.warning("hoptui is off in this run: its ranks can no longer agree: %s", error)
        self._agreement = Agreement(Single())
        self.unlink()
        self.paused = False
        if self._wish is not None:
            self.stop(self._wish)

    def _turn(self, over: bool = False) -> None:
        """One exchange: who wants to stop, what rank 0 has to say, and do it."""
        agreement = self._agreement
        wish = agreement.wishes(self._wish)
        turn = agreement.turn(Turn(self._due() if agreement.rank == 0 else (), over))
        stood = {name: handle.value for name, handle in self.knob_handles.items()} if turn.commands else {}
        asked = {command.knob for command in turn.commands}
        for command in turn.commands:
            self._carry_out(command, stood, asked)
        if turn.over:
            self.paused = False
        if wish is not None:
            self._stop_by, self.stopping = wish, True
        if not self.paused or self.stopping:
            self.paused, self.paused_until = False, 0.0
        if self._link is not None and turn.commands:
            self._link.wake()

    def _turn_again(self) -> None:
        """Carry out what was sent together with a value that needs a new process, while this one is there."""
        if self.rank == 0 and self._link is not None and self.alive:
            time.sleep(COMPANY_S)
        self._turn()

    def _due(self) -> tuple[Command, ...]:
        if not self.alive:
            return ()
        try:
            return tuple(self.desk.take(time.monotonic()))
        except Exception as error:  # a fault of ours must not keep the other ranks waiting
            log.warning("hoptui: commands were lost: %s: %s", type(error).__name__, error)
            return ()

    def _carry_out(self, command: Command, stood: dict[str, KnobValue], asked: Collection[str]) -> None:
        began = time.monotonic()
        outcome = self._do(command, stood)
        if outcome is None:  # it waits for a new process
            return
        took_s = round(time.monotonic() - began, MICROSECONDS)
        if command.verb not in ("pause", "resume", "stop"):
            outcome = structs.replace(outcome, took_s=took_s)
        if command.verb == "set" and (handle := self.knob_handles.get(command.knob)) is not None:
            followed = tuple(c for c in self._follow(command.knob) if c.knob not in asked)
            if outcome.stage == "applied":
                handle.command, handle.took_s = command.id, took_s
                outcome = structs.replace(outcome, followed=followed)
            else:
                self.declared += 1  # so that the daemon has the value as it is
        self.applied += outcome.stage == "applied"
        if self.rank == 0:
            self.desk.done.append(outcome)

    def _do(self, command: Command, stood: dict[str, KnobValue]) -> Outcome | None:
        done = Outcome(id=command.id, stage="applied", step=self.step, t=time.monotonic_ns())
        match command.verb:
            case "pause":
                self.paused, self.paused_until = True, time.monotonic() + command.hold_s
            case "resume":
                self.paused = False
            case "stop":
                self._stop_by, self.stopping = who(command), True
            case _:
                if problem := self._problem(self.objection(command)):
                    return structs.replace(done, stage="failed", reason=problem)
                return self._set(command, done, stood) if command.verb == "set" else self._call(command, done)
        return done

    def _set(self, command: Command, done: Outcome, stood: dict[str, KnobValue]) -> Outcome | None:
        """All ranks set it, or none does. None where it waits for a new process: it stays `scheduled`.

        What was before is what `stood` when the boundary was reached: a command that is carried out first may have moved
        this knob too.
        """
        handle = self.knob_handles[command.knob]
        before, own = stood.pop(command.knob, handle.value), ""
        try:
            handle.set(check_value(handle.spec, command.value), who(command))
        except Exception as error:
            own = str(error) if isinstance(error, SetterError) else f"{type(error).__name__}: {error}"
        problem = self._problem(own)
        if problem and not own:
            try:
                handle.undo()
            except SetterError as error:
                problem += f"; {error}"
        if not problem and self._waits(command, handle):
            return None
        fields: dict[str, Any] = {
            "before": before,
            "effective": handle.value,
            "version": handle.version,
            "reason": problem,
        }
        if problem:
            fields["stage"] = "failed"
        elif not handle.in_effect:
            fields["reason"] = "not in effect as asked: this is the value read back"
        return structs.replace(done, **fields)

    def _problem(self, own: str) -> str:
        """What keeps any of the ranks from it, in words that can travel; "" where nothing does."""
        return self._agreement.problem(travelling(own, LONGEST_REASON))

    def _waits(self, command: Command, handle: KnobHandle[Any]) -> bool:
        """Whether a value that was set takes effect in a new process only; it takes the place of one that waited before."""
        older = self._waiting.pop(handle.name, None)
        if older is not None and self.rank == 0:
            reason = f"a later command of {who(command)} took its place"
            self.desk.done.append(
                Outcome(id=older.command, stage="superseded", reason=reason, by=who(command))
            )
        if not handle.waits:
            return False
        self._waiting[handle.name] = Waiting(command.id, handle.name, handle.wanted, who(command))
        return True

    def _arrive(self) -> None:
        """Say what became of the commands that this process was started for; its knobs have been declared by now."""
        handover, self._handover = self._handover, None
        if handover is None:
            return
        outcomes = arrived(handover, self.knob_handles, self.step, time.monotonic_ns())
        self.applied += sum(outcome.stage == "applied" for outcome in outcomes)
        self.declared += 1
        if self.rank == 0:
            self.desk.done.extend(outcomes)

    def _call(self, command: Command, done: Outcome) -> Outcome:
        """Have the training script write a checkpoint or begin a trace."""
        reason, own = "", ""
        try:
            if command.verb == "profile" and self.profile_handler and isinstance(command.value, int):
                self.profile_handler(command.value)
                reason = f"tracing {command.value} iteration{'s'[: command.value != 1]}"
            elif self.checkpoint_handler:
                with self.phase("checkpoint"):
                    path = self.checkpoint_handler()
                reason = f"written to {path}" if path else ""
        except Exception as error:
            own = f"{type(error).__name__}: {error}"
        problem = self._problem(own)
        if problem:
            return structs.replace(done, stage="failed", reason=problem)
        return structs.replace(done, reason=travelling(reason, LONGEST_REASON))

    def _follow(self, changed: str) -> tuple[Change, ...]:
        """One knob may decide what another can be: read the others back, and say which have moved."""
        moved = []
        for name, handle in self.knob_handles.items():
            before = handle.value
            try:
                if name != changed and handle.refresh():
                    self.declared += 1
            except Exception as error:
                log.warning("hoptui: reading %s back raised %s", name, error)
            if handle.value != before and not coefficient(handle.spec):  # a schedule moves those all the time
                moved.append(Change(knob=name, before=before, value=handle.value))
        return tuple(moved)

    def _wait_while_paused(self) -> None:
        outer, self.phases.current = self.phases.current, "paused"
        self.phases.since = time.monotonic()
        try:
            while self.paused and not self.stopping:
                self._turn(over=self.rank == 0 and self._lease_over())
        finally:
            self.phases.current = outer

    def _lease_over(self) -> bool:
        """Wait until something is due, a second at most; True when the pause must end by itself."""
        left = self.paused_until - time.monotonic()
        if left > 0:
            self._resume_now.wait(min(left, PAUSE_TURN_S))
            self._resume_now.clear()
            return False
        if self.alive:
            self.event("the pause lease ran out: the run goes on", level="warning")
        return True
