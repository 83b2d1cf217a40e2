"""The newest values of a run's metrics, and which of them are current."""

from __future__ import annotations

from array import array
from collections import deque

from hoptui.domain.columns import Columns, is_known
from hoptui.domain.freshness import FEWEST, NEIGHBOURS, outdated
from hoptui.domain.progress import ITERATION
from hoptui.domain.throughput import PHASE


class NewestValues:
    """The newest value of each metric of a run. `known` has all of them, however old, in order of first
    appearance."""

    def __init__(self) -> None:
        self.known: dict[str, float] = {}
        self.rows: dict[str, tuple[int, int]] = {}
        """The stamp and the iteration of each."""
        self._stamps: dict[str, deque[int]] = {}
        self._last_t = 0

    def add(self, columns: Columns) -> None:
        """Add newer rows."""
        times, steps = columns.times(), columns.steps()
        raw = dict(zip(columns.names, columns.values, strict=True))
        self._last_t = columns.last_t
        for name, row, value in columns.newest():
            self.known[name] = value
            self.rows[name] = times[row], steps[row]
            stamps = self._stamps.get(name)
            if stamps is None:
                stamps = self._stamps[name] = deque(maxlen=NEIGHBOURS + 1)
            if len(stamps) < FEWEST:  # once it has a spacing, one stamp of many rows is enough
                column = array("d", raw[name])
                stamps.extend(t for t, v in zip(times[:row], column, strict=False) if is_known(v))
            stamps.append(times[row])

    def current(self) -> dict[str, float]:
        """Return the values that newer rows do not make outdated.

        A metric that the newest rows leave out is outdated after some of its usual spacings. Phases are those
        of the newest iteration, so that they are parts of one whole.
        """
        iteration = self._stamps.get(ITERATION, (0,))[-1]
        return {
            name: value
            for name, value in self.known.items()
            if (
                self._stamps[name][-1] == iteration
                if name.startswith(PHASE)
                else not outdated(self._stamps[name], self._last_t - self._stamps[name][-1])
            )
        }
