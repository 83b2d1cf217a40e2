"""A chart as SVG within an HTML page: the mean over time, gaps left open."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from hoptui.cli.page.document import Chart
from hoptui.tui.widgets.scale import Scale, elapsed_ticks, value_scale
from hoptui.viewer import format as text

WIDTH, HEIGHT = 960, 330
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 52, 46
TICKS_X, TICKS_Y = 8, 5
ROOM = 20  # between the numbers of two marks


def svg(chart: Chart) -> str:
    """The picture; it takes the colours of the page."""
    scale = value_scale([0.0, *chart.curve.mean], TICKS_Y)
    alt = f"{chart.title} over {text.duration((chart.span[1] - chart.span[0]) / 1e9)}"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_escape(alt)}">',
        f'<text class="title" x="0" y="14">{_escape(chart.title)}</text>',
        f'<text x="0" y="30">{_escape(chart.unit)}</text>',
        *_axes(chart, scale),
        *_stretches(chart),
        *_curve(chart, scale),
        *_marks(chart),
        *_notes(chart),
        "</svg>",
    ]
    return "\n".join(parts)


def _axes(chart: Chart, scale: Scale) -> Iterator[str]:
    for tick, label in zip(scale.ticks, scale.labels, strict=True):
        y = _y(tick, scale)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_escape(label)}</text>'
    t0, t1 = chart.span
    for t, label in elapsed_ticks(t0, t1, t0, TICKS_X):
        yield f'<text x="{_x(t, chart)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_escape(label)}</text>'


def _curve(chart: Chart, scale: Scale) -> Iterator[str]:
    floor = HEIGHT - BOTTOM
    for run in _unbroken(chart):
        stamps = [chart.curve.t[i] for i in run]
        xs = [
            _x((before + t) // 2, chart) for before, t in pairwise([stamps[0], *stamps])
        ]  # a mean is of the middle
        line = "L".join(f"{x} {_y(chart.curve.mean[i], scale)}" for x, i in zip(xs, run, strict=True))
        yield f'<path class="area" d="M{xs[0]} {floor}L{line}L{xs[-1]} {floor}Z"/>'
        yield f'<path class="mean" d="M{line}{"h0" if len(run) == 1 else ""}"/>'


def _unbroken(chart: Chart) -> Iterator[Sequence[int]]:
    """The places of buckets that follow each other without a gap."""
    gaps = [i for i, value in enumerate(chart.curve.mean) if not math.isfinite(value)]
    for before, after in pairwise([-1, *gaps, len(chart.curve.mean)]):
        if after - before > 1:
            yield range(before + 1, after)


def _stretches(chart: Chart) -> Iterator[str]:
    """What is compared, under the axis."""
    y = HEIGHT - BOTTOM
    for name, t0, t1 in chart.stretches:
        x0, x1 = _x(t0, chart), _x(t1, chart)
        middle = min(max((x0 + x1) / 2, LEFT + 26), WIDTH - RIGHT - 12)
        yield f'<rect class="span" x="{x0}" y="{y}" width="{max(2.0, x1 - x0):.1f}" height="3"/>'
        yield f'<text x="{middle:.1f}" y="{y + 36}">{_escape(name)}</text>'


def _marks(chart: Chart) -> Iterator[str]:
    """The changes; a number that would lie on the one before it is left out, its line is not."""
    last = -math.inf
    for mark in chart.marks:
        x = _x(mark.t, chart)
        yield f'<g class="mark"><title>{_escape(f"{mark.number}: {mark.text}")}</title>'
        yield f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        if x - last >= ROOM:
            last = x
            yield f'<circle cx="{x}" cy="{TOP - 9}" r="9"/><text x="{x}" y="{TOP - 5}">{mark.number}</text>'
        yield "</g>"


def _notes(chart: Chart) -> Iterator[str]:
    """What nobody did, as a triangle on the axis."""
    y = HEIGHT - BOTTOM
    for t, said in chart.notes:
        x = _x(t, chart)
        corners = f"{x - 6:.1f},{y} {x + 6:.1f},{y} {x},{y - 10}"
        yield f'<polygon class="note" points="{corners}"><title>{_escape(said)}</title></polygon>'


def _x(t: int, chart: Chart) -> float:
    t0, t1 = chart.span
    share = min(1.0, max(0.0, (t - t0) / max(1, t1 - t0)))
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def _y(value: float, scale: Scale) -> float:
    share = min(1.0, max(0.0, (value - scale.bottom) / (scale.top - scale.bottom)))
    return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)


def _escape(plain: str) -> str:
    return html.escape(text.clean(plain, 400))
