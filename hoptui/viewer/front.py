"""The newest values of a source of a recording as of a moment, kept up as the moment moves on."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from hoptui.viewer.pages import Pages
from hoptui.viewer.series import FORGET

BACK_PAGES = 3  # how far back a value is looked for that the newest rows do not have


class Newest(NamedTuple):
    """The newest known value of a metric; `spacing` is the time to the one before it, 0 where there is none."""

    value: float
    t: int
    step: int
    spacing: int


class Front:
    """The newest known values of one source as of a moment, and its newest row: stamp (0: none) and iteration."""

    def __init__(self, pages: Pages, source: str) -> None:
        self.row_t = 0
        self.row_step = -1
        self._pages = pages
        self._source = source
        self._at: int | None = None
        self._found: dict[str, Newest] = {}

    def at(self, t: int) -> dict[str, Newest]:
        """By name, in the order in which they first appear; a step ahead costs the rows in between, a jump a few pages."""
        if t == self._at:
            return self._found
        length = self._pages.length(self._source)
        begin = self._at + 1 if self._at is not None else 0
        if self._at is None or t < self._at or t - self._at > BACK_PAGES * length:
            self._found, self.row_t, self.row_step = {}, 0, -1
            begin = max(0, (self._last_page(t) - BACK_PAGES + 1) * length)
            t1 = min(t, (self._last_page(t) + 1) * length - 1)
        else:
            t1 = t
        for number in range(begin // length, t1 // length + 1):
            self._fold(number, begin, t1)
        self._at = t
        return self._found

    def current(self, name: str, t: int) -> Newest | None:
        """The newest value of a metric unless its source has gone on without it for `FORGET` of its spacings."""
        found = self.at(t).get(name)
        if found is None or (found.spacing and self.row_t - found.t > FORGET * found.spacing):
            return None
        return found

    def _last_page(self, t: int) -> int:
        """The page that holds the newest row up to `t`; before all rows that of `t`."""
        first, last, _ = self._pages.sources[self._source]
        length = self._pages.length(self._source)
        number = min(t, last) // length
        for candidate in range(number, first // length - 1, -1):
            page = self._pages.page(self._source, candidate)
            if page.t and page.t[0] <= t:
                return candidate
        return number

    def _fold(self, number: int, t0: int, t1: int) -> None:
        """Take in the rows of a page that are stamped `t0` to `t1`."""
        page = self._pages.page(self._source, number)
        a, b = bisect_left(page.t, t0), bisect_right(page.t, t1)
        if a == b:
            return
        self.row_t, self.row_step = page.t[b - 1], max(self.row_step, page.step[b - 1])
        for name, values in page.values.items():
            i = _known_before(values, a, b)
            if i < a:
                continue
            j = _known_before(values, a, i)
            older = self._found.get(name)
            before = page.t[j] if j >= a else older.t if older else page.t[i]
            self._found[name] = Newest(values[i], page.t[i], page.step[i], page.t[i] - before)


def _known_before(values: Sequence[float], start: int, stop: int) -> int:
    """The index of the last finite value before `stop`, less than `start` where there is none from there on."""
    i = stop - 1
    while i >= start and not math.isfinite(values[i]):
        i -= 1
    return i
