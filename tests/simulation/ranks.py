"""The collectives of simulated ranks: all of them meet, or all of them hear that one is gone."""

from __future__ import annotations

from typing import Any

from tests.simulation.kernel import Kernel, Process, Signal


class Meeting:
    """Where the ranks of one run meet. `broken` is set when one of them has ended."""

    def __init__(self, kernel: Kernel, world: int) -> None:
        self.kernel, self.world = kernel, world
        self.signal = Signal(kernel)
        self.slots: dict[int, dict[int, Any]] = {}
        self.broken = False

    def seat(self, rank: int) -> Seat:
        return Seat(self, rank)

    def watch(self, process: Process) -> None:
        """Break the meeting when this process ends."""

        def over(killed: bool) -> None:
            self.broken = True
            self.signal.set()

        process.at_end.append(over)


class Seat:
    """The `RankGroup` of one rank."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.world = meeting, rank, meeting.world
        self._turn = 0

    def all(self, ok: bool) -> bool:
        return all(self._meet(ok))

    def share(self, payload: bytes | None) -> bytes:
        found: bytes = self._meet(payload)[0]
        return found

    def gather(self, value: object) -> list[Any]:
        return self._meet(value)

    def _meet(self, value: object) -> list[Any]:
        meeting, turn = self.meeting, self._turn
        self._turn += 1
        slot = meeting.slots.setdefault(turn, {})
        slot[self.rank] = value
        meeting.slots.pop(turn - 2, None)
        meeting.signal.set()
        meeting.kernel.wait(lambda: len(slot) == meeting.world or meeting.broken, [meeting.signal])
        if len(slot) < meeting.world:
            raise RuntimeError("a rank is gone")
        return [slot[rank] for rank in range(meeting.world)]
