"""Where iterations went over time: the share of each phase as a layer, stacked from below. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from hoptui.model.series import SeriesWindow
from hoptui.presentation import numbers
from hoptui.tui.charts import raster
from hoptui.tui.charts.line_chart import latest
from hoptui.tui.charts.plot import AXIS_WIDTH, Curve, Mark, Paper, plot
from hoptui.tui.charts.ticks import SPANS
from hoptui.tui.components import phases
from hoptui.tui.components.phases import OTHER, PREFIX
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.styled_text import Line

LEAST_ROWS = 4  # with that of the x axis
MOST_POINTS = 2048  # of the window: what memory holds in full
EACH = 2  # points an iteration: so that no two fall together
THICK = 3  # dots of a layer that can spare one, to be told from the next without colours
PARTS = 24  # of the width: each share is taken over one of them
SLACK = 1.2  # an iteration is followed by what is between two of them
REST = (OTHER, "dim")
NAN = float("nan")

Entry = tuple[int, float, float]
"""A stamp, the least and the greatest value."""


class Layers(NamedTuple):
    """A chart, and over how many seconds each share in it is taken."""

    lines: list[Line]
    over_s: float = 0.0


def layers(
    view: View,
    width: int,
    height: int,
    span_s: float,
    *,
    marks: Sequence[Mark] = (),
    newest: str = "now",
    end: int | None = None,
) -> Layers:
    """The shares over the last `span_s` seconds before `end` (default: now); nothing where no phase is known or there is no room.

    A shorter stretch where iterations are so fast that they could not be told apart: what is known of several at once is the
    least and the most, and of a phase that is in some of them these say nothing about its share.
    """
    dots, pace = raster.ACROSS * (width - AXIS_WIDTH), phases.iteration_s(view)
    if height < LEAST_ROWS or dots < raster.ACROSS or pace is None:
        return Layers([])
    longest_s = MOST_POINTS / EACH * pace
    span_s = min(span_s, max((s for s in SPANS if s <= longest_s), default=longest_s))
    points = min(MOST_POINTS, max(dots, round(EACH * span_s / pace)))
    paper = latest(view, span_s, dots, marks=marks, bounds=(0.0, 100.0), newest=newest, end=end)
    found = curves(view, paper, dots, points, (height - 1) * raster.DOWN)
    over_s = (paper.x1 - paper.x0) / SECOND / dots * _together(dots)
    return Layers(plot(found, paper, width, height), over_s) if found else Layers([])


def legend(view: View) -> list[tuple[str, str]]:
    """The layers from below as (label, ink)."""
    return [*((numbers.clean(path, 24), ink) for path, ink in phases.outermost(view).items()), REST]


def curves(view: View, paper: Paper, dots: int, points: int, deep: int) -> list[Curve]:
    """A curve a phase, and one for what is in none: in per cent, where its layer begins and ends in each of `dots` columns.

    They are asked for in `points` buckets and drawn `deep` dots high. A column holds the iterations that ended in it and in some
    before, so that a phase which is not in every iteration does not come and go; the cell of a mark is left free, which would not be
    seen otherwise.
    """
    inks = phases.outermost(view)
    whole = view.store.series(view.source, "iteration_s")
    if whole is None or not inks:
        return []
    for name in ("iteration_s", *(PREFIX + path for path in inks)):
        view.store.look_closer(view.source, name, paper.x0, paper.x1 - 1, points)
    known = list(zip(*whole.window(paper.x0, paper.x1 - 1, points), strict=True))
    totals = _summed(known, paper, dots)
    parts = []
    for path in inks:
        series = view.store.series(view.source, PREFIX + path)
        spent = (
            series.window(paper.x0, paper.x1 - 1, points) if series is not None else SeriesWindow([], [], [])
        )
        parts.append(_summed(list(zip(*spent, strict=True)), paper, dots))
    places: list[int] = []
    ranges: list[tuple[list[float], list[float]]] = [([], []) for _ in (*inks, OTHER)]
    marked = {_column(mark.x, paper, dots) // raster.ACROSS for mark in paper.marks}
    told = _placed(known, paper, dots) + [(mark.x, -1) for mark in paper.marks]
    for t, column in sorted(told):
        shares = [part[column] for part in parts] if column >= 0 else [0.0] * len(parts)
        total = max(totals[column], sum(shares)) if column >= 0 else 0.0
        edges = [*accumulate(shares, initial=0.0), total]
        places.append(t)
        for (lows, highs), (low, high) in zip(ranges, pairwise(edges), strict=True):
            free = not total > 0 or _column(t, paper, dots) // raster.ACROSS in marked
            bottom, top = (NAN, NAN) if free else _layer(low / total, high / total, deep)
            lows.append(bottom)
            highs.append(top)
    named = zip((*inks.items(), REST), ranges, strict=True)
    return [Curve(path, ink, places, lows, highs) for (path, ink), (lows, highs) in named]


def _summed(entries: Sequence[Entry], paper: Paper, dots: int) -> list[float]:
    """The sum up to each dot column from the first that counts for it."""
    sums = [0.0] * dots
    for t, low, high in entries:
        if low == low:
            sums[_column(t, paper, dots)] += (low + high) / 2
    upto = [0.0, *accumulate(sums)]
    return [upto[c + 1] - upto[max(0, c + 1 - _together(dots))] for c in range(dots)]


def _together(dots: int) -> int:
    return max(1, dots // PARTS)


def _placed(entries: Sequence[Entry], paper: Paper, dots: int) -> list[tuple[int, int]]:
    """Where on the x axis the shares of which column stand, -1 for those of none, a gap.

    They stand where its last iteration ended, and where it began, if that was in an earlier column: between the ends of two iterations
    there is no gap if the second took that long.
    """
    found: list[tuple[int, int]] = []
    ended, gap = 0, None
    for t, low, high in entries:
        if low != low:
            gap = t
            continue
        took, column = round((low + high) / 2 * SECOND), _column(t, paper, dots)
        if gap is not None and took * SLACK < t - ended:
            found.append((gap, -1))
        last = _column(found[-1][0], paper, dots) if found else -1
        began = max(_column(t - took, paper, dots), last) + 1
        if began < column:
            found.append((paper.x0 + -(-began * (paper.x1 - paper.x0) // dots), column))
        if found and found[-1][1] == last == column:
            found.pop()
        found.append((t, column))
        ended, gap = t, None
    return found


def _column(t: int, paper: Paper, dots: int) -> int:
    return (t - paper.x0) * dots // (paper.x1 - paper.x0)


def _layer(low: float, high: float, deep: int) -> tuple[float, float]:
    """The lowest and the highest dot of a layer between two shares, in per cent of the height; NaN where it is too thin for one."""
    first, last = round(low * deep), round(high * deep) - 1
    if last - first >= THICK and last < deep - 1:
        last -= 1
    if last < first:
        return NAN, NAN
    return 100.0 * first / (deep - 1), 100.0 * last / (deep - 1)
