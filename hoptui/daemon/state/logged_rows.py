"""Rows that a script logs outside of iterations: how far apart they are, and the rates of what they count."""

from __future__ import annotations

import statistics
from array import array
from collections import deque
from itertools import pairwise

from msgspec import structs

from hoptui.daemon.state.derived_rows import THROUGHPUT
from hoptui.domain.columns import NAN, Columns
from hoptui.domain.progress import ITERATION

ENOUGH = 10
"""A loop that has logged so many rows without a boundary does not pass any."""
RATE = "_per_s"


class LoggedRows:
    """The rows of a run that has passed no boundary. `count` is their number.

    `numbered`: the script gives them the numbers of its iterations, which rise.
    """

    def __init__(self) -> None:
        self.count = 0
        self.numbered = False
        self._iteration: tuple[int, int] | None = (
            None  # the newest: its number, and the stamp of its first row
        )
        self._last_t = 0
        self._spacings: deque[int] = deque(maxlen=31)
        self._counted: dict[str, int] = {}  # by metric: the stamp of its newest row

    @property
    def usual_s(self) -> float | None:
        """The median seconds between two rows, None before the second."""
        return statistics.median(self._spacings) / 1e9 if self._spacings else None

    def add(self, columns: Columns) -> None:
        """Count new rows."""
        times = [self._last_t, *columns.times()] if self._last_t else columns.times()
        self._spacings.extend(b - a for a, b in pairwise(times))
        self._last_t = columns.last_t
        self.count += len(columns)

    def with_rates(self, columns: Columns) -> Columns:
        """Return rows with the rates of their counts: a count over the time since the row before with it."""
        rates = {
            rate: self._rates(columns, count)
            for rate in THROUGHPUT
            if rate not in columns.names and (count := rate.removesuffix(RATE)) in columns.names
        }
        return structs.replace(
            columns, names=(*columns.names, *rates), values=(*columns.values, *rates.values())
        )

    def with_iterations(self, columns: Columns) -> Columns:
        """Return rows with `iteration_s`, where they have numbers that rise.

        The first row of an iteration ends it. It took the time since that of the iteration before, in equal
        parts if numbers are left out.
        """
        if ITERATION in columns.names:
            return columns
        found = array("d", [NAN]) * len(columns)
        for i, (t, step) in enumerate(zip(columns.times(), columns.steps(), strict=True)):
            if self._iteration is None:
                self._iteration = (step, t)
            elif step > self._iteration[0]:
                before, since = self._iteration
                found[i] = (t - since) / 1e9 / (step - before)
                self._iteration = (step, t)
                self.numbered = True
        if not any(value == value for value in found):
            return columns
        values = (*columns.values, found.tobytes())
        return structs.replace(columns, names=(*columns.names, ITERATION), values=values)

    def _rates(self, columns: Columns, count: str) -> bytes:
        rates = array("d", [NAN]) * len(columns)
        before = self._counted.get(count, 0)
        for i, (t, value) in enumerate(zip(columns.times(), columns.column(count), strict=True)):
            if value == value and t > before:
                if before:
                    rates[i] = value / ((t - before) / 1e9)
                before = t
        self._counted[count] = before
        return rates.tobytes()
