"""Commands on their way: each is sent again, with the same id, until the daemon has answered, but not for long. No I/O; time is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from hoptui.protocol.messages import Command

RESEND_S = (1.0, 1.0, 2.0, 4.0)  # then every four seconds
PATIENCE_S = 15.0
"""For so long a command waits for a daemon: one that starts anew is there by then, and the person still means it."""


def patience_s(command: Command) -> float:
    """How long a command is sent again without an answer."""
    return min(command.ttl_s or PATIENCE_S, PATIENCE_S)


@dataclass
class _Sent:
    command: Command
    until: float  # it is settled by then, one way or another
    answer_by: float
    next_at: float
    times: int = 0
    answered: bool = False

    @property
    def over_at(self) -> float:
        return self.until if self.answered else min(self.answer_by, self.until)


class Outbox:
    """The commands of one viewer that are not settled yet. Sending one twice is harmless: a run takes an id only once.

    Any thread may call any method.
    """

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}
        self._lock = Lock()

    def add(self, command: Command, now: float) -> None:
        """Send `command` at the next `due`; without an answer it is given up after `patience_s`."""
        until = now + (command.ttl_s or float("inf"))
        with self._lock:
            self._sent[command.id] = _Sent(command, until, now + patience_s(command), now)

    def due(self, now: float) -> list[Command]:
        """The commands to send (again) now."""
        with self._lock:
            found = []
            for one in self._sent.values():
                if not one.answered and one.next_at <= now < one.over_at:
                    one.next_at = now + RESEND_S[min(one.times, len(RESEND_S) - 1)]
                    one.times += 1
                    found.append(one.command)
            return found

    def given_up(self, now: float) -> list[Command]:
        """The commands that nobody answered in time; each is returned once."""
        with self._lock:
            old = [one for one in self._sent.values() if one.over_at <= now]
            for one in old:
                del self._sent[one.command.id]
            return [one.command for one in old if not one.answered]

    def answered(self, command_id: str, *, final: bool) -> None:
        """The daemon knows this command; after its final stage there is nothing more to do."""
        with self._lock:
            if final:
                self._sent.pop(command_id, None)
            elif command_id in self._sent:
                self._sent[command_id].answered = True

    def reconnected(self, now: float) -> None:
        """Another daemon may be at the other end: tell it of everything that is not settled."""
        with self._lock:
            for one in self._sent.values():
                if one.answered:
                    one.answered, one.answer_by = False, now + patience_s(one.command)
                one.next_at, one.times = now, 0

    def next_at(self) -> float:
        """When `due` or `given_up` has something next; infinity if never."""
        with self._lock:
            times = [
                one.over_at if one.answered else min(one.next_at, one.over_at) for one in self._sent.values()
            ]
            return min(times, default=float("inf"))

    def unanswered(self) -> dict[str, Command]:
        """The commands of which the daemon has not said anything yet."""
        with self._lock:
            return {key: one.command for key, one in self._sent.items() if not one.answered}
