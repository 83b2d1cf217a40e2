"""Figures as text: current values, gauges, sparklines; and why there is no figure yet. Pure."""

from __future__ import annotations

import math
import textwrap
from typing import NamedTuple

from hoptui.domain.columns import is_known
from hoptui.domain.learning_metrics import is_undefined
from hoptui.domain.throughput import level, usable
from hoptui.presentation import numbers, vocabulary
from hoptui.presentation.numbers import UNKNOWN
from hoptui.presentation.readings import value_text
from hoptui.presentation.scales import value_scale
from hoptui.tui.charts.raster import ACROSS, place, rasterize
from hoptui.tui.snapshot import OLD_S, SECOND, View
from hoptui.tui.styled_text import GAP, Line, Span, bar

LEAST_BAR = 4  # cells
POINTS, MOST_ROWS = 16, 512  # limits for a mean
DEFINED_S = 10.0  # a metric that has just become undefined has the value that it had in these last seconds
VALUE = 7  # cells of a figure: the text after it does not move


class Headline(NamedTuple):
    """The metric that stands for throughput; `value` is None while unknown."""

    name: str
    unit: str
    value: float | None


class Gauge(NamedTuple):
    """A labelled bar with its value; `fraction` None draws no bar."""

    label: str
    fraction: float | None
    value: str
    ink: str = "1"


def current(view: View, source: str) -> dict[str, float]:
    """Return the newest values of the host, a GPU or a run's derived rows: none if they are old."""
    age = view.age_s(source)
    old = age is None or (age > OLD_S and not view.node_stale)
    return {} if old else view.store.latest(source)


def recent(view: View, source: str, name: str, within_s: float) -> float | None:
    """The mean of a metric over the last seconds before its newest value; None if unknown. Rates use
    `throughput.level`. A NaN or an infinity that was logged is returned as it is, unless it is undefined.

    It does not end now: the value of a silent or ended run stays that of its last iterations.
    """
    series = view.store.series(source, name)
    if series is None or not is_known(series.last):
        return None
    undefined = is_undefined(name, series.last)
    if not math.isfinite(series.last) and not undefined:
        return series.last
    rate = name.endswith("_per_s")
    # Each iteration of a rate counts: only one in many may wait for data.
    since = series.last_t - int(within_s * SECOND) + 1
    found = series.window(since, series.last_t, MOST_ROWS if rate else POINTS)
    values = [(low + high) / 2 for low, high in zip(found.low, found.high, strict=True) if low == low]
    if not values:
        return None if undefined else series.last
    if rate and len(usable(values)) == len(values):  # an iteration without work has no time per unit
        return level(values)
    return sum(values) / len(values)


def newest(view: View, name: str) -> float | None:
    """The newest value of a metric of the run; None if unknown.

    Where a metric is undefined, such as the return of an iteration in which no episode ended, it is the last
    one that was defined, `DEFINED_S` ago at most.
    """
    value = view.store.latest(view.source).get(name)
    series = view.store.series(view.source, name)
    if value is None or series is None or not is_undefined(name, value):
        return value
    found = series.window(series.last_t - int(DEFINED_S * SECOND) + 1, series.last_t, MOST_ROWS)
    known = [(low + high) / 2 for low, high in zip(found.low, found.high, strict=True) if low == low]
    return known[-1] if known else None


def headline(view: View) -> Headline:
    """The declared headline of the run, else its first rate, else the seconds of an iteration; no unit
    without a run.
    """
    names = view.store.names(view.source)
    declared = view.run.headline if view.run else ""
    name = declared or next((n for n in names if n.endswith("_per_s")), "")
    if name:
        unit = vocabulary.unit_of(name, view.run.units if view.run else {})
        return Headline(name, unit, recent(view, view.source, name, 2.0))
    unit = "s/iteration" if view.run else ""
    return Headline("iteration_s", unit, recent(view, view.source, "iteration_s", 2.0))


def unless_old(view: View, name: str, value: float | None) -> float | None:
    """The value of a metric where there is no room for its age: None if the head that says it is silent."""
    return None if view.of_silent_head(name) else value


def number(value: float | None) -> str:
    """Any metric in `VALUE` cells."""
    found = numbers.logged(value)
    return found if value is None or len(found) <= VALUE else numbers.scientific(value, 2)


def fact(label: str, value: str, width: int = 0) -> Line:
    """`label value`, the label dim; an unknown value is dim too. `width` aligns what follows."""
    return Span(f"{label} ", "dim"), Span(value, "dim" if value == UNKNOWN else "", width)


def gauges(found: list[Gauge], width: int) -> list[Line]:
    """Gauges in two columns if there is room, else in one; columns aligned, bars of equal length."""
    for abreast in (2, 1):
        columns = [found[i::abreast] for i in range(abreast)]
        labels = [max((len(g.label) for g in column), default=0) + 1 for column in columns]
        values = [max((len(g.value) for g in column), default=0) + 1 for column in columns]
        across = (width - 3 * (abreast - 1) - sum(labels) - sum(values)) // abreast
        if across >= LEAST_BAR:
            break
    across = max(LEAST_BAR, across)
    lines = []
    for i in range(0, len(found), abreast):
        spans: list[Span] = []
        for gauge, label, value in zip(found[i : i + abreast], labels, values, strict=False):
            spans += [Span("   ")] if spans else []
            spans += [Span(gauge.label, "dim", label), *bar(gauge.fraction, across, gauge.ink)]
            spans.append(Span(gauge.value, "dim" if gauge.value == UNKNOWN else "", value, right=True))
        lines.append((*spans, GAP))
    return lines


def ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole, None where either is unknown."""
    if part is None or not whole or math.isnan(part) or math.isnan(whole):
        return None
    return part / whole


def of(part: str, whole: str, unit: str) -> str:
    """`58.1/80.0 GiB`, without the whole where it is unknown."""
    if part == UNKNOWN:
        return UNKNOWN
    return f"{part} {unit}" if whole == UNKNOWN else f"{part}/{whole} {unit}"


def spark(view: View, source: str, name: str, width: int, span_s: float) -> str:
    """The last seconds of a metric in `width` cells, drawn between its least and greatest value; blank where
    unknown.
    """
    series = view.store.series(source, name)
    if series is None or width < 1:
        return " " * width
    t0, t1, dots = _up_to_now(view, width, span_s)
    found = series.window(t0, t1 - 1, dots)
    scale = value_scale((*found.low, *found.high), 3)
    trace = place(found.t, found.low, found.high, t0, t1, dots)
    return rasterize([trace], width, 1, scale.bottom, scale.top).text[0]


def spark_of_share(view: View, source: str, name: str, width: int, span_s: float) -> str:
    """The last seconds of a share in per cent, filled from 0 up to it in a cell's height; blank where
    unknown.
    """
    series = view.store.series(source, name)
    if series is None or width < 1:
        return " " * width
    t0, t1, dots = _up_to_now(view, width, span_s)
    t, low, _, middle = series.columns(t0, t1 - 1, dots)
    bottom = [0.0 if value == value else value for value in low]
    return rasterize([place(t, bottom, middle, t0, t1, dots)], width, 1, 0.0, 100.0).text[0]


def _up_to_now(view: View, width: int, span_s: float) -> tuple[int, int, int]:
    """The ends of the last seconds, on edges of the dots of so many cells, and the number of these."""
    dots = ACROSS * width
    step = max(1, int(span_s * SECOND) // dots)
    t1 = (view.now // step + 1) * step
    return t1 - dots * step, t1, dots


def energy(view: View) -> str:
    """What a unit of the headline costs: `1.19 mJ/env step`; empty where it is not known."""
    found = current(view, f"derived/{view.run.run}") if view.run else {}
    name = headline(view)
    if "energy_per_unit_j" in found and name.unit.endswith("/s"):
        return (
            f"{value_text('J', found['energy_per_unit_j'])}/{name.unit.removesuffix('/s').removesuffix('s')}"
        )
    each = found.get("energy_per_iteration_j")
    return "" if each is None else f"{value_text('J', each)}/iteration"


def missing_reason(view: View) -> str:
    """Why there is no data yet; empty once the daemon has described the node, and the run of the view if it
    has one.
    """
    why = numbers.clean(view.link.reason, 300)
    if view.node is not None:
        return ""
    match view.link.state:
        case "failed":
            return why or "the daemon cannot be reached"
        case "lost":
            to = view.link.node or "the daemon"
            return f"the link to {to} is lost ({why}): reconnecting" if why else f"reconnecting to {to}"
        case _:
            if view.link.node:
                return why or f"connecting to {view.link.node}"
            return f"connecting to the daemon: {why}" if why else "connecting to the daemon"


def missing_lines(view: View, width: int, otherwise: str = "") -> list[Line]:
    """The reason in as many lines as it needs, else `otherwise`; each screen shows it in full once."""
    ink = "warn" if view.link.state == "failed" else "dim"
    return [(Span(line, ink),) for line in textwrap.wrap(missing_reason(view) or otherwise, max(20, width))]


def missing_note(view: View) -> str:
    """Return the same for a place beside the reason."""
    if view.node is None and view.link.state == "failed":
        return "unknown: the daemon cannot be reached"
    return missing_reason(view)


def missing_line(view: View, otherwise: str) -> Line:
    """Return why there is no data yet, else `otherwise`."""
    return (Span(missing_note(view) or otherwise, "dim"),)
