"""A live chart: it reads its part of the x axis from its series and redraws only for a new column of dots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from textual import events
from textual.message import Message

from hoptui.model.series import SeriesColumns
from hoptui.presentation import numbers
from hoptui.presentation.time_ticks import time_ticks
from hoptui.tui.charts.plot import AXIS_WIDTH, Curve, Mark, Paper, is_log, plot, plot_apart
from hoptui.tui.charts.raster import ACROSS
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.widgets import Lines

OVERLAID = 3  # groups of curves in one raster; more are drawn one above the other
AGAIN_S = 1.0  # within a dot column new data is drawn at most so often
LABEL_CELLS = 12  # an x axis has about one label in so many


class Drawn(Protocol):
    """A series on the x axis of a chart: a metric of a store, or one that is aligned to another's."""

    @property
    def version(self) -> int: ...
    @property
    def refined(self) -> int: ...
    def columns(self, t0: int, t1: int, points: int) -> SeriesColumns: ...


class ChartSeries(NamedTuple):
    """A series to show; its values are multiplied by `factor` to get to the unit of the axis."""

    source: str
    metric: str
    label: str
    ink: str
    factor: float = 1.0


class Pen(NamedTuple):
    """What draws one curve; the values of `series` are multiplied by `factor`.

    Pens of one `group` are drawn together where there are too many for one raster.
    """

    series: Drawn
    label: str
    ink: str
    factor: float = 1.0
    group: int = 0
    dashed: bool = False

    def curve(self, x0: int, x1: int, points: int) -> Curve:
        """The curve between two places of the x axis, `x1` not included."""
        x, *values = self.series.columns(x0, x1 - 1, points)
        if self.factor != 1.0:
            values = [[v * self.factor for v in column] for column in values]
        low, high, middle = values
        return Curve(self.label, self.ink, x, low, high, middle, self.dashed)


class LineChart(Lines):
    """Draws series as a braille chart with axes; `curves` are those that it shows."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._shown: tuple[object, ...] = ()
        self._versions: tuple[int, ...] = ()
        self._at = 0.0
        self.curves: list[Curve] = []
        self.logarithmic = False

    @property
    def axis(self) -> int:
        """The cells that the value axis takes."""
        return self.lines[0][0].width + 1 if self.lines and self.lines[0] else AXIS_WIDTH

    @property
    def dots(self) -> int:
        """The dot columns of the curves."""
        return max(1, ACROSS * (self.size.width - AXIS_WIDTH))

    def plot(
        self,
        view: View,
        wanted: Sequence[ChartSeries],
        span_s: float,
        *,
        marks: Sequence[Mark] = (),
        bounds: tuple[float, float] | None = None,
        newest: str = "now",
        end: int | None = None,
        faded: bool = False,
    ) -> None:
        """Show `wanted` over the last `span_s` seconds before `end` (default: now).

        `newest` names the right end; in a replay `now` is a time of day.
        """
        paper = latest(view, span_s, self.dots, marks=marks, bounds=bounds, newest=newest, end=end)
        for one in wanted:
            view.store.look_closer(one.source, one.metric, paper.x0, paper.x1 - 1, self.dots)
        found = ((view.store.series(w.source, w.metric), w) for w in wanted)
        pens = [
            Pen(series, w.label, w.ink, w.factor, group)
            for group, (series, w) in enumerate(found)
            if series is not None
        ]
        self.draw(paper, pens, view.clock, faded=faded)

    def draw(
        self, paper: Paper, pens: Sequence[Pen], clock: float, *, smooth: bool = False, faded: bool = False
    ) -> None:
        """Draw on `paper`, unless that is on screen already; `clock` is seconds, monotonic.

        With `smooth` the lines are moving averages; `curves` are what they are made of. `logarithmic` is
        whether a value axis is so.
        """
        width, height = self.size
        key = (paper, width, height, tuple(pens), tuple(pen.series.refined for pen in pens), smooth, faded)
        versions = tuple(pen.series.version for pen in pens)
        young = clock - self._at < AGAIN_S and any(v > 0 for v in self._versions)
        if key == self._shown and (versions == self._versions or young):
            return
        self._shown, self._versions, self._at = key, versions, clock
        self.curves = [pen.curve(paper.x0, paper.x1, self.dots) for pen in pens]
        constant = (paper.x1 - paper.x0) * SMOOTH
        shown = [smoothed(curve, constant) for curve in self.curves] if smooth else self.curves
        groups = [
            [curve for pen, curve in zip(pens, shown, strict=True) if pen.group == group]
            for group in dict.fromkeys(pen.group for pen in pens)
        ]
        self.logarithmic = any(is_log(group, paper) for group in groups)
        if len(groups) > OVERLAID:
            self.show(plot_apart(groups, paper, width, height), faded=faded)
        else:
            self.show(plot(shown, paper, width, height), faded=faded)


SMOOTH = 1 / 30
"""The time constant of the moving average, as a share of what is seen of the x axis."""


def smoothed(curve: Curve, constant: float) -> Curve:
    """A curve whose line is an exponential moving average, which an unknown value begins anew.

    `constant` is the distance on the x axis after which a value counts 1/e.
    """
    line: list[float] = []
    average = math.nan
    before = 0
    for x, value in zip(curve.x, curve.low if curve.middle is None else curve.middle, strict=True):
        if average == average and value == value:
            average += (value - average) * (1 - math.exp((before - x) / constant))
        else:
            average = value
        before = x
        line.append(average)
    return curve._replace(middle=line)


def latest(
    view: View,
    span_s: float,
    dots: int,
    *,
    marks: Sequence[Mark] = (),
    bounds: tuple[float, float] | None = None,
    newest: str = "now",
    end: int | None = None,
) -> Paper:
    """The last `span_s` seconds before `end` (default: now), in so many dot columns; `newest` as in
    `LineChart.plot`.
    """
    if newest == "now" and view.replay is not None:
        newest = numbers.clock(view.wall)
    x0, x1 = whole_dots(int(span_s * SECOND), view.now if end is None else end, dots)
    ticks = time_ticks((x1 - x0) / SECOND, max(2, dots // ACROSS // LABEL_CELLS))
    placed = tuple((x1 - ago * SECOND, label) for ago, label in ticks)
    return Paper(x0, x1, ticks=placed, end=newest, marks=tuple(marks), bounds=bounds)


def whole_dots(span: int, end: int, dots: int) -> tuple[int, int]:
    """The part of an x axis, about `span` long, that holds `end` in its last dot; its edges lie between dots.

    So it moves by whole dots, and what stands still on it does so on screen.
    """
    step = max(1, span // dots)
    x1 = (end // step + 1) * step
    return x1 - step * dots, x1


def holding(x0: int, x1: int, dots: int) -> tuple[int, int]:
    """The same, with room for all from `x0` to `x1`."""
    step = max(1, -(-(x1 - x0) // max(1, dots - 1)))
    return whole_dots(step * dots, x1, dots)


class Gesture(Message):
    """What was done on the chart at `share` of its width: 0 is its left end, 1 its right end."""

    def __init__(self, chart: TouchChart, share: float) -> None:
        super().__init__()
        self.chart = chart
        self.share = share


class Pointed(Gesture):
    """A click: the crosshair belongs there."""


class Turned(Gesture):
    """The wheel: what is there is to be seen closer (`direction` 1) or from further away (-1)."""

    def __init__(self, chart: TouchChart, share: float, direction: int) -> None:
        super().__init__(chart, share)
        self.direction = direction


class Dragged(Gesture):
    """The curves were pulled by `share` of the width; to the right is positive."""


class TouchChart(LineChart):
    """Posts `Pointed`, `Turned` and `Dragged`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._held: int | None = None  # the column that was pressed or last dragged to
        self._moved = False

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.capture_mouse()
        self._held, self._moved = event.x, False

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._held is not None and event.x != self._held:
            self.post_message(Dragged(self, (event.x - self._held) / self._across))
            self._held, self._moved = event.x, True

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self.release_mouse()
        pressed, self._held = self._held, None
        if pressed is not None and not self._moved and event.x >= self.axis:
            self.post_message(Pointed(self, self._share(event.x)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.post_message(Turned(self, self._share(event.x), 1))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.post_message(Turned(self, self._share(event.x), -1))

    @property
    def _across(self) -> int:
        return max(1, self.size.width - self.axis)

    def _share(self, x: int) -> float:
        return min(max((x - self.axis + 0.5) / self._across, 0.0), 1.0)
