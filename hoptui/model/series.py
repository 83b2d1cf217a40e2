"""One metric over time in bounded memory: a ring of raw samples below a pyramid of extremes and medians.

Each level of the pyramid covers four times the time of the level below, at a quarter of its resolution. It
has room for `CAPACITY` entries. So a window up to now is drawn from at least `CAPACITY / 4` entries, and no
spike is lost. If a window further back would be coarse, it uses finer tiles, if there are any.

An entry of the pyramid has a median of its samples: by turns the lower and the upper one of the two in the
middle. So the median of many entries is not biased, also if the values are skewed. An entry of more samples
than the ring holds has a median of medians.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from operator import sub
from threading import RLock
from typing import NamedTuple, Protocol

from hoptui.domain.columns import is_known
from hoptui.domain.freshness import NEIGHBOURS, outdated, usual
from hoptui.model.detail_requests import Entries, Part, no_entries
from hoptui.protocol.messages import Buckets

CAPACITY = 2048
SLACK = 8
FACTOR = 4
LEVELS = 10  # 2048 × 4⁹ samples: 620 days at 10 Hz
HOLE = 3  # a pause longer than this many usual spacings is drawn as a gap
SHARE_POINTS = 128
NAN = math.nan


class SeriesWindow(NamedTuple):
    """Buckets of a window, oldest first. `t` is the stamp of the last sample in each.

    NaN in `low` and `high` is a gap.
    """

    t: list[int]
    low: list[float]
    high: list[float]


class SeriesColumns(NamedTuple):
    """Buckets of a window as in `SeriesWindow`, with the median of the values in each."""

    t: list[int]
    low: list[float]
    high: list[float]
    middle: list[float]


class _Level:
    """Entries of (stamp of the last sample, least, greatest, median), oldest first. About `CAPACITY` at most.

    The samples of a `raw` level are their own extremes and medians: it has one array of values.
    """

    def __init__(self, *, raw: bool = False) -> None:
        self.t: array[int] = array("q")
        self.low: array[float] = array("d")
        self.high: array[float] = self.low if raw else array("d")
        self.middle: array[float] = self.low if raw else array("d")
        self.carried = 0  # number of entries from the start that the level above already has
        self.dropped = 0
        self._columns = (self.low,) if raw else (self.low, self.high, self.middle)

    @property
    def whole(self) -> bool:
        """Whether nothing has been dropped."""
        return not self.dropped

    def append(self, t: int, *values: float) -> None:
        self.t.append(t)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def trim(self) -> None:
        """Drop the oldest entries, `SLACK` at a time.

        An array that loses fewer than 16 items keeps its memory. One that lost a quarter would be reallocated
        elsewhere. With hundreds of arrays, a third of the heap became holes.
        """
        extra = len(self.t) - CAPACITY
        if extra >= SLACK:
            for column in (self.t, *self._columns):
                del column[:extra]
            self.carried -= extra
            self.dropped += extra


class Series:
    """One metric of one source. NaN and infinite values are not stored and appear as gaps.

    `version` rises with each change, `refined` with each addition to the past. `last` is the newest known
    value, `last_t` and `last_step` are its stamp and iteration. It may be infinite or a NaN that the script
    logged. It is unknown (another NaN) before there is a value, and once the source has omitted it for
    `FORGET` usual spacings. `closer` returns finer parts between two
    stamps, in buckets of about a width in ns.
    """

    def __init__(
        self, lock: RLock | None = None, closer: Callable[[int, int, int], Iterable[Part]] | None = None
    ) -> None:
        self.version = 0
        self.refined = 0
        self.last = NAN
        self.last_t = 0
        self.last_step = -1
        self._lock = lock or RLock()
        self._levels = [_Level(raw=True)]
        self._past: list[_Level] = []
        self._closer = closer

    @property
    def first_t(self) -> int:
        """The stamp of the oldest entry held, 0 before there is one."""
        with self._lock:
            return self._first() or 0

    def extend(self, t: Sequence[int], step: Sequence[int], values: Sequence[float]) -> None:
        """Add newer samples in order of their stamps. Those that are not newer than existing ones are
        ignored."""
        if not len(t):
            return
        with self._lock:
            raw = self._levels[0]
            start = bisect_right(t, self._newest())
            if math.isfinite(sum(values[start:])):
                kept: Sequence[int] = range(start, len(t))
                raw.t.extend(t[start:])
                raw.low.extend(values[start:])
            else:
                kept = [i for i in range(start, len(t)) if is_known(values[i])]
                for i in kept:
                    if math.isfinite(values[i]):
                        raw.append(t[i], values[i])
            if kept:
                self.version += 1
                self._carry()
                if t[kept[-1]] > self.last_t:
                    self._is_last(t[kept[-1]], step[kept[-1]], values[kept[-1]])
            self.missing(t[-1])

    def missing(self, t: int) -> None:
        """The source has a row at `t` without this metric. After too many of them its last value is not
        current."""
        with self._lock:
            if is_known(self.last) and outdated(self._latest(), t - self.last_t):
                self.last = NAN
                self.version += 1

    def seed(self, buckets: Buckets, name: str) -> None:
        """Insert past values from a Query before the existing ones. Buckets that are not older are
        ignored."""
        if name not in buckets.names:
            return
        at = buckets.names.index(name)
        times = array("q", buckets.t)
        low, high, mean = (array("d", a[at]) for a in (buckets.low, buckets.high, buckets.mean))
        with self._lock:
            first = self._first()
            past = _Level()
            final = -1
            for i, t in enumerate(times):
                if (first is None or t < first) and math.isfinite(low[i]) and math.isfinite(high[i]):
                    past.append(t, low[i], high[i], mean[i])
                    final = i
            if final < 0:
                return
            self._past = [past, *self._past][:8]
            if times[final] > self.last_t:
                self._is_last(times[final], array("q", buckets.step)[final], mean[final])
            self.refine()

    def refine(self) -> None:
        """More of the past is known, here or in the finer tiles."""
        self.refined += 1
        self.version += 1

    def clear(self) -> None:
        """Drop the history but not the last value, before a new seed."""
        with self._lock:
            self._levels, self._past = [_Level(raw=True)], []
            self.version += 1

    def window(self, t0: int, t1: int, points: int) -> SeriesWindow:
        """Return the samples stamped `t0` to `t1`, both included, in at most `points` equal buckets.

        Empty buckets are left out. A gap in the samples, longer than `HOLE` of the spacings around it,
        becomes one NaN bucket if there is room. Where raw samples are no longer held, an entry of a coarser
        level counts in the bucket of its last sample.
        """
        found = self._looked_at(t0, t1, points)
        return bucketed(found.t, found.low, found.high, t0, t1, points)

    def columns(self, t0: int, t1: int, points: int) -> SeriesColumns:
        """As `window`, with medians."""
        return with_medians(self._looked_at(t0, t1, points), t0, t1, points)

    def fine_from(self, width: int) -> int:
        """Return the stamp from which on entries are no further apart than `width`. Before it, tiles are
        finer.

        An entry has the stamp of its last sample and reaches back to the entry before it.
        """
        with self._lock:
            levels = [level for k, level in enumerate(self._levels) if not k or _apart(level.t) <= width]
            found = levels[-1].t[0] - _apart(levels[-1].t) if levels[-1].t else self._newest() + 1
            if not levels[-1].whole:
                return found
            for past in reversed(self._past):
                if _apart(past.t) > width:
                    break
                found = past.t[0] - _apart(past.t)
            return found

    def _looked_at(self, t0: int, t1: int, points: int) -> Entries:
        """Return what is known between two stamps, from finer tiles where it would be coarser than a
        bucket."""
        if t1 < t0 or points < 1:
            return no_entries()
        with self._lock:
            width = max(1, (t1 - t0 + 1) // points)
            fine = self.fine_from(width) if self._closer is not None else t0
            if self._closer is None or fine <= t0:
                return self._entries(t0, t1)
            entries, at = no_entries(), t0
            for part in self._closer(t0, min(t1, fine - 1), width):
                for found in (self._entries(at, part.t0 - 1), part.entries):
                    entries.take(found, 0, len(found.t))
                at = part.t1 + 1
            rest = self._entries(at, t1)
            entries.take(rest, 0, len(rest.t))
            return entries

    def _entries(self, t0: int, t1: int) -> Entries:
        """Return the entries between two stamps.

        They are seeds, the finest level that reaches back to `t0`, and the finer entries after its end.
        """
        top = len(self._levels) - 1
        reaching = (k for k, level in enumerate(self._levels) if level.whole or level.t[0] <= t0 or k == top)
        finest = next(reaching)
        found = no_entries()
        parts = [(past, 0) for past in self._past]
        parts.append((self._levels[finest], 0))
        parts.extend((level, level.carried) for level in reversed(self._levels[:finest]))
        for level, start in parts:
            found.take(level, bisect_left(level.t, t0, start), bisect_right(level.t, t1, start))
        return found

    def _carry(self) -> None:
        """Pass each complete group of `FACTOR` entries to the level above, and drop the oldest entries.

        Nothing is dropped before all levels have their medians.
        """
        for k, level in enumerate(self._levels):
            ready = (len(level.t) - level.carried) // FACTOR
            if ready and k + 1 < LEVELS:
                if k + 1 == len(self._levels):
                    self._levels.append(_Level())  # the loop continues with it
                above = self._levels[k + 1]
                for a in range(level.carried, level.carried + ready * FACTOR, FACTOR):
                    b = a + FACTOR
                    middle = self._median(k, a)
                    above.append(level.t[b - 1], min(level.low[a:b]), max(level.high[a:b]), middle)
                level.carried += ready * FACTOR
        for level in self._levels:
            level.trim()

    def _median(self, k: int, a: int) -> float:
        """Return a median of the group that begins at entry `a` of level `k`."""
        level, raw = self._levels[k], self._levels[0]
        first, size = level.dropped + a, FACTOR**k
        start = first * size - raw.dropped
        held = raw.low[start : start + FACTOR * size] if start >= 0 else level.middle[a : a + FACTOR]
        ordered = sorted(held)
        upper = first // FACTOR % 2
        return ordered[len(ordered) // 2 - 1 + upper]

    def _is_last(self, t: int, step: int, value: float) -> None:
        self.last, self.last_t, self.last_step = value, t, step

    def _latest(self) -> array[int]:
        """Return the newest stamps held, including seeds if there are too few samples.

        They define the usual spacing.
        """
        raw = self._levels[0].t[-NEIGHBOURS - 1 :]
        if len(raw) > 2 or not self._past:
            return raw
        return self._past[-1].t[-NEIGHBOURS - 1 :] + raw

    def _newest(self) -> int:
        """Return the stamp of the newest entry held, -1 without any."""
        ends = [level.t[-1] for level in (*self._past, self._levels[0]) if level.t]
        return max(ends, default=-1)

    def _first(self) -> int | None:
        """Return the stamp of the oldest entry held, None without any."""
        starts = [level.t[0] for level in (*self._past, *self._levels) if level.t]
        return min(starts, default=None)


class Windowed(Protocol):
    """A series, live or recorded, of which a window can be had."""

    @property
    def last_t(self) -> int: ...

    def window(self, t0: int, t1: int, points: int) -> SeriesWindow: ...


def risen_share(series: Windowed | None, seconds: float) -> float | None:
    """Return by what share of the last `seconds` a time in seconds has risen, in %.

    The time ends at the newest value. None without two values, or where the time was set back meanwhile.
    """
    if series is None or not series.last_t:
        return None
    end = series.last_t
    found = series.window(end - round(seconds * 1e9), end, SHARE_POINTS)
    known = [
        (t, low, high) for t, low, high in zip(found.t, found.low, found.high, strict=True) if low == low
    ]
    if len(known) < 2 or any(b[1] < a[2] for a, b in pairwise(known)):
        return None
    (first_t, _, first), (last_t, _, last) = known[0], known[-1]
    return min(100.0, 100 * (last - first) / ((last_t - first_t) / 1e9))


def bucketed(
    t: Sequence[int], low: Sequence[float], high: Sequence[float], t0: int, t1: int, points: int
) -> SeriesWindow:
    """Return entries stamped `t0` to `t1`, oldest first, in at most `points` equal buckets.

    Gaps are as in `Series.window`.
    """
    found = SeriesWindow([], [], [])
    for stamp, i, end in _cut(t, t0, t1, points):
        found.t.append(stamp)
        if end - i == 1:
            found.low.append(low[i])
            found.high.append(high[i])
        else:
            found.low.append(min(low[i:end], default=NAN))
            found.high.append(max(high[i:end], default=NAN))
    return found


def with_medians(entries: Entries, t0: int, t1: int, points: int) -> SeriesColumns:
    """As `bucketed`, with the median of the medians of the entries in each bucket."""
    found = SeriesColumns([], [], [], [])
    t, low, high, middle = entries
    for stamp, i, end in _cut(t, t0, t1, points):
        found.t.append(stamp)
        if end - i == 1:
            found.low.append(low[i])
            found.high.append(high[i])
            found.middle.append(middle[i])
        else:
            found.low.append(min(low[i:end], default=NAN))
            found.high.append(max(high[i:end], default=NAN))
            found.middle.append(median(middle[i:end]))
    return found


def median(values: Sequence[float]) -> float:
    """Return the median, NaN of nothing."""
    ordered = sorted(values)
    half, odd = divmod(len(ordered), 2)
    if odd:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2 if ordered else NAN


def _cut(t: Sequence[int], t0: int, t1: int, points: int) -> Iterator[tuple[int, int, int]]:
    """Yield a stamp with the first entry of each bucket and the one after its last. A gap has no entries."""
    span, count = t1 - t0 + 1, len(t)
    i, slot, even, last = 0, -1, -1, 0
    while i < count:
        stamp = t[i]
        into = (stamp - t0) * points // span
        if i and into > slot + 1:
            # Most spacings are at most HOLE times the shortest. They are never gaps, whatever is usual around
            # them.
            even = HOLE * min(map(sub, t[1:], t)) if even < 0 else even
            if stamp - last > even and _hole(t, i):
                yield (last + stamp) // 2, i, i
        border = t0 - (into + 1) * span // -points
        end = i + 1
        if end < count and t[end] < border:
            end = bisect_left(t, border, end + 1)
            stamp = t[end - 1]
        yield stamp, i, end
        i, slot, last = end, into, stamp


def _apart(times: Sequence[int]) -> int:
    """Return the usual spacing of the newest of some stamps, 0 for fewer than two."""
    newest = times[-2 * NEIGHBOURS :]
    return usual(newest) if len(newest) > 1 else 0


def _hole(t: Sequence[int], i: int) -> bool:
    """Return whether `t[i - 1]` to `t[i]` is longer than `HOLE` of the spacings before and after it.

    Only its neighbours count, because a run's pace may change permanently within a window.
    """
    before = t[max(0, i - 1 - NEIGHBOURS) : i]
    after = t[i : i + NEIGHBOURS + 1]
    spacings = [usual(side) for side in (before, after) if len(side) > 1]
    return bool(spacings) and t[i] - t[i - 1] > HOLE * max(spacings)
