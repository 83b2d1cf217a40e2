"""A live chart: reads its window from the store and redraws only when there is a new dot column to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hoptui.tui.view import SECOND, View
from hoptui.tui.widgets import raster
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.plot import AXIS_WIDTH, Curve, plot
from hoptui.viewer import format as text

AGAIN_S = 1.0  # within a dot column new data is drawn at most so often


class Wanted(NamedTuple):
    """A series to show; its values are multiplied by `factor` to get to the unit of the axis."""

    source: str
    metric: str
    label: str
    ink: str
    factor: float = 1.0


class LineChart(Lines):
    """Draws series of the store over the last seconds as a braille chart with axes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._shown: tuple[object, ...] = ()
        self._versions: tuple[int, ...] = ()
        self._at = 0.0

    def plot(
        self,
        view: View,
        wanted: Sequence[Wanted],
        span_s: float,
        *,
        marks: Sequence[int] = (),
        bounds: tuple[float, float] | None = None,
        newest: str = "now",
        end: int | None = None,
        faded: bool = False,
    ) -> None:
        """Show `wanted` over the last `span_s` seconds before `end` (default: now), unless that is on screen already.

        `newest` names the right end; in a replay `now` is a time of day.
        """
        if newest == "now" and view.replay is not None:
            newest = text.clock(view.wall)
        width, height = self.size
        plain = self._hoptui.ascii
        dots = max(1, raster.dots_across(width - AXIS_WIDTH, plain=plain))
        step = max(1, int(span_s * SECOND) // dots)
        t1 = ((view.now if end is None else end) // step + 1) * step
        key = (t1, dots, height, tuple(wanted), tuple(marks), bounds, newest, plain, faded)
        series = [view.store.series(w.source, w.metric) for w in wanted]
        versions = tuple(s.version if s else -1 for s in series)
        young = view.clock - self._at < AGAIN_S and any(v > 0 for v in self._versions)
        if key == self._shown and (versions == self._versions or young):
            return
        self._shown, self._versions, self._at = key, versions, view.clock
        t0 = t1 - step * dots
        curves = []
        for want, one in zip(wanted, series, strict=True):
            if one is not None:
                t, low, high = one.window(t0, t1 - 1, dots)
                if want.factor != 1.0:
                    low, high = [v * want.factor for v in low], [v * want.factor for v in high]
                curves.append(Curve(want.label, want.ink, t, low, high))
        lines = plot(curves, t0, t1, width, height, marks=marks, bounds=bounds, newest=newest, plain=plain)
        self.show(lines, faded=faded)
