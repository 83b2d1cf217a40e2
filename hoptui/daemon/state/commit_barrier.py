"""Which outcomes viewers do not see yet, because they are not on disk."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hoptui.protocol.messages import CommandRecord

LONGEST_WAIT_NS = 200_000_000
"""An outcome that is not on disk after this time is shown with a mark."""


@dataclass
class _Hidden:
    number: int  # of the record that has to be on disk
    before: CommandRecord | None  # what viewers see meanwhile
    until: int = 0  # monotonic ns, 0: not looked at yet


class CommitBarrier:
    """Outcomes between their arrival and the disk, by command.

    `hidden` ones are not shown yet. Neither are records with higher numbers, because a viewer asks for the
    numbers after the newest that it has. `unsaved` ones are shown with a mark, and may get to the disk later.
    """

    def __init__(self) -> None:
        self._hidden: dict[str, _Hidden] = {}
        self._unsaved: dict[str, int] = {}  # the number that has to be on disk

    def add(self, record: CommandRecord, before: CommandRecord | None) -> None:
        """Hide a record with an outcome until it is written. `before` is shown instead."""
        known = self._hidden.get(record.id)
        if known is not None:
            known.number = record.seq
        else:
            self._hidden[record.id] = _Hidden(record.seq, before)
        self._unsaved.pop(record.id, None)

    def hides(self, command: str) -> bool:
        """Return whether the outcome of a command is not shown yet."""
        return command in self._hidden

    def shown(self, record: CommandRecord) -> CommandRecord | None:
        """Return what viewers see of a command, None if they do not know it yet."""
        hidden = self._hidden.get(record.id)
        return record if hidden is None else hidden.before

    @property
    def first(self) -> float:
        """The lowest number of a hidden record, infinity if there is none."""
        return min((hidden.number for hidden in self._hidden.values()), default=math.inf)

    def written(self, command: str, number: int) -> bool:
        """Process that a record is on disk. Return whether its outcome was waiting for that."""
        hidden = self._hidden.get(command)
        waits_for = hidden.number if hidden is not None else self._unsaved.get(command)
        if waits_for is None or number < waits_for:
            return False
        self._hidden.pop(command, None)
        self._unsaved.pop(command, None)
        return True

    def overdue(self, t: int) -> list[str]:
        """Return the commands whose outcome has waited long enough at `t` (monotonic ns): show them with a
        mark."""
        for hidden in self._hidden.values():
            hidden.until = hidden.until or t + LONGEST_WAIT_NS
        found = [command for command, hidden in self._hidden.items() if hidden.until <= t]
        for command in found:
            self._unsaved[command] = self._hidden.pop(command).number
        return found

    @property
    def next_deadline(self) -> int | None:
        """When `overdue` will return something (monotonic ns), None if nothing is hidden."""
        return min((hidden.until for hidden in self._hidden.values()), default=None)

    def forget(self, command: str) -> None:
        """Remove a command."""
        self._hidden.pop(command, None)
        self._unsaved.pop(command, None)
