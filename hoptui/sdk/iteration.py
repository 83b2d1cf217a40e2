"""Iterations: the row of each, and the boundary between two.

A row has the metrics of an iteration, its duration, its phases and its rates. At a joint
boundary the ranks exchange commands, agree on stops and wait while paused. Between two operations of the
agreement nothing raises.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobError
from hoptui.protocol.messages import FATE_UNKNOWN, Command
from hoptui.sdk.command_execution import CommandExecution
from hoptui.sdk.metric_values import COUNTS, add_rates
from hoptui.sdk.rank_store import SharingError
from hoptui.sdk.ranks import BoundaryPlan, RankAgreement
from hoptui.sdk.shared_state import SharedState

NO_PHASES: dict[str, float] = {}


class IterationRecorder:
    """Collects the metrics of the iteration in progress and queues its row for the link thread.

    `began` is when the iteration in progress began in monotonic nanoseconds, 0 before the first boundary.
    """

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._convert_mixed = state.converter.convert_mixed
        self._row: dict[str, float] | None = None
        self._last_t = 0
        # The last iteration that finished, and how long it took.
        self._last_step = -1
        self._last_ns: int | None = None
        self.began = 0

    def log(self, values: Mapping[str, Any] | None, metrics: Mapping[str, Any], step: int | None) -> None:
        """Add metrics to the row of this iteration. Outside of a loop, queue them as a row.

        With the `step` of an iteration that has finished, queue a further row of that one.
        """
        state = self._state
        if not state.alive:
            return
        try:
            if values is not None:
                if values.__class__ is not dict and not isinstance(values, Mapping):
                    state.converter.bad += 1
                    state.declarations.refuse_call(
                        "log", KnobError(f"it takes a mapping, not {values!r:.40}")
                    )
                elif metrics:
                    metrics = {**values, **metrics}
                else:
                    metrics = values
            if state.rank:
                metrics = {name: metrics[name] for name in COUNTS if name in metrics}
            row = self._row
            if row is not None and (step is None or step >= state.step):
                for value in metrics.values():  # as `convert` does, without the call
                    if value.__class__ is not float:
                        metrics = self._convert_mixed(self._last_t, state.step, metrics)
                        break
                row.update(metrics)
            elif step is not None:
                self._log_late(step, metrics)
            else:
                t = self._stamp()
                self._append(t, dict(state.converter.convert(t, state.step, metrics)), state.step)
        except Exception as error:  # nothing that a script logs must reach the loop
            state.converter.bad += 1
            state.declarations.refuse_call("log", error)

    def _log_late(self, step: int, metrics: Mapping[str, Any]) -> None:
        t = self._stamp()
        row = dict(self._state.converter.convert(t, step, metrics))
        if step == self._last_step and self._last_ns is not None:
            add_rates(row, self._last_ns / 1e9)
        self._append(t, row, step)

    def count(self, name: str, number: int) -> None:
        """Log the work of the iteration in progress: `name` is one of `COUNTS`."""
        if self._row is not None:
            self._row[name] = number

    def begin(self, now: int) -> None:
        """Start an iteration. Phases between two iterations belong to neither."""
        state = self._state
        if state.phases.seconds:
            state.phases.take()
        self._row = {} if state.alive and not state.stopping else None
        self.began = now

    def finish(self, now: int, *, interrupted: bool = False) -> None:
        """Queue the row of the iteration in progress, if there is one. `now` is in monotonic nanoseconds.

        An interrupted iteration has neither a duration nor rates, so nobody counts it as finished.
        """
        row = self._row
        if row is None:
            return
        self._row = None
        state = self._state
        try:
            step, phases = state.step, NO_PHASES
            if state.phases.seconds:
                phases = state.phases.take()
            spent_ns = None if interrupted else now - self.began
            self._last_step, self._last_ns = step, spent_ns
            if not state.alive:
                return
            t = now
            if now <= self._last_t or state.converter.in_flight:
                t = self._queue_late(self._stamp(now))
            # What follows from the duration is added later: see `complete`.
            self._last_t = t
            state.rows.append((t, step, row, spent_ns, phases))
            state.rows_added += 1
            if state.link_sleeps:
                state.wake_sleeping_link()
        except Exception as error:  # an error of hoptui must not reach the loop
            state.give_up(error)

    def discard(self) -> None:
        """Drop the row of an iteration that will not take place."""
        self._row = None

    def flush(self) -> None:
        """Queue the rows whose values have arrived from a GPU."""
        for _, step, row in self._state.converter.late_rows():
            self._queue(self._stamp(), step, row)

    def _append(self, t: int, row: dict[str, float], step: int) -> None:
        state = self._state
        if state.converter.in_flight:
            t = self._queue_late(t)
        state.rows.append((t, step, row, None, NO_PHASES))
        state.rows_added += 1
        if state.link_sleeps:
            state.wake_sleeping_link()

    def _queue_late(self, t: int) -> int:
        """Queue the rows whose values have arrived from a GPU, from the stamp `t` on. Return the next one."""
        for _, of, late in self._state.converter.late_rows():
            self._queue(t, of, late)
            t = self._stamp()
        return t

    def _queue(self, t: int, step: int, row: dict[str, float]) -> None:
        self._state.rows.append((t, step, row, None, NO_PHASES))
        self._state.rows_added += 1

    def _stamp(self, now: int = 0) -> int:
        """Return monotonic nanoseconds that rise with every row. 0: the time is not known yet."""
        now = now or time.monotonic_ns()
        self._last_t = now if now > self._last_t else self._last_t + 1
        return self._last_t


log = logging.getLogger("hoptui")

COMPANY_S = 0.25
"""Extra time at a boundary before a restart, for commands that were sent together with the first."""
PAUSE_TURN_S = 1.0
"""While paused, the ranks meet at least this often, and whenever a command is due."""


class IterationBoundary:
    """What all ranks do together between two iterations."""

    def __init__(self, state: SharedState, agreement: RankAgreement, execution: CommandExecution) -> None:
        self._state = state
        self._agreement = agreement
        self._execution = execution
        self._stop_request: str | None = None  # by whom, as long as the ranks have not agreed on it

    def request_stop(self, by: str) -> None:
        """Stop at the next boundary, or ask all ranks to. Safe in a signal handler."""
        if self._agreement.alone:
            self._state.stop_by = by
            self._state.stopping = True
        else:
            self._stop_request = by

    @property
    def stop_requested(self) -> bool:
        """Whether this process waits for all ranks to agree on a stop."""
        return self._stop_request is not None

    def pending(self) -> bool:
        """Whether this process has something for a boundary."""
        if self._stop_request is not None or self._execution.held:
            return True
        return self._state.alive and bool(self._state.inbox.due)

    def unanswered(self, why: Fact | None) -> None:
        """Fail what waits for a joint boundary that there cannot be, or what has waited too long.

        Raises:
            SharingError: the script asked for a stop, which then does not wait for the other ranks.
        """
        state = self._state
        if why is None:
            state.inbox.expire_due(time.monotonic())
            return
        state.inbox.fail_due(why)
        state.wake_link()
        if self._stop_request is not None:
            raise SharingError(f"rank {why.fields['rank']} takes no part")

    def meet(self) -> bool:
        """Carry out the commands that are due, on all ranks alike, and wait while paused.

        Return whether there was anything to do.
        """
        agreement, state = self._agreement, self._state
        agreement.passed += 1
        schedule = agreement.schedule
        try:
            if schedule is not None:
                if not schedule.due(agreement.passed):
                    return False
            elif not state.alive or not (state.inbox.due or self._stop_request is not None):
                return False
            try:
                self._exchange_all()
            finally:
                agreement.finish()
        except SharingError as error:
            self._separate(error)
        return True

    # inside -------------------------------------------------------------------------------------------------

    def _exchange_all(self) -> None:
        """Exchange commands, and wait while paused."""
        state, execution = self._state, self._execution
        waiting = execution.restarts
        self._exchange()
        new = execution.restarts
        if new and new != waiting and not (state.paused or state.stopping):
            self._exchange_again()
        if state.paused:
            self._wait_while_paused()

    def _separate(self, error: SharingError) -> None:
        """Go on without the other ranks, and refuse every command from now on."""
        state = self._state
        log.warning("hoptui: no command can be carried out: its ranks can no longer agree: %s", error)
        self._agreement.dissolve()
        state.inbox.refusal = {"world": state.world}
        apart = fact("ranks.apart", error=str(error))
        state.inbox.fail_due(apart)
        unknown = fact(FATE_UNKNOWN, why=apart)
        self._execution.void_waiting(unknown, later=True)
        self._execution.void_taken(unknown)
        state.paused, state.paused_until = False, 0.0
        state.wake_link()
        if self._stop_request is not None:
            self.request_stop(self._stop_request)

    def _exchange(self, over: bool = False) -> None:
        """Exchange stop requests and rank 0's plan, and carry out the plan."""
        agreement, state = self._agreement, self._state
        stop_by = agreement.stop_request(self._stop_request)
        plan = agreement.plan(BoundaryPlan(self._due() if agreement.rank == 0 else (), over))
        self._execution.finish_held()
        self._execution.run(plan.commands)
        if plan.over:
            state.paused = False
        if stop_by is not None:
            state.stop_by, state.stopping = stop_by, True
        if not state.paused or state.stopping:
            state.paused, state.paused_until = False, 0.0
        if any(command.verb == "set" for command in plan.commands):
            self._compare()
        if plan.commands:
            state.wake_link()

    def _compare(self) -> None:
        """Compare the knobs of all ranks."""
        if self._agreement.alone:
            return
        wanted = {name: knob.wanted for name, knob in self._state.declarations.knobs.items()}
        if difference := self._agreement.difference(wanted):
            self._state.warn(difference)

    def _exchange_again(self) -> None:
        """Carry out the commands that were sent together with one that needs a new process."""
        state = self._state
        if state.rank == 0 and state.link is not None and state.alive:
            time.sleep(COMPANY_S)
        self._exchange()

    def _due(self) -> tuple[Command, ...]:
        state = self._state
        if not state.alive:
            return ()
        try:
            due = tuple(state.inbox.take_due(time.monotonic()))
            self._execution.taken = {command.id: command for command in due}
            return due
        except Exception as error:  # an error of hoptui must not keep the other ranks waiting
            log.warning("hoptui: commands were lost: %s: %s", type(error).__name__, error)
            return ()

    def _wait_while_paused(self) -> None:
        state, phases = self._state, self._state.phases
        outer, phases.current = phases.current, "paused"
        phases.since = time.monotonic()
        try:
            while state.paused and not state.stopping:
                self._exchange(over=state.rank == 0 and self._lease_over())
        finally:
            phases.current = outer

    def _lease_over(self) -> bool:
        """Wait for a command, a second at most. Return True if the lease of the pause has expired."""
        state = self._state
        left = state.paused_until - time.monotonic()
        if left > 0:
            state.boundary_wake.wait(min(left, PAUSE_TURN_S))
            state.boundary_wake.clear()
            return False
        if state.alive:
            state.warn(fact("pause.expired"))
        return True
