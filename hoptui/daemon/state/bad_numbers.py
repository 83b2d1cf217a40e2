"""Losses that stop being numbers: which metrics of a run are NaN or infinite now, and since when."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from hoptui.domain.columns import LOGGED_NAN_BYTES, Columns, is_known
from hoptui.domain.facts import Fact, fact
from hoptui.domain.learning_metrics import ALWAYS_DEFINED

MOST_WATCHED = 32
QUIET_S = 60.0
"""A metric that keeps changing between finite and not is reported once in so many seconds."""
_MARKS = (LOGGED_NAN_BYTES, struct.pack("<d", math.inf), struct.pack("<d", -math.inf))


class BadNumber(NamedTuple):
    """What to report: the iteration (-1: none), and whether it is a change for the worse."""

    what: Fact
    step: int
    worse: bool


class BadNumbers:
    """The watched metrics of one run."""

    def __init__(self) -> None:
        self.since: dict[str, int] = {}
        """The iteration since which a metric is not finite (-1: unknown), by metric."""
        self._told: set[str] = set()  # of these
        self._told_at: dict[str, int] = {}  # the stamp of the row, by metric

    def add(self, columns: Columns) -> list[BadNumber]:
        """Look at new rows of the run. Return what has changed, one change for each metric at most."""
        return [
            found
            for name, raw in zip(columns.names, columns.values, strict=True)
            if (name in self.since or any(mark in raw for mark in _MARKS)) and ALWAYS_DEFINED.search(name)
            if (found := self._look(name, columns)) is not None
        ]

    def _look(self, name: str, columns: Columns) -> BadNumber | None:
        rows = zip(columns.times(), columns.steps(), columns.column(name), strict=True)
        known = [(t, step, value) for t, step, value in rows if is_known(value)]
        bad = [row for row in known if not math.isfinite(row[2])]
        if bad and name not in self.since and len(self.since) < MOST_WATCHED:
            t, step, value = bad[0]
            self.since[name] = step
            if name in self._told_at and t < self._told_at[name] + QUIET_S * 1e9:
                return None
            self._told.add(name)
            self._told_at[name] = t
            return BadNumber(fact("number.bad", metric=name, value=_spelled(value)), step, worse=True)
        if known and not bad and name in self.since:
            since = self.since.pop(name)
            if name in self._told:
                self._told.discard(name)
                return BadNumber(fact("number.good", metric=name, since=since), known[0][1], worse=False)
        return None


def _spelled(value: float) -> str:
    return "NaN" if value != value else "inf" if value > 0 else "-inf"
