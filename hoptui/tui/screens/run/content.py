"""What only the run screen shows: hardware, phases over time, and the summary for small terminals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from hoptui.model.series import SeriesWindow
from hoptui.presentation import numbers, vocabulary
from hoptui.presentation.metric_names import label_of
from hoptui.presentation.scales import (
    log_scale,
    needs_log,
    powers_of_ten,
    typical_log_range,
    typical_range,
    value_scale,
)
from hoptui.presentation.time_ticks import SPANS
from hoptui.tui.charts.line_chart import OVERLAID, ChartSeries, latest, whole_dots
from hoptui.tui.charts.plot import AXIS_WIDTH, LOG, Curve, Mark, Paper, plot
from hoptui.tui.charts.raster import ACROSS, DOWN, place, rasterize
from hoptui.tui.components import figures, gpus, host, phases, runs, targets
from hoptui.tui.components.events import last_change, unmeasured
from hoptui.tui.components.figures import VALUE, energy, fact, headline, newest, number, unless_old
from hoptui.tui.components.header import banner, rate, state
from hoptui.tui.components.phases import OTHER, PREFIX
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.styled_text import Line, Span, fitted, pack

FACT_LINES = 2


class HardwareLines(NamedTuple):
    """A title and the lines under it."""

    title: str
    lines: list[Line]


def hardware(view: View, width: int) -> HardwareLines:
    """The readings of this moment."""
    shown = view.gpus()
    if not shown:
        none = " · no GPU of its own" if view.node and view.node.gpus else " · no GPU" if view.node else ""
        lines = [*targets.line(view, width), *gpus.absent(view, width), *host.lines(view, width)]
        return HardwareLines(f"Host{none}", lines)
    if len(shown) == 1:
        lines = [*targets.line(view, width), *gpus.detail(view, shown[0], width, FACT_LINES)]
        return HardwareLines(gpus.title(shown[0]), lines)
    chunks = [fact(gauge.label, gauge.value) for gauge in gpus.mfu(view)] + gpus.together(view)
    rows = gpus.table_rows(view, shown, width)
    head = (*targets.line(view, width), gpus.table_head(view, shown, width))
    return HardwareLines(gpus.heading(shown, width), [*head, *rows, *pack(chunks, width)[:1]])


def hardware_curves(view: View, rows: int) -> list[ChartSeries]:
    """What its chart of so many rows shows, in per cent; of more GPUs than there are inks what they do
    together. Without a row for each curve, there are no more of them than one raster holds.
    """
    shown = view.gpus()
    if len(shown) > gpus.CHARTED:
        return gpus.many_curves(view, shown)
    if shown:
        work = gpus.work_curves(view, shown)
        every = [*work, *gpus.power_curves(shown, share=True)] if len(shown) == 1 else work
        if len(every) <= max(rows, OVERLAID):
            return every
        return work if len(shown) == 1 else gpus.many_curves(view, shown) or work
    run, cpus = view.run.run if view.run else "", max(1, view.node.cpus if view.node else 1)
    return [
        ChartSeries("host", "cpu_percent", "host CPU %", "1"),
        ChartSeries(f"process/{run}", "cpu_percent", "run CPU %", "2", 1 / cpus),
    ]


LEAST_ROWS = 4  # with that of the x axis
MOST_POINTS = 2048  # of the window: what memory holds in full
EACH = 2  # points an iteration: so that no two fall together
THICK = 3  # dots of a layer that can spare one, to be visible without colours
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


def phase_layers(
    view: View,
    width: int,
    height: int,
    span_s: float,
    *,
    marks: Sequence[Mark] = (),
    newest: str = "now",
    end: int | None = None,
) -> Layers:
    """The shares over the last `span_s` seconds before `end` (default: now); empty if no phase is known or
    room is short.

    The time range is shorter if iterations are too fast to distinguish. Several iterations together have only
    a least and a greatest value. These do not give the share of a phase that is in some of them.
    """
    dots, pace = ACROSS * (width - AXIS_WIDTH), phases.iteration_s(view)
    if height < LEAST_ROWS or dots < ACROSS or pace is None:
        return Layers([])
    longest_s = MOST_POINTS / EACH * pace
    span_s = min(span_s, max((s for s in SPANS if s <= longest_s), default=longest_s))
    points = min(MOST_POINTS, max(dots, round(EACH * span_s / pace)))
    paper = latest(view, span_s, dots, marks=marks, bounds=(0.0, 100.0), newest=newest, end=end)
    found = phase_curves(view, paper, dots, points, (height - 1) * DOWN)
    over_s = (paper.x1 - paper.x0) / SECOND / dots * _together(dots)
    return Layers(plot(found, paper, width, height), over_s) if found else Layers([])


def phase_legend(view: View) -> list[tuple[str, str]]:
    """The layers from below as (label, ink)."""
    return [*((numbers.clean(path, 24), ink) for path, ink in phases.outermost(view).items()), REST]


def phase_curves(view: View, paper: Paper, dots: int, points: int, deep: int) -> list[Curve]:
    """One curve per phase, and one for the rest: the bounds of its layer in per cent, in each of `dots`
    columns.

    The data is read in `points` buckets and drawn `deep` dots high. A column holds the iterations that ended
    in it and some before, so that a phase which is not in every iteration does not flicker. The cell of a
    mark stays free, because the mark would be invisible otherwise.
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
    marked = {_column(mark.x, paper, dots) // ACROSS for mark in paper.marks}
    told = _placed(known, paper, dots) + [(mark.x, -1) for mark in paper.marks]
    for t, column in sorted(told):
        shares = [part[column] for part in parts] if column >= 0 else [0.0] * len(parts)
        total = max(totals[column], sum(shares)) if column >= 0 else 0.0
        edges = [*accumulate(shares, initial=0.0), total]
        places.append(t)
        for (lows, highs), (low, high) in zip(ranges, pairwise(edges), strict=True):
            free = not total > 0 or _column(t, paper, dots) // ACROSS in marked
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
    """The column whose shares belong to each place on the x axis; -1 for a gap.

    They belong to the end of its last iteration, and to its start if that is in an earlier column. So there
    is no gap between the ends of two iterations if the second took that long.
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
    """The lowest and highest dot of a layer between two shares, in per cent of the height; NaN if it is too
    thin.
    """
    first, last = round(low * deep), round(high * deep) - 1
    if last - first >= THICK and last < deep - 1:
        last -= 1
    if last < first:
        return NAN, NAN
    return 100.0 * first / (deep - 1), 100.0 * last / (deep - 1)


MOST_GPUS = 4


def compact_summary(
    view: View, metric: str, width: int, span_s: float, *, end: int | None = None, plain: bool
) -> list[Line]:
    """Throughput and return with charts two rows high, the phases in one bar, one line per GPU and one for
    the host.

    The charts show `span_s` seconds up to the stamp `end` (None: now).
    """
    if view.run is None:
        why = figures.missing_lines(view, width, "looking for the run")
        return [*why, *([host.short(view, width)] if view.node else [])]
    head = headline(view)
    left_width = max(24, min(46, width - 20))
    across = width - left_width - 2
    unit = numbers.clean(view.run.units.get(metric, ""), 12)
    others = [
        fact(label_of(n), number(unless_old(view, n, newest(view, n))), VALUE)
        for n in runs.learning_metrics(view)
        if n != metric
    ]
    speed = unless_old(view, head.name, head.value)
    learned = unless_old(view, metric, newest(view, metric))
    upper = _small_chart(view, head.name, "1", across, span_s, end or view.now)
    lower = _small_chart(view, metric, "3", across, span_s, end or view.now)
    above, below = (f" · {LOG}" if chart.log else "" for chart in (upper, lower))
    beside: list[Line] = [
        (Span(numbers.logged(speed), "strong"), Span(f" {head.unit}{above}", "dim")),
        last_change(view, left_width) or unmeasured(view, "no change"),
        (Span(number(learned), "strong"), Span(f" {unit or label_of(metric)}{below}", "dim")),
        next(iter(pack(others, left_width, "  ")), ()),
    ]
    charts = (upper.upper, upper.lower, lower.upper, lower.lower)
    found: list[Line] = [
        (*fitted(left, left_width, plain=plain), Span("  "), chart)
        for left, chart in zip(beside, charts, strict=True)
    ]
    found += phases.short(view, width)
    own = view.gpus()
    many = len(own) > MOST_GPUS
    shown = own[: MOST_GPUS - 2] if many else own
    found += [gpus.short_of_many(view, own, width)] if many else []
    found += [gpus.short(view, gpu, width) for gpu in shown] or [(Span(gpus.none(view), "dim"),)]
    found += [(Span(_more_gpus(view, len(own) - len(shown)), "dim"),)] if many else []
    return [*found, *targets.line(view, width), *_cost(view, width), host.short(view, width)]


def key_numbers(view: View, metric: str, name: str, width: int) -> list[Line]:
    """The numbers that matter most, one a line; no room for more."""
    head = headline(view)
    run, vital = view.run, view.vital
    found: list[Line] = [
        (Span(numbers.clean(run.name if run else name, 30), "strong"), Span("  "), *state(view), *rate(view))
    ]
    shout = banner(view)
    if shout is not None:
        found.append((Span(shout.said(width), shout.ink),))
    if run is not None and vital is not None:
        of = f" / {numbers.grouped(run.total)}" if run.total else ""
        found.append(_figure("iteration", f"{numbers.grouped(vocabulary.iteration(vital))}{of}", width))
    speed = unless_old(view, head.name, head.value)
    found.append(_figure(head.unit or "speed", numbers.logged(speed), width))
    if metric:
        learned = unless_old(view, metric, newest(view, metric))
        found.append(_figure(label_of(metric), number(learned), width))
    if vital is not None:
        found.append(runs.diagnosis_line(view, phases.measured(view), width))
    found += targets.missed(view)
    own = view.gpus()
    if len(own) > MOST_GPUS:
        return [*found, gpus.short_of_many(view, own, width)]
    return [*found, *(gpus.short(view, gpu, width) for gpu in own)]


def _more_gpus(view: View, count: int) -> str:
    return ": ".join(
        filter(None, (f"and {count} more GPUs", view.hint("view.alone_hardware", "shows them all")))
    )


def _cost(view: View, width: int) -> list[Line]:
    """MFU, energy, memory headroom and idle power in a line, where any is known."""
    chunks = [fact(gauge.label, gauge.value) for gauge in gpus.mfu(view)]
    chunks += [fact("energy", cost)] if (cost := energy(view)) else []
    return pack([*chunks, *gpus.together(view)], width)[:1]


def chosen_metric(view: View, wanted: str) -> str:
    """The metric the person chose, or the most telling one the run has."""
    names = runs.learning_metrics(view)
    return wanted if wanted in names else next(iter(names), "")


FIGURE = 16  # cells of the label of a figure


def _figure(label: str, value: str, width: int) -> Line:
    """The value after its label, or before it where both have no room: the label is cut then."""
    if FIGURE + len(value) > width:
        return Span(value, "strong"), Span(f" {label}", "dim")
    return Span(label, "dim", FIGURE), Span(value, "strong")


class SmallChart(NamedTuple):
    """Two rows of a chart without axes, and whether its scale is logarithmic."""

    upper: Span = Span("")
    lower: Span = Span("")
    log: bool = False


def _small_chart(view: View, name: str, ink: str, width: int, span_s: float, end: int) -> SmallChart:
    """The scale follows the typical values, as that of a large chart."""
    series = view.store.series(view.source, name)
    if series is None or width < 4:
        return SmallChart()
    dots = ACROSS * width
    t0, t1 = whole_dots(int(span_s * SECOND), end, dots)
    t, low, high, middle = series.columns(t0, t1 - 1, dots)
    scale = log_scale(typical_log_range(low, high, middle), 3) if needs_log(middle) else None
    if scale is None:
        scale = value_scale(typical_range(low, high, middle), 3)
    if scale.log:
        low, high = powers_of_ten(low), powers_of_ten(high)
    upper, lower = rasterize([place(t, low, high, t0, t1, dots)], width, 2, scale.bottom, scale.top).text
    return SmallChart(Span(upper, ink), Span(lower, ink), scale.log)
