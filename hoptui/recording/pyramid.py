"""Summaries of rows in groups, and resampling to a few buckets of time, so that no spike is lost.

Both keep the least, greatest and mean value.

A week can be drawn from a few thousand groups. Level 1 of the pyramid has a group for every 32 rows, level 2
one for every 32 groups of level 1, and so on. A group ends early before a gap that is longer than a group
usually lasts. So gaps stay gaps at every level.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from operator import mul, sub
from typing import NamedTuple

from hoptui.domain.columns import Columns
from hoptui.protocol.messages import Buckets
from hoptui.recording.compression import digits

FACTOR = 32


class GroupStats(NamedTuple):
    """One name in each group: extremes, mean and number of known values. NaN if there are none."""

    low: array[float]
    high: array[float]
    mean: array[float]
    known: array[int]


class Summary(NamedTuple):
    """Groups of rows, oldest first.

    `t` and `first` are stamps of their last and first rows, `step` is the last row's step, and `rows` the
    number of rows. `figures` has an entry for each of `names`.
    """

    names: tuple[str, ...]
    t: array[int]
    first: array[int]
    step: array[int]
    rows: array[int]
    figures: tuple[GroupStats, ...]


def summarise(columns: Columns) -> Summary:
    """Summarise groups of FACTOR rows."""
    times, steps = columns.times(), columns.steps()
    edges = _edges(times, times, [1] * len(times))
    return Summary(
        columns.names,
        array("q", (times[end - 1] for _, end in edges)),
        array("q", (times[start] for start, _ in edges)),
        array("q", (steps[end - 1] for _, end in edges)),
        array("q", (end - start for start, end in edges)),
        tuple(_of_values(array("d", raw), edges) for raw in columns.values),
    )


def coarsen(parts: Sequence[Summary]) -> Summary:
    """Summarise groups of FACTOR groups. A name that a part lacks is unknown there."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    joined = Summary(
        names,
        array("q", chain.from_iterable(part.t for part in parts)),
        array("q", chain.from_iterable(part.first for part in parts)),
        array("q", chain.from_iterable(part.step for part in parts)),
        array("q", chain.from_iterable(part.rows for part in parts)),
        tuple(_joined(parts, name) for name in names),
    )
    edges = _edges(joined.first, joined.t, joined.rows)
    return Summary(
        names,
        array("q", (joined.t[end - 1] for _, end in edges)),
        array("q", (joined.first[start] for start, _ in edges)),
        array("q", (joined.step[end - 1] for _, end in edges)),
        array("q", (sum(joined.rows[start:end]) for start, end in edges)),
        tuple(_of_figures(figures, edges) for figures in joined.figures),
    )


def totals(figures: GroupStats, start: int, end: int) -> tuple[float, float, float, int] | None:
    """Return the least, greatest, sum and number of known values in groups `start` to `end`.

    None if there are no known values.
    """
    known = figures.known[start:end]
    count = sum(known)
    if not count:
        return None
    low, high, mean = figures.low[start:end], figures.high[start:end], figures.mean[start:end]
    if 0 in known:
        some = [i for i, n in enumerate(known) if n]
        low, high, mean = (array("d", [column[i] for i in some]) for column in (low, high, mean))
        known = array("q", [n for n in known if n])
    return min(low), max(high), sum(map(mul, mean, known)), count


def _edges(first: Sequence[int], last: Sequence[int], rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return where groups begin and end.

    A group has FACTOR members, or fewer before a gap longer than a group usually lasts.
    """
    spans = [(b - a) / n for a, b, n in zip(first, first[1:], rows, strict=False)]
    usual = sorted(spans)[len(spans) // 2] if spans else 0.0
    longest = usual * FACTOR * (sorted(rows)[len(rows) // 2] if rows else 1)
    holes = [i + 1 for i, hole in enumerate(map(sub, first[1:], last)) if hole > longest]
    return [
        (start, min(start + FACTOR, end))
        for begin, end in pairwise([0, *holes, len(first)])
        for start in range(begin, end, FACTOR)
    ]


def _of_values(values: array[float], edges: list[tuple[int, int]]) -> GroupStats:
    found = GroupStats(array("d"), array("d"), array("d"), array("q"))
    for start, end in edges:
        known: Sequence[float] = values[start:end]
        total = sum(known)
        if total != total:
            known = [v for v in known if v == v]
            total = sum(known)
        _add(found, (min(known), max(known), total, len(known)) if known else None)
    return _shortened(found)


def _of_figures(figures: GroupStats, edges: list[tuple[int, int]]) -> GroupStats:
    found = GroupStats(array("d"), array("d"), array("d"), array("q"))
    for start, end in edges:
        _add(found, totals(figures, start, end))
    return _shortened(found)


def _add(found: GroupStats, group: tuple[float, float, float, int] | None) -> None:
    low, high, total, count = group or (math.nan, math.nan, math.nan, 0)
    found.low.append(low)
    found.high.append(high)
    found.mean.append(total / count if count else math.nan)
    found.known.append(count)


def _shortened(figures: GroupStats) -> GroupStats:
    """Shorten means to two digits more than the values have, or to float32.

    Further digits are noise that costs disk space.
    """
    most = digits(figures.low)
    if most is not None and (high := digits(figures.high)) is not None:
        short = array("d", [round(v, max(most, high) + 2) for v in figures.mean])
    else:
        short = array("d", array("f", figures.mean))
    exact = zip(short, figures.low, figures.high, figures.mean, strict=True)
    # A mean beyond float32's range stays exact, and a mean is never outside its extremes.
    return figures._replace(
        mean=array("d", [min(max(s, a), b) if math.isfinite(s) else m for s, a, b, m in exact])
    )


def _joined(parts: Sequence[Summary], name: str) -> GroupStats:
    def of(part: Summary) -> Iterator[GroupStats]:
        if name in part.names:
            yield part.figures[part.names.index(name)]
        else:
            blank = array("d", [math.nan]) * len(part.t)
            yield GroupStats(blank, blank, blank, array("q", [0]) * len(part.t))

    found = [figures for part in parts for figures in of(part)]
    return GroupStats(
        array("d", chain.from_iterable(figures.low for figures in found)),
        array("d", chain.from_iterable(figures.high for figures in found)),
        array("d", chain.from_iterable(figures.mean for figures in found)),
        array("q", chain.from_iterable(figures.known for figures in found)),
    )


GAP_SPACINGS = 3


def buckets(
    parts: Iterable[Columns | Summary],
    source: str,
    names: Sequence[str],
    t0: int,
    t1: int,
    points: int,
    id: int = 0,  # noqa: A002 - the message's own word
) -> Buckets:
    """Return the rows of `parts` from `t0` to `t1`, both included, in at most `points` buckets.

    0 stands for the first and the last row. `parts` belong to one source, oldest first. Rows that are not
    newer than those before them are skipped. Parts are streamed unless `t0` or `t1` is 0. Without `names`,
    the answer has all names that occur, otherwise exactly those.

    Buckets cover equal times. An empty bucket is left out, unless it lies in a gap of more than three typical
    (median) row spacings. Each such gap becomes one bucket of NaN, stamped when its first row was due. The
    mean of a bucket is that of its known values, NaN if there are none. A group of rows counts as a whole in
    the bucket of its last row, if any of its rows is in the range.
    """
    if not (t0 and t1):
        parts = [part for part in parts if _stamps(part)[1]]
        t0 = t0 or (_stamps(parts[0])[0][0] if parts else 0)
        t1 = t1 or (_stamps(parts[-1])[1][-1] if parts else 0)
    folded = _Folded(names, open_ended=not names)
    points = max(1, points)
    span = t1 - t0 + 1
    for part in parts:
        first, last = _stamps(part)
        start = bisect_left(last, max(t0, folded.last + 1))
        stop = bisect_right(first, t1)
        if start >= stop:
            continue
        steps = part.step if isinstance(part, Summary) else part.steps()
        fold = folded.groups(part) if isinstance(part, Summary) else folded.values(part)
        folded.spaced(part, start, stop)
        while start < stop:
            number = (min(last[start], t1) - t0) * points // span
            edge = t0 - (-(number + 1) * span // points)  # the first stamp of the next bucket
            end = stop if edge > t1 else bisect_left(last, edge, start, stop)
            folded.add(number, first[start], min(last[end - 1], t1), steps[end - 1])
            fold(start, end)
            start = end
    folded.mark_gaps()
    return folded.answer(source, id)


def _stamps(part: Columns | Summary) -> tuple[array[int], array[int]]:
    """Return the stamps of the first and of the last row of each group. A row is a group of one."""
    if isinstance(part, Summary):
        return part.first, part.t
    times = part.times()
    return times, times


class _Extremes:
    """One name's buckets. The last one is still open."""

    def __init__(self, empty: int) -> None:
        self.low = array("d", [math.nan]) * empty
        self.high = array("d", [math.nan]) * empty
        self.total = array("d", [0.0]) * empty
        self.count = array("q", [0]) * empty

    def append(self) -> None:
        self.insert(len(self.low))

    def insert(self, i: int) -> None:
        self.low.insert(i, math.nan)
        self.high.insert(i, math.nan)
        self.total.insert(i, 0.0)
        self.count.insert(i, 0)

    def fold(self, values: Sequence[float]) -> None:
        total = sum(values)
        if total != total:  # there is a NaN: filter the values
            values = [v for v in values if v == v]
            if not values:
                return
            total = sum(values)
        self.take(min(values), max(values), total, len(values))

    def take(self, low: float, high: float, total: float, count: int) -> None:
        if self.count[-1]:
            low, high = min(low, self.low[-1]), max(high, self.high[-1])
        self.low[-1], self.high[-1] = low, high
        self.total[-1] += total
        self.count[-1] += count

    def mean(self) -> array[float]:
        # Rounding can move a mean just outside its extremes.
        return array(
            "d",
            [
                min(max(total / count, low), high) if count else math.nan
                for total, count, low, high in zip(self.total, self.count, self.low, self.high, strict=True)
            ],
        )


class _Folded:
    """The buckets so far. `last` is the stamp of the newest row."""

    def __init__(self, names: Iterable[str], *, open_ended: bool) -> None:
        self.last = -(1 << 63)
        self._open_ended = open_ended
        self._series = {name: _Extremes(0) for name in names}
        self._number = -1
        self._t: array[int] = array("q")
        self._step: array[int] = array("q")
        self._holes: list[tuple[int, int, int]] = []  # index of the next bucket, stamps on both sides
        self._spacings: list[tuple[float, int]] = []  # spacing of rows within groups, and its count
        self._times: array[int] = array("q")  # of rows that are not in groups

    def spaced(self, part: Columns | Summary, start: int, stop: int) -> None:
        """Record the row spacing of rows or groups `start` to `stop` of a part."""
        first, last = _stamps(part)
        if isinstance(part, Summary):
            self._spacings += [
                ((last[i] - first[i]) / (part.rows[i] - 1), part.rows[i] - 1)
                for i in range(start, stop)
                if part.rows[i] > 1
            ]
        else:
            self._times.extend(first[start:stop])
        self.last = last[stop - 1]

    def add(self, number: int, first: int, last: int, step: int) -> None:
        """Add rows stamped `first` to `last` to the bucket `number`, which is the newest or a later one."""
        if number == self._number:
            self._t[-1], self._step[-1] = last, step
            return
        if self._t and number > self._number + 1:
            self._holes.append((len(self._t), self._t[-1], first))
        self._number = number
        self._t.append(last)
        self._step.append(step)
        for series in self._series.values():
            series.append()

    def values(self, part: Columns) -> Callable[[int, int], None]:
        """Return a function that folds rows of `part` into the last bucket."""
        columns = [(name, array("d", raw)) for name, raw in zip(part.names, part.values, strict=True)]

        def fold(start: int, end: int) -> None:
            for name, column in columns:
                if (series := self._of(name)) is not None:
                    series.fold(column[start:end])

        return fold

    def groups(self, part: Summary) -> Callable[[int, int], None]:
        """Return a function that folds groups of `part` into the last bucket."""

        def fold(start: int, end: int) -> None:
            for name, figures in zip(part.names, part.figures, strict=True):
                if (series := self._of(name)) is not None and (found := totals(figures, start, end)):
                    series.take(*found)

        return fold

    def _of(self, name: str) -> _Extremes | None:
        series = self._series.get(name)
        if series is None and self._open_ended:
            series = self._series[name] = _Extremes(len(self._t))
        return series

    def mark_gaps(self) -> None:
        """Insert a bucket of NaN into each gap that leaves a bucket empty."""
        if not self._holes:
            return
        typical = max(1, int(self._typical()))
        for i, before, after in reversed(self._holes):
            if after - before > GAP_SPACINGS * typical:
                self._t.insert(i, before + typical)
                self._step.insert(i, -1)
                for series in self._series.values():
                    series.insert(i)

    def _typical(self) -> float:
        """Return the median spacing of rows, the upper one of two."""
        spacings = list(self._spacings)
        spacings += [(float(s), 1) for s in map(sub, islice(self._times, 1, None), self._times)]
        left = sum(count for _, count in spacings) // 2
        for spacing, count in sorted(spacings):
            left -= count
            if left < 0:
                return spacing
        return 0.0

    def answer(self, source: str, query: int) -> Buckets:
        series = self._series.values()
        return Buckets(
            id=query,
            source=source,
            names=tuple(self._series),
            t=self._t.tobytes(),
            step=self._step.tobytes(),
            low=tuple(s.low.tobytes() for s in series),
            high=tuple(s.high.tobytes() for s in series),
            mean=tuple(s.mean().tobytes() for s in series),
        )
