"""The run's side of the command life cycle, without I/O: checks, answers and queues.

The link thread receives commands. The training thread takes those that are due at its boundary. They share
two deques and one claim per command, and no lock: a claim pops the only element of a list, which succeeds
once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from hoptui.domain import traces
from hoptui.domain.enumerations import PREFIX, unknown
from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import MOST_NAMED, KnobError, check_value
from hoptui.protocol.authors import author
from hoptui.protocol.messages import FATE_UNKNOWN, FINAL, Command, Outcome, Stage
from hoptui.sdk.knobs import LiveKnob

DECLINED = "declined"
"""The code of a command that the script has declined, or of a `set` for a knob that it has declined."""
REMEMBERED = 4096
"""Outcomes that are kept to answer a repeated command."""


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

    def late(self, now: float) -> bool:
        """Return whether its time is over."""
        return self.deadline is not None and now > self.deadline


class CommandInbox:
    """Receives commands in the link thread and hands them to the training thread.

    `epoch` is the restart that commands must name. `refusal` holds the fields of the answer if no command
    can be carried out, None if some can. `unacknowledged` are the final outcomes that the daemon has not
    confirmed, by id.
    """

    def __init__(
        self,
        knobs: Mapping[str, LiveKnob[Any]],
        verbs: Callable[[], tuple[str, ...]],
        declined: Mapping[str, str] | None = None,
    ) -> None:
        self.epoch = 0
        self.refusal: dict[str, Any] | None = None
        self.due: deque[DueCommand] = deque()
        self.done: deque[Outcome] = deque()
        self.unacknowledged: dict[str, Outcome] = {}
        self._knobs = knobs
        self._verbs = verbs
        self._declined = {} if declined is None else declined
        self._seen: OrderedDict[str, Outcome] = OrderedDict()
        self._commands: dict[str, Command] = {}  # those of `_seen`
        self._pending: dict[str, DueCommand] = {}
        self._lanes: dict[str, str] = {}  # of the commands in `_pending`

    def receive(self, command: Command, now: float, next_step: int | None) -> list[Outcome]:
        """Return the answers to a command. A repeated id gets its last answer again, and nothing else.

        `next_step` is the iteration before which it will be carried out, None if that is not known yet.
        """
        if (known := self._seen.get(command.id)) is not None:
            return [known]
        self._commands[command.id] = command
        problem = self._problem(command)
        if problem is not None:
            return [self._remember(structs.replace(problem, id=command.id, stage="rejected"))]
        answers = [Outcome(id=command.id, stage="accepted", step=next_step)]
        lane = (
            command.knob if command.verb == "set" else "pause" if command.verb == "resume" else command.verb
        )
        older = self._pending.get(lane)
        if older is not None and older.claim():
            self._lanes.pop(older.command.id, None)
            answers.append(self._remember(superseded(older.command.id, command)))
        due = DueCommand(command, now + command.ttl_s if command.ttl_s > 0 else None)
        self._pending[lane] = due
        self._lanes[command.id] = lane
        answers.append(self._remember(Outcome(id=command.id, stage="scheduled", step=next_step)))
        self.due.append(due)
        return answers

    def collect_outcomes(self) -> list[Outcome]:
        """Return what the training thread has done since the last call."""
        finished = []
        while self.done:
            outcome = self._remember(self.done.popleft())
            finished.append(outcome)
            lane = self._lanes.pop(outcome.id, None)
            due = self._pending.get(lane) if lane is not None else None
            if lane is not None and due is not None and due.command.id == outcome.id:
                del self._pending[lane]
        return finished

    def replace_daemon(self) -> None:
        """Forget the acknowledgements of an earlier daemon: the next one knows only what it finds on disk."""
        self.unacknowledged = {o.id: o for o in self._seen.values() if o.stage in FINAL}

    def unsettled(self) -> list[Outcome]:
        """Return what the daemon may lack: the open stages, and the final ones that it has not acknowledged.

        Each has its command, which the daemon may lack too.
        """
        lacking = [o for o in self._seen.values() if o.stage not in FINAL or o.id in self.unacknowledged]
        return [structs.replace(o, command=self._commands.get(o.id)) for o in lacking]

    def acknowledge(self, stages: Mapping[str, Stage]) -> None:
        """Forget that these final outcomes are to be sent again."""
        for command, stage in stages.items():
            if (known := self.unacknowledged.get(command)) is not None and known.stage == stage:
                del self.unacknowledged[command]

    def end(self, why: Fact) -> None:
        """Void the commands that no boundary will carry out (link thread, after the last boundary).

        A command that a boundary has taken and not finished may have taken effect or not.
        """
        for due in list(self.due):
            if due.claim():
                self._void(due.command.id, why)
        self.due.clear()
        told = {outcome.id for outcome in self.done}
        for outcome in list(self._seen.values()):
            if outcome.stage not in FINAL and outcome.code != "restarting" and outcome.id not in told:
                self._void(outcome.id, fact(FATE_UNKNOWN, why=why))

    def fail_due(self, why: Fact) -> None:
        """Fail the commands that wait for a boundary, because none can carry them out.

        Called in another thread than `take_due`, and never at the same time.
        """
        for due in self._taken():
            if due.claim():
                failed = Outcome(id=due.command.id, stage="failed", code=why.code, fields=why.fields)
                self.done.append(failed)

    def expire_due(self, now: float) -> None:
        """Expire the commands for which no boundary came in time. Safe in every thread."""
        for due in list(self.due):
            if due.late(now) and due.claim():
                self._expire(due)

    def _void(self, command: str, why: Fact) -> None:
        self.done.append(Outcome(id=command, stage="voided", code=why.code, fields=why.fields))

    def take_due(self, now: float) -> list[Command]:
        """Return the commands to carry out at this boundary, in order of arrival (training thread)."""
        taken = []
        for due in self._taken():
            if not due.claim():
                continue
            if due.late(now):
                self._expire(due)
            else:
                taken.append(due.command)
        return taken

    def _taken(self) -> list[DueCommand]:
        return [self.due.popleft() for _ in range(len(self.due))]

    def _expire(self, due: DueCommand) -> None:
        fields = {"ttl_s": due.command.ttl_s}
        self.done.append(Outcome(id=due.command.id, stage="expired", code="no_boundary", fields=fields))

    def _remember(self, outcome: Outcome) -> Outcome:
        self._seen[outcome.id] = outcome
        self._seen.move_to_end(outcome.id)
        if outcome.command is not None:  # the process before has received it
            self._commands[outcome.id] = outcome.command
        if outcome.stage in FINAL:
            self.unacknowledged[outcome.id] = outcome
        while len(self._seen) > REMEMBERED:
            gone, _ = self._seen.popitem(last=False)
            self.unacknowledged.pop(gone, None)
            self._commands.pop(gone, None)
        return outcome

    def _problem(self, command: Command) -> Outcome | None:
        if command.epoch != self.epoch:
            return _rejected("stale_epoch")
        if unknown(command.verb):
            return _rejected("unsupported", verb=command.verb.removeprefix(PREFIX))
        if self.refusal is not None:
            return _rejected("unsupported", **self.refusal)
        if (reason := self._declined.get(command.verb)) is not None and command.verb != "set":
            return _rejected(DECLINED, verb=command.verb, reason=reason)
        if command.verb in ("checkpoint", "profile") and command.verb not in self._verbs():
            return _rejected("unsupported", verb=command.verb)
        if command.verb == "profile" and not _traceable(command.value):
            return _rejected("out_of_range", iterations=command.value, most=traces.MOST_TRACED)
        for option, value in command.options.items():
            if traces.declared(option) not in self._verbs():
                return _rejected("unsupported", verb=command.verb, option=option)
            if not traces.valid(option, value):
                return _rejected("out_of_range", iterations=value, most=traces.MOST_TRACED, option=option)
        if command.verb != "set":
            return None
        knob = self._knobs.get(command.knob)
        if knob is None and (reason := self._declined.get(command.knob)):
            return _rejected(DECLINED, knob=command.knob, reason=reason)
        if knob is None:
            return _rejected("unknown_knob", knob=command.knob, known=list(self._knobs)[:MOST_NAMED])
        try:
            check_value(knob.spec, command.value)
        except KnobError as error:
            return _rejected(error.code, spec=knob.spec, value=command.value)
        if command.expect_version is not None and command.expect_version != knob.version:
            fields = {"knob": knob.name, "value": knob.value, "version": knob.version, "by": knob.by}
            return structs.replace(
                _rejected("version_conflict", **fields),
                by=knob.by,
                version=knob.version,
                effective=knob.value,
            )
        return self._conflict(command)

    def _conflict(self, command: Command) -> Outcome | None:
        older = self._pending.get(command.knob)
        if command.expect_version is None or older is None or older.command.origin == command.origin:
            return None
        first, by = older.command, author(older.command.origin, sentence=True)
        problem = _rejected("pending_conflict", knob=first.knob, value=first.value, by=by)
        return structs.replace(problem, by=by)


def superseded(command_id: str, later: Command) -> Outcome:
    """Return the outcome of a command that a later one replaced."""
    by = author(later.origin, sentence=True)
    return Outcome(id=command_id, stage="superseded", code="later_command", fields={"by": by}, by=by)


def _rejected(code: str, **fields: Any) -> Outcome:
    return Outcome(id="", stage="rejected", code=code, fields=fact(code, **fields).fields)


def _traceable(value: object) -> bool:
    return type(value) is int and 1 <= value <= traces.MOST_TRACED
