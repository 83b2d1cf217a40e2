"""Rows of a recording in caches bounded in bytes: pages around a position, and tiles of buckets.

A page holds about `PAGE_ROWS` rows of one source, a tile `TILE` buckets of one metric. Both are aligned to
the recording's time, not to the request, so a moving position reads each of them once. Nothing is read before
it is requested.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from hoptui.domain.columns import Columns, concatenate
from hoptui.model.detail_requests import (
    ENTRY_BYTES,
    STEPS,
    Cache,
    Entries,
    entries_bytes,
    iterations,
    known_entries,
    no_entries,
)
from hoptui.model.series import median
from hoptui.protocol.messages import Buckets
from hoptui.recording import Recording, RecordingError
from hoptui.recording.pyramid import FACTOR as GROUP

PAGE_ROWS = 1024
SHORTEST_NS, LONGEST_NS = 10**9, 600 * 10**9
MOST_PAGES = 4096
"""Of a source. A gap without rows is looked through page by page, so a long recording has longer pages."""
TILE = 32
MOST_PAGE_BYTES = 48 << 20
MOST_TILE_BYTES = 8 << 20


class RowPage(NamedTuple):
    """Some rows of a source: stamps, iterations, and a column for each metric, NaN where a row lacks it."""

    t: array[int]
    step: array[int]
    values: dict[str, array[float]]


NOTHING = RowPage(array("q"), array("q"), {})


class Pages:
    """The rows of an open recording. A failed read counts as no rows, and `problem` gives the reason."""

    def __init__(self, recording: Recording) -> None:
        self.problem = ""
        self.sources = recording.sources()
        self._gone = recording.thinned_before or 0
        self.recording = recording
        self._pages: Cache[RowPage] = Cache(MOST_PAGE_BYTES, _page_bytes)
        self._tiles: Cache[Entries] = Cache(MOST_TILE_BYTES, entries_bytes)
        self._charted: dict[str, list[str]] = {}

    @property
    def cached_bytes(self) -> int:
        """The current size of the caches."""
        return self._pages.bytes + self._tiles.bytes

    def length(self, source: str) -> int:
        """Return the time that a page of a source covers, in ns."""
        first, last, _ = self.sources[source]
        usual = min(max(int(PAGE_ROWS * self._spacing(source)), SHORTEST_NS), LONGEST_NS)
        return max(usual, (last - first) // MOST_PAGES)

    def rows_in(self, source: str, span: int) -> float:
        """Return the approximate number of rows of a source in `span` ns, including deleted ones."""
        return span / max(1.0, self._spacing(source))

    def page(self, source: str, number: int) -> RowPage:
        """Return the rows stamped from `number` × length up to the next page."""
        found = self._pages.get((source, number))
        if found is None:
            found = self._read(source, number)
            self._pages.put((source, number), found)
        return found

    def samples(self, source: str, name: str, t0: int, t1: int) -> Entries:
        """Return the known values of a metric (`STEPS`: the iterations) stamped `t0` to `t1`, both
        included."""
        times, values = array("q"), array("d")
        length = self.length(source)
        for number in range(t0 // length, t1 // length + 1):
            page = self.page(source, number)
            column = array("d", map(float, page.step)) if name == STEPS else page.values.get(name)
            if column is None:
                continue
            a, b = bisect_left(page.t, t0), bisect_right(page.t, t1)
            part = column[a:b]
            if math.isfinite(sum(part)):
                times += page.t[a:b]
                values += part
            else:
                kept = [i for i in range(a, b) if math.isfinite(column[i])]
                times.extend(page.t[i] for i in kept)
                values.extend(column[i] for i in kept)
        return Entries(times, values, values, values)

    def tail(self, source: str, name: str, t: int, count: int, pages: int) -> list[float]:
        """Return the newest `count` known values of a metric up to `t`, unordered, from at most `pages`
        pages."""
        found: list[float] = []
        newest = t // self.length(source)
        for number in range(newest, newest - pages, -1):
            page = self.page(source, number)
            column = page.values.get(name)
            if column is not None:
                known = [v for v in column[: bisect_right(page.t, t)] if math.isfinite(v)]
                found += known[-(count - len(found)) :]
            if len(found) == count:
                break
        return found

    def entries(self, source: str, name: str, step: int, t0: int, t1: int) -> Entries:
        """Return the buckets of `step` ns of a metric from `t0`, a multiple of `step`, to `t1`.

        The last bucket ends at `t1`. Long buckets come from groups of rows, which may cross an edge by half a
        bucket.
        """
        found = no_entries()
        for number in range(t0 // (step * TILE), t1 // (step * TILE) + 1):
            tile = self._tile(source, name, step, number)
            found.take(tile, bisect_left(tile.t, t0), bisect_right(tile.t, t1))
        edge = t1 // step * step
        if t1 - edge < step - 1:  # the tile's last bucket may include rows after t1
            found.cut(bisect_left(found.t, edge))
            last = self._within(source, name, edge, t1)
            found.take(last, 0, len(last.t))
        return found

    def direct(self, source: str, name: str, t0: int, t1: int, points: int) -> Entries:
        """Return at most `points` buckets of a metric between two stamps, without caching them."""
        return _of(self._buckets(source, (name,), t0, t1, points), name)

    def first_at(self, source: str, step: int) -> int | None:
        """Return the stamp of the first row of iteration `step` or a later one, None if there is none."""
        first, last, _ = self.sources[source]
        while self.rows_in(source, last - first) > 2 * PAGE_ROWS:
            found = self._buckets(source, ("iteration_s",), first, last, 256)
            times, steps = array("q", found.t), array("q", found.step)
            at = next((i for i, known in enumerate(steps) if known >= step), None)
            if at is None:
                return None
            narrowed = (times[at - 1] + 1 if at else first, times[at])
            if narrowed == (first, last):
                break
            first, last = narrowed
        length = self.length(source)
        for number in range(first // length, last // length + 1):
            page = self.page(source, number)
            for t, known in zip(page.t, page.step, strict=True):
                if known >= step and t >= first:
                    return t
        return None

    def _spacing(self, source: str) -> float:
        """Return the mean ns between rows, in the part that still has rows."""
        first, last, rows = self.sources[source]
        return (last - max(first, min(self._gone, last))) / max(1, rows)

    def _tile(self, source: str, name: str, step: int, number: int) -> Entries:
        found = self._tiles.get((source, name, step, number))
        if found is not None:
            return found
        charted = self._charted.setdefault(source, [])
        if name not in charted:
            charted.append(name)
        # A chart draws several metrics of a source. They are read together, because a row holds all of them.
        names = tuple(n for n in charted if n == name or self._tiles.get((source, n, step, number)) is None)
        # 0 would stand for the first row, and the buckets would not be aligned. So the first tile is read
        # together with the one before it.
        tiles = 1 if number else 2
        start, end = (number + 1 - tiles) * TILE * step, (number + 1) * TILE * step - 1
        answer = self._buckets(source, names, start, end, tiles * TILE)
        for one in names:
            self._tiles.put((source, one, step, number), _of(answer, one))
        return _of(answer, name)

    def _within(self, source: str, name: str, t0: int, t1: int) -> Entries:
        """Return all of a metric between two stamps as one entry, none if it has no value."""
        if self.rows_in(source, t1 - t0) > 4 * PAGE_ROWS:
            return self.direct(source, name, t0, t1, 1)
        found = self.samples(source, name, t0, t1)
        if not found.t:
            return found
        extremes = array("d", [min(found.low)]), array("d", [max(found.high)])
        return Entries(found.t[-1:], *extremes, array("d", [median(found.middle)]))

    def _read(self, source: str, number: int) -> RowPage:
        length = self.length(source)
        start, end = max(1, number * length), (number + 1) * length - 1
        if end < start:
            return NOTHING
        try:
            parts = list(self.recording.rows(source, start, end))
            gone = self.recording.thinned_before
            first = min(parts[0].times()[0] if parts else end + 1, gone or 0)
            if start < first:
                parts = [
                    _as_rows(self.recording.buckets(source, (), start, first - 1, PAGE_ROWS), length),
                    *parts,
                ]
        except RecordingError as error:
            self.problem = error.reason
            return NOTHING
        rows = concatenate(source, parts)
        values = {name: array("d", raw) for name, raw in zip(rows.names, rows.values, strict=True)}
        return RowPage(rows.times(), rows.steps(), values)

    def _buckets(self, source: str, names: tuple[str, ...], t0: int, t1: int, points: int) -> Buckets:
        # An empty tuple would request all names.
        names = tuple(name for name in names if name != STEPS) or ("iteration_s",)
        try:
            return self.recording.buckets(source, names, t0, t1, points)
        except RecordingError as error:
            self.problem = error.reason
            nothing = tuple(b"" for _ in names)
            return Buckets(
                id=0, source=source, names=names, t=b"", step=b"", low=nothing, high=nothing, mean=nothing
            )


def _as_rows(groups: Buckets, length: int) -> Columns:
    """Replace deleted rows by rows with the means of their groups.

    A group reaches back to the one before it, but over at most `GROUP` rows.
    """
    times, steps = array("q", groups.t), array("q", groups.step)
    spacing = max(1, length // PAGE_ROWS)
    made_t, made_step, taken = array("q"), array("q"), array("q")
    for i, t in enumerate(times):
        before = times[i - 1] if i else t - GROUP * spacing
        count = min(GROUP, max(1, (t - before) // spacing))
        made_t.extend(range(t - (count - 1) * spacing, t + 1, spacing))
        made_step.extend([steps[i]] * count)
        taken.extend([i] * count)
    means = [array("d", raw) for raw in groups.mean]
    return Columns(
        source=groups.source,
        names=groups.names,
        t=made_t.tobytes(),
        step=made_step.tobytes(),
        values=tuple(array("d", [mean[i] for i in taken]).tobytes() for mean in means),
    )


def _of(answer: Buckets, name: str) -> Entries:
    return iterations(answer) if name == STEPS else known_entries(answer, name)


def _page_bytes(page: RowPage) -> int:
    return ENTRY_BYTES + 8 * len(page.t) * (2 + len(page.values))
