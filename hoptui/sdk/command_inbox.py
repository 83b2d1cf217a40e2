"""The run's side of the command life cycle, without I/O: checks, answers and queues.

The link thread receives commands. The training thread takes those that are due at its boundary. They share
two deques and one claim per command, and no lock: a claim pops the only element of a list, which succeeds
once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hoptui.domain.knobs import KnobError, check_value, missing, shown
from hoptui.protocol.authors import author
from hoptui.protocol.messages import FINAL, Command, Outcome
from hoptui.sdk.knobs import LiveKnob

REMEMBERED = 4096
"""Outcomes that are kept to answer a repeated command."""
MOST_TRACED = 1000
"""Iterations of one trace. Its files grow by megabytes per iteration."""


class DueCommand:
    """A command that waits for the boundary."""

    __slots__ = ("_claim", "command", "deadline")

    def __init__(self, command: Command, deadline: float | None) -> None:
        self.command = command
        self.deadline = deadline
        self._claim = [True]

    def claim(self) -> bool:
        """Return True for the first caller only, in whichever thread."""
        try:
            return self._claim.pop()
        except IndexError:
            return False


class CommandInbox:
    """Receives commands in the link thread and hands them to the training thread.

    `epoch` is the restart that commands must name. `refusal` is why no knob of this run can change, "" if
    they can.
    """

    def __init__(self, knobs: Mapping[str, LiveKnob[Any]], verbs: Callable[[], tuple[str, ...]]) -> None:
        self.epoch = 0
        self.refusal = ""
        self.due: deque[DueCommand] = deque()
        self.done: deque[Outcome] = deque()
        self._knobs = knobs
        self._verbs = verbs
        self._seen: OrderedDict[str, Outcome] = OrderedDict()
        self._pending: dict[str, DueCommand] = {}

    def receive(self, command: Command, now: float, next_step: int) -> list[Outcome]:
        """Return the answers to a command. A repeated id gets its last answer again, and nothing else."""
        if (known := self._seen.get(command.id)) is not None:
            return [known]
        problem = self._problem(command)
        if problem is not None:
            return [self._remember(msgspec.structs.replace(problem, id=command.id, stage="rejected"))]
        answers = [Outcome(id=command.id, stage="accepted", step=next_step)]
        lane = (
            command.knob if command.verb == "set" else "pause" if command.verb == "resume" else command.verb
        )
        older = self._pending.get(lane)
        if older is not None and older.claim():
            answers.append(self._remember(superseded(older.command.id, command)))
        due = DueCommand(command, now + command.ttl_s if command.ttl_s > 0 else None)
        self._pending[lane] = due
        answers.append(self._remember(Outcome(id=command.id, stage="scheduled", step=next_step)))
        self.due.append(due)
        return answers

    def collect_outcomes(self) -> list[Outcome]:
        """Return what the training thread has done since the last call."""
        finished = []
        while self.done:
            outcome = self._remember(self.done.popleft())
            finished.append(outcome)
            self._pending = {lane: due for lane, due in self._pending.items() if due.command.id != outcome.id}
        return finished

    def final_outcomes(self) -> list[Outcome]:
        """Return the newest final outcomes, for a daemon that may have missed them."""
        return [o for o in list(self._seen.values())[-64:] if o.stage in FINAL and o.stage != "rejected"]

    def take_due(self, now: float) -> list[Command]:
        """Return the commands to carry out at this boundary, in order of arrival (training thread)."""
        taken = []
        for _ in range(len(self.due)):
            due = self.due.popleft()
            if not due.claim():
                continue
            if due.deadline is not None and now > due.deadline:
                reason = f"no boundary came within {due.command.ttl_s:g} s"
                self.done.append(Outcome(id=due.command.id, stage="expired", reason=reason))
                continue
            taken.append(due.command)
        return taken

    def _remember(self, outcome: Outcome) -> Outcome:
        self._seen[outcome.id] = outcome
        self._seen.move_to_end(outcome.id)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return outcome

    def _problem(self, command: Command) -> Outcome | None:
        if command.epoch != self.epoch:
            text = "the run has restarted since: the command was meant for the process before"
            return Outcome(id="", stage="rejected", code="stale_epoch", reason=text)
        if command.verb in ("checkpoint", "profile") and command.verb not in self._verbs():
            text = f"this run has no {command.verb} handler (run.on_{command.verb})"
            return Outcome(id="", stage="rejected", code="unsupported", reason=text)
        if command.verb == "profile" and not _traceable(command.value):
            text = f"a trace is of 1 to {MOST_TRACED} iterations, not {shown(command.value)}"
            return Outcome(id="", stage="rejected", code="out_of_range", reason=text)
        if command.verb != "set":
            return None
        if self.refusal:
            return Outcome(id="", stage="rejected", code="unsupported", reason=self.refusal)
        knob = self._knobs.get(command.knob)
        if knob is None:
            reason = missing("this run", command.knob, self._knobs)
            return Outcome(id="", stage="rejected", code="unknown_knob", reason=reason)
        try:
            check_value(knob.spec, command.value)
        except KnobError as error:
            code = "out_of_range" if "out of bounds" in str(error) else "bad_type"
            return Outcome(id="", stage="rejected", code=code, reason=str(error))
        if command.expect_version is not None and command.expect_version != knob.version:
            by = knob.by or "the run itself"
            text = f"{knob.name} is {shown(knob.value)} since version {knob.version}, set by {by}"
            return Outcome(
                id="",
                stage="rejected",
                code="version_conflict",
                reason=text,
                by=by,
                version=knob.version,
                effective=knob.value,
            )
        return self._conflict(command)

    def _conflict(self, command: Command) -> Outcome | None:
        older = self._pending.get(command.knob)
        if command.expect_version is None or older is None or older.command.origin == command.origin:
            return None
        first = older.command
        text = (
            f"{author(first.origin, sentence=True)} was first: {first.knob} → {shown(first.value)} is "
            "already scheduled"
        )
        return Outcome(
            id="",
            stage="rejected",
            code="pending_conflict",
            reason=text,
            by=author(first.origin, sentence=True),
        )


def superseded(command_id: str, later: Command) -> Outcome:
    """Return the outcome of a command that a later one replaced."""
    by = author(later.origin, sentence=True)
    reason = f"a later command of {by} took its place"
    return Outcome(id=command_id, stage="superseded", reason=reason, by=by)


def _traceable(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST_TRACED
