"""Rising counters to rates."""

from __future__ import annotations


class Rate:
    """The rate of one counter between two readings of it.

    It is unknown at the first reading, after a reading that failed, and when the counter went back (a device was
    reset or replaced): a rate over such a gap would be a number that nobody measured.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def update(self, t: int, counter: float | None) -> float | None:
        """Counts per second since the reading before this one.

        Args:
            t: when the counter was read, monotonic ns.
            counter: its value, None where it could not be read.
        """
        before, self._last = self._last, None if counter is None else (t, counter)
        if before is None or counter is None or counter < before[1] or t <= before[0]:
            return None
        return (counter - before[1]) * 1e9 / (t - before[0])
