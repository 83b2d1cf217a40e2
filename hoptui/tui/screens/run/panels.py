"""The panels of the run screen that divide their room among parts, and the time range of its charts."""

from __future__ import annotations

from typing import NamedTuple

from hoptui.presentation import numbers
from hoptui.presentation.time_ticks import span_of
from hoptui.tui.charts.line_chart import ChartSeries, LineChart
from hoptui.tui.charts.plot import Mark
from hoptui.tui.components import host, lines, phases, runs, tuner
from hoptui.tui.components.figures import headline
from hoptui.tui.screen_base import set_height
from hoptui.tui.screens.run import content
from hoptui.tui.snapshot import SECOND, View
from hoptui.tui.widgets import Lines, Panel

LEAST_CHART = 3  # lines, with the x axis


class TimeSpan(NamedTuple):
    """The time range of the charts: `span_s` seconds up to `end` (None: now), which the axis labels `newest`.

    `marks` are the changes of knobs. `machine_s` is the range of the node up to now, which goes on after the
    run.
    """

    span_s: float
    marks: tuple[Mark, ...]
    machine_s: float
    end: int | None = None
    newest: str = "now"

    @classmethod
    def of(cls, view: View, longest_s: float) -> TimeSpan:
        """As much of a run as there is, at most `longest_s`; of one that is over its end."""
        age_s = view.wall - view.run.started_wall if view.run else 0.0
        marks, up_to_now_s = tuple(runs.change_marks(view)), span_of(age_s, longest_s)
        last = view.vital.last_t if view.exited and view.vital is not None else 0
        if view.run is None or not last:
            return cls(up_to_now_s, marks, up_to_now_s)
        lasted_s = (view.run.exited_wall or view.wall) - view.run.started_wall
        lasted_s = min(lasted_s, age_s - (view.now - last) / SECOND)  # the process may outlive its last row
        return cls(span_of(lasted_s, longest_s), marks, up_to_now_s, last, "end")


class ThroughputPanel(Panel):
    """How fast the run is, and over time."""

    def __init__(self) -> None:
        self._lines, self._chart = Lines("speed", classes="two"), LineChart("speed-chart")
        super().__init__(self._lines, self._chart, name="throughput")

    def tell(self, view: View, age: str) -> None:
        """The figures; `age` is how old they are, if that must be known."""
        name = headline(view).name
        old = view.metrics_stale or view.of_silent_head(name)
        self._lines.show(runs.throughput_lines(view, self._lines.size.width), faded=old)
        self.label(f"Throughput{runs.from_head(view, name)}", age)

    def draw(self, view: View, stretch: TimeSpan) -> None:
        _plot(self._chart, view, stretch, headline(view).name, "1")


class LearningPanel(Panel):
    """What training achieves: a metric of the person's choice, and over time."""

    def __init__(self) -> None:
        self._lines, self._chart = Lines("score", classes="two"), LineChart("score-chart")
        super().__init__(self._lines, self._chart, name="learning")

    def tell(self, view: View, metric: str) -> None:
        """The figures."""
        old = view.metrics_stale or view.of_silent_head(metric)
        self._lines.show(runs.learning_lines(view, metric, self._lines.size.width), faded=old)
        others = len(runs.learning_metrics(view)) > 1
        self.label(
            f"Learning{runs.from_head(view, metric)}",
            view.hint("view.metric", "next metric") if others else "",
        )

    def draw(self, view: View, stretch: TimeSpan, metric: str) -> None:
        _plot(self._chart, view, stretch, metric, "3")


def _plot(chart: LineChart, view: View, stretch: TimeSpan, metric: str, ink: str) -> None:
    """A metric of the run, if there is one to show."""
    span_s, marks, _, end, newest = stretch
    wanted = [ChartSeries(view.source, metric, metric, ink)] if metric else []
    old = view.stale or view.of_silent_head(metric)
    chart.plot(view, wanted, span_s, marks=marks, newest=newest, end=end, faded=old)


class HardwarePanel(Panel):
    """The run's GPUs, and the host under them, or alone; between them a chart where there is room."""

    def __init__(self) -> None:
        self._readings, self._host = Lines("readings"), Lines("host")
        self._chart = LineChart("hardware-chart")
        self._spare = 0  # lines for the chart
        super().__init__(self._readings, self._chart, self._host, name="hardware")

    def tell(self, view: View) -> None:
        """The readings of this moment."""
        width, height = self.content_size
        title, read = content.hardware(view, width)
        beside = bool(view.gpus())
        if height:  # unless it is not shown now
            read = read[: max(1, height - beside)]  # what is cut is worth less than the host
        self._spare = height - len(read) - beside
        set_height(self._readings, len(read))
        self._readings.show(read, faded=view.node_stale)
        self._host.display = beside
        self._host.show([host.short(view, width)], faded=view.node_stale)
        self.label(title)

    def draw(self, view: View, stretch: TimeSpan) -> None:
        """What they did, up to now: they go on when the run has ended."""
        rows = self._spare - 1  # without that of the x axis
        curves = content.hardware_curves(view, rows) if self._spare >= LEAST_CHART else []
        self._chart.display = bool(curves)
        if curves:
            span_s, marks = stretch.machine_s, stretch.marks
            self._chart.plot(view, curves, span_s, marks=marks, bounds=(0.0, 100.0), faded=view.node_stale)
        self.legend([(curve.label, curve.ink) for curve in curves])


BESIDE_CHART, MOST_LINES = 4, 9  # lines of code with that of the kinds


class PhasesPanel(Panel):
    """Where an iteration goes; under it the lines of code, and where there is room, the phases over time.

    Of a run without phases, it has the lines of code alone.
    """

    def __init__(self) -> None:
        self._bars, self._code, self._layers = (
            Lines("phase-lines"),
            Lines("where-lines"),
            Lines("phase-chart"),
        )
        super().__init__(self._bars, self._code, self._layers, name="phases")

    def draw(self, view: View, split: phases.Split, stretch: TimeSpan) -> None:
        """The bars first, then the lines: the layers take what they leave."""
        width, height = self.content_size
        if not height:
            return
        named = phases.named(view)
        bars = phases.lines(view, split, width, height) if named else []
        rest = height - len(bars)
        room = rest
        if named and rest > content.LEAST_ROWS:  # there is room for a chart
            room = max(min(BESIDE_CHART, rest - content.LEAST_ROWS), min(MOST_LINES, rest // 3))
        code = lines.panel(view, width, room, hint=not named)
        set_height(self._bars, len(bars))
        set_height(self._code, len(code))
        self._bars.show(bars, faded=view.metrics_stale)
        self._code.show(code, faded=lines.old(view))
        keys = view.hint("view.where", "all lines")
        if not named:
            self._layers.show([])
            self.legend([])
            self.label(lines.title(view, width - 2), keys)
            return
        span_s, marks, _, end, newest = stretch
        chart, over_s = content.phase_layers(
            view, width, rest - len(code), span_s, marks=marks, newest=newest, end=end
        )
        self._layers.show(chart, faded=view.metrics_stale)
        title, means = phases.title(view, split), f" · over time as means of {numbers.seconds(over_s)}"
        whole = f"{title}{means}" if chart and len(title) + len(means) <= width - 2 else title
        self.label(whole, "" if chart else keys)
        self.legend(content.phase_legend(view) if chart else [])


class TunerPanel(Panel):
    """What the tuner does, and under it, where it is shown alone, what it tried."""

    def __init__(self) -> None:
        self._told = Lines("tuner-lines")
        self._view: View | None = None
        super().__init__(self._told, name="tuner")

    def tell(self, view: View) -> None:
        """Bring it up to date, if it is shown."""
        self._view = view
        width, height = self.content_size
        if not height:
            return
        told = tuner.short(view, width)
        room, tried = height - len(told) - 2, tuner.trials(view)
        if room > 0 and tried:
            cells = tuner.trial_columns(view, tried, width)
            told += [
                (),
                tuner.trial_head(cells),
                *(tuner.trial_row(view, one, cells, width) for one in tried[:room]),
            ]
        self._told.show(told, faded=tuner.old(view))
        self.label(f"Tuner{tuner.from_head(view)}", view.hint("view.tuner", "more"))

    def on_resize(self) -> None:
        """It has just been given room, and nothing was drawn while it had none."""
        if self._view is not None:
            self.tell(self._view)
