"""Charts as static SVG, which take the colours of their page: for paper, and where no script runs."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hoptui.cli.report.document import ReportChart, Strip
from hoptui.presentation import numbers
from hoptui.presentation.scales import BELOW, Scale, log_scale, powers_of_ten, value_scale
from hoptui.presentation.time_ticks import elapsed_ticks

WIDE_POINTS, SMALL_POINTS = 240, 120  # most points of a curve
ROOM = 20  # between the numbers of two marks
INKS = 8
FEW = 3  # of more curves the bands are fainter
UNIT_Y = 31  # the baseline of the unit, above the chart
CHARACTER = 8.4  # width of a character of a label, about


class ChartFrame(NamedTuple):
    """The size of a picture, its margins, and the most ticks of its axes."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    ticks_x: int
    ticks_y: int

    @property
    def floor(self) -> int:
        """The y of the time axis."""
        return self.height - self.bottom


WIDE = ChartFrame(960, 334, 70, 24, 54, 48, 8, 5)
SMALL = ChartFrame(480, 220, 70, 24, 42, 28, 4, 4)
BAND = ChartFrame(960, 70, 70, 24, 22, 26, 8, 0)


def svg(chart: ReportChart) -> str:
    """Return the picture of a chart."""
    frame = WIDE if chart.wide else SMALL
    scale = (log_scale if chart.log else value_scale)(chart.scale_values, frame.ticks_y)
    assert scale is not None, "a logarithmic axis is only for values above zero"
    parts = [
        *_head(frame, chart.title, axis_words(chart), chart.span),
        *_value_axis(scale, frame),
        *_time_axis(chart.span, frame),
        *_stretches(chart, frame),
        *_curves(chart, scale, frame),
        *_beyond(chart, scale, frame),
        *_marks(chart, frame),
        "</svg>",
    ]
    return "\n".join(parts)


def axis_words(chart: ReportChart) -> str:
    """Return the unit and the kind of the value axis: `steps/s`, `s · log`."""
    return " · ".join([*([chart.unit] if chart.unit else []), *(["log"] if chart.log else [])])


def strip_svg(strip: Strip) -> str:
    """Return the picture of a strip: a bar for each part, with its text where there is room."""
    parts = [*_head(BAND, strip.title, "", strip.span), *_time_axis(strip.span, BAND)]
    inks = strip.inks
    for part in strip.parts:
        x0, x1 = _x(part.t0, strip.span, BAND), _x(part.t1, strip.span, BAND)
        width = max(1.0, x1 - x0)
        parts.append(
            f'<rect class="fill{inks[part.text] % INKS}" x="{x0}" y="{BAND.top}" width="{width:.1f}" '
            f'height="{BAND.floor - BAND.top}"><title>{_escape(part.text)}</title></rect>'
        )
        if width > CHARACTER * (len(part.text) + 2):
            parts.append(
                f'<text class="inside" x="{x0 + 5:.1f}" y="{BAND.floor - 5}">{_escape(part.text)}</text>'
            )
    return "\n".join([*parts, "</svg>"])


def _head(frame: ChartFrame, title: str, unit: str, span: tuple[int, int]) -> Iterator[str]:
    alt = f"{title} over {numbers.duration((span[1] - span[0]) / 1e9)}"
    size = "wide" if frame.width == WIDE.width else "small"
    yield (
        f'<svg class="{size}" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{_escape(alt)}">'
    )
    yield f'<text class="title" x="0" y="14">{_escape(title)}</text>'
    yield f'<text x="0" y="{UNIT_Y}">{_escape(unit)}</text>' if unit else ""


def _value_axis(scale: Scale, frame: ChartFrame) -> Iterator[str]:
    for tick, label in zip(scale.ticks, scale.labels, strict=True):
        if tick > scale.top:
            continue
        y = _level(tick, scale, frame)
        yield f'<line class="grid" x1="{frame.left}" x2="{frame.width - frame.right}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{frame.left - 8}" y="{y + 4:.1f}" text-anchor="end">{_escape(label)}</text>'


def _time_axis(span: tuple[int, int], frame: ChartFrame) -> Iterator[str]:
    t0, t1 = span
    for t, label in elapsed_ticks(t0, t1, t0, frame.ticks_x):
        yield (
            f'<text x="{_x(t, span, frame)}" y="{frame.floor + 18}" '
            f'text-anchor="middle">{_escape(label)}</text>'
        )


def _curves(chart: ReportChart, scale: Scale, frame: ChartFrame) -> Iterator[str]:
    many = " many" if len(chart.curves) > FEW else ""
    points = WIDE_POINTS if chart.wide else SMALL_POINTS
    for curve in (curve.thinned(points) for curve in chart.curves):
        ink = curve.ink % INKS
        for run in curve.unbroken():
            xs = [_x(curve.t[i], chart.span, frame) for i in run]
            tops, bottoms, line = (
                [_y(column[i], scale, frame) for i in run] for column in (curve.high, curve.low, curve.middle)
            )
            if tops != bottoms:
                outline = [*zip(xs, tops, strict=True), *reversed([*zip(xs, bottoms, strict=True)])]
                yield f'<path class="band ink{ink}{many}" d="M{_path(outline)}Z"/>'
            dot = "h0" if len(run) == 1 else ""
            yield f'<path class="middle ink{ink}" d="M{_path([*zip(xs, line, strict=True)])}{dot}"/>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:g} {y:g}" for x, y in points)


def _beyond(chart: ReportChart, scale: Scale, frame: ChartFrame) -> Iterator[str]:
    """What is said of values above and below the axis."""
    highs, lows = [v for c in chart.curves for v in c.high], [v for c in chart.curves for v in c.low]
    if scale.log:
        highs, lows = powers_of_ten(highs), [v for v in powers_of_ten(lows) if v > BELOW]
    most = max((v for v in highs if v == v), default=scale.top)
    least = min((v for v in lows if v == v), default=scale.bottom)
    room = (scale.top - scale.bottom) / 32
    x = frame.width - frame.right - 2
    if most > scale.top + room:
        yield f'<text x="{x}" y="{UNIT_Y}" text-anchor="end">▴ up to {_value(most, scale)}</text>'
    if least < scale.bottom - room:
        yield f'<text x="{x}" y="{frame.floor - 4}" text-anchor="end">▾ down to {_value(least, scale)}</text>'


def _stretches(chart: ReportChart, frame: ChartFrame) -> Iterator[str]:
    """What is compared, under the axis."""
    y = frame.floor
    for name, t0, t1 in chart.stretches:
        x0, x1 = _x(t0, chart.span, frame), _x(t1, chart.span, frame)
        middle = min(max((x0 + x1) / 2, frame.left + 26), frame.width - frame.right - 12)
        yield f'<rect class="span" x="{x0}" y="{y}" width="{max(2.0, x1 - x0):.1f}" height="3"/>'
        yield f'<text class="spanned" x="{middle:.1f}" y="{y + 36}">{_escape(name)}</text>'


def _marks(chart: ReportChart, frame: ChartFrame) -> Iterator[str]:
    """Changes and warnings. In a wide chart with numbers and names, as far as there is room."""
    last = free = -math.inf
    for mark in chart.marks:
        x = _x(mark.t, chart.span, frame)
        kind = mark.level if mark.level in ("warning", "alarm") else "change"
        yield f'<g class="mark {kind}"><title>{_escape(mark.text)}</title>'
        yield f'<line x1="{x}" x2="{x}" y1="{frame.top}" y2="{frame.floor}"/>'
        if chart.wide and mark.number and x - last >= ROOM:
            last = x
            yield f'<circle cx="{x}" cy="{frame.top - 9}" r="9"/>'
            yield f'<text class="count" x="{x}" y="{frame.top - 5}">{mark.number}</text>'
        if not mark.number:
            corners = f"{x - 5:.1f},{frame.floor} {x + 5:.1f},{frame.floor} {x},{frame.floor - 9}"
            yield f'<polygon points="{corners}"/>'
        if chart.wide and mark.name and x >= free:
            free = x + CHARACTER * (len(mark.name) + 1)
            if free <= frame.width:
                yield f'<text x="{x + 3:.1f}" y="{frame.top + 12}">{_escape(mark.name)}</text>'
        yield "</g>"


def _x(t: int, span: tuple[int, int], frame: ChartFrame) -> float:
    t0, t1 = span
    share = min(1.0, max(0.0, (t - t0) / max(1, t1 - t0)))
    return round(frame.left + share * (frame.width - frame.left - frame.right), 1)


def _value(level: float, scale: Scale) -> str:
    return numbers.si(10.0**level if scale.log else level)


def _y(value: float, scale: Scale, frame: ChartFrame) -> float:
    return _level(powers_of_ten([value])[0] if scale.log else value, scale, frame)


def _level(value: float, scale: Scale, frame: ChartFrame) -> float:
    """The y of a value of the scale: of a power of ten if that is logarithmic."""
    share = min(1.0, max(0.0, (value - scale.bottom) / (scale.top - scale.bottom)))
    return round(frame.floor - share * (frame.floor - frame.top), 1)


def _escape(plain: str) -> str:
    return html.escape(numbers.clean(plain, 400))
