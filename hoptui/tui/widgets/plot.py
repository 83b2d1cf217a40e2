"""A chart as lines of text: the raster with its axes and marks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hoptui.tui.lines import Line, Span
from hoptui.tui.widgets import raster
from hoptui.tui.widgets.scale import Scale, time_ticks, value_scale

EVEN = 6  # with fewer rows a tick that is one off is seen
AXIS_WIDTH = 7  # six cells of label and the line


class Curve(NamedTuple):
    """A series to draw: stamps (ns) and the least and greatest value at each, in the unit of the axis."""

    label: str
    ink: str
    t: Sequence[int]
    low: Sequence[float]
    high: Sequence[float]


def plot(
    curves: Sequence[Curve],
    t0: int,
    t1: int,
    width: int,
    height: int,
    *,
    marks: Sequence[int] = (),
    bounds: tuple[float, float] | None = None,
    newest: str = "now",
    plain: bool = False,
) -> list[Line]:
    """`height` lines of `width` cells: the raster with its axes.

    `marks` are stamps (ns) drawn as vertical lines; `bounds` fixes the value axis; `newest` labels the right end.
    """
    rows = height - 1
    if rows < 1 or width < AXIS_WIDTH + 8:
        return [()] * height
    scale = _scale(curves, bounds, rows)
    axis = max(AXIS_WIDTH, 1 + max(map(len, scale.labels), default=0))
    across = width - axis
    dots = raster.dots_across(across, plain=plain)
    picture = raster.draw(
        [raster.place(c.t, c.low, c.high, t0, t1, dots) for c in curves],
        across,
        rows,
        scale.bottom,
        scale.top,
        marks=[int((mark - t0) * across / (t1 - t0)) for mark in marks if t0 <= mark < t1],
        plain=plain,
    )
    labels = _label_rows(scale, rows)
    inks = ["", *(curve.ink for curve in curves)]
    drawn = []
    for row, (text, owner) in enumerate(zip(picture.text, picture.owner, strict=True)):
        label = Span(labels.get(row, ""), "dim", axis - 1, right=True)
        drawn.append((label, Span("┤" if row in labels else "│", "faint"), *_runs(text, owner, inks)))
    return [*drawn, _time_axis(axis, across, (t1 - t0) / 1e9, newest)]


def _scale(curves: Sequence[Curve], bounds: tuple[float, float] | None, rows: int) -> Scale:
    most = max(3, min(5, (rows + 1) // 2))
    if bounds is not None:
        return value_scale(bounds, most)
    return value_scale((v for curve in curves for values in (curve.low, curve.high) for v in values), most)


def _label_rows(scale: Scale, rows: int) -> dict[int, str]:
    """Which raster row each tick's label stands in; only the ends where few rows would set them unevenly."""
    found: dict[int, str] = {}
    ticks = list(zip(scale.ticks, scale.labels, strict=True))
    if rows < EVEN and len(ticks) > 2 and (rows - 1) % (len(ticks) - 1):
        ticks = [ticks[0], ticks[-1]]
    for tick, label in ticks:
        found[round((scale.top - tick) / (scale.top - scale.bottom) * (rows - 1))] = label
    return found


def _runs(text: str, owner: bytes, inks: Sequence[str]) -> Line:
    """One raster row as spans of one ink each."""
    spans = []
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or owner[end] != owner[start]:
            ink = "mark" if owner[start] == raster.MARK else inks[owner[start]]
            spans.append(Span(text[start:end], ink))
            start = end
    return tuple(spans)


def _time_axis(axis: int, across: int, span_s: float, newest: str) -> Line:
    """Labels of the time axis, the newest flush right; those without room are left out."""
    cells = [" "] * across
    cells[across - len(newest) :] = newest
    free = across - len(newest) - 2
    for ago, label in time_ticks(span_s, max(2, across // 12)):
        start = round(across * (1 - ago / span_s)) - len(label) // 2
        start = max(start, 0) if start >= -len(label) // 2 - 1 else start
        if start >= 0 and start + len(label) <= free:
            cells[start : start + len(label)] = label
            free = start - 2
    return (Span(" " * axis), Span("".join(cells), "dim"))
