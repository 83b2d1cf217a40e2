"""Summaries of rows: the least, greatest and mean value of each group.

A week can be drawn from a few thousand groups. Level 1 of the pyramid has a group for every 32 rows, level 2
one for every 32 groups of level 1, and so on. A group ends early before a gap that is longer than a group
usually lasts. So gaps stay gaps at every level.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from operator import mul, sub
from typing import NamedTuple

from hoptui.domain.columns import Columns
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
