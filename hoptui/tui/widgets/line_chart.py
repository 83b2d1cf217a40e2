"""A live chart: reads its part of the x axis from its series and redraws only when there is a new dot column to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hoptui.model.series import Window
from hoptui.presentation import numbers
from hoptui.tui.view import SECOND, View
from hoptui.tui.widgets import raster
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.plot import AXIS_WIDTH, Curve, Mark, Paper, plot
from hoptui.tui.widgets.scale import time_ticks

AGAIN_S = 1.0  # within a dot column new data is drawn at most so often
LABEL_CELLS = 12  # an x axis has about one label in so many


class Drawn(Protocol):
    """A series on the x axis of a chart: a metric of a store, or one that is aligned to another's."""

    @property
    def version(self) -> int: ...
    @property
    def refined(self) -> int: ...
    def window(self, t0: int, t1: int, points: int) -> Window: ...


class Wanted(NamedTuple):
    """A series to show; its values are multiplied by `factor` to get to the unit of the axis."""

    source: str
    metric: str
    label: str
    ink: str
    factor: float = 1.0


class Pen(NamedTuple):
    """What draws one curve; the values of `series` are multiplied by `factor`."""

    series: Drawn
    label: str
    ink: str
    factor: float = 1.0

    def curve(self, x0: int, x1: int, points: int) -> Curve:
        """The curve between two places of the x axis, `x1` not included."""
        x, low, high = self.series.window(x0, x1 - 1, points)
        if self.factor != 1.0:
            low, high = [v * self.factor for v in low], [v * self.factor for v in high]
        return Curve(self.label, self.ink, x, low, high)


class LineChart(Lines):
    """Draws series as a braille chart with axes; `curves` are those that it shows."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._shown: tuple[object, ...] = ()
        self._versions: tuple[int, ...] = ()
        self._at = 0.0
        self.curves: list[Curve] = []

    @property
    def axis(self) -> int:
        """The cells that the value axis takes."""
        return self.lines[0][0].width + 1 if self.lines and self.lines[0] else AXIS_WIDTH

    @property
    def dots(self) -> int:
        """The dot columns of the curves."""
        return max(1, raster.ACROSS * (self.size.width - AXIS_WIDTH))

    def plot(
        self,
        view: View,
        wanted: Sequence[Wanted],
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
        pens = [Pen(series, w.label, w.ink, w.factor) for series, w in found if series is not None]
        self.draw(paper, pens, view.clock, faded=faded)

    def draw(self, paper: Paper, pens: Sequence[Pen], clock: float, *, faded: bool = False) -> None:
        """Draw on `paper`, unless that is on screen already; `clock` is seconds, monotonic."""
        width, height = self.size
        key = (paper, width, height, tuple(pens), tuple(pen.series.refined for pen in pens), faded)
        versions = tuple(pen.series.version for pen in pens)
        young = clock - self._at < AGAIN_S and any(v > 0 for v in self._versions)
        if key == self._shown and (versions == self._versions or young):
            return
        self._shown, self._versions, self._at = key, versions, clock
        self.curves = [pen.curve(paper.x0, paper.x1, self.dots) for pen in pens]
        self.show(plot(self.curves, paper, width, height), faded=faded)


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
    """The last `span_s` seconds before `end` (default: now), in so many dot columns; `newest` is as in `LineChart.plot`."""
    if newest == "now" and view.replay is not None:
        newest = numbers.clock(view.wall)
    x0, x1 = whole_dots(int(span_s * SECOND), view.now if end is None else end, dots)
    ticks = time_ticks((x1 - x0) / SECOND, max(2, dots // raster.ACROSS // LABEL_CELLS))
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
