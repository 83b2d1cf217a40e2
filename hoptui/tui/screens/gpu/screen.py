"""The GPUs screen: every reading of one GPU, what it means, its chart, and the processes on that GPU."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Vertical

from hoptui.domain.devices import GpuInfo
from hoptui.presentation import numbers
from hoptui.presentation.gpu_readings import GPU
from hoptui.presentation.readings import value_text
from hoptui.presentation.time_ticks import SPANS
from hoptui.tui.actions import Action, bindings
from hoptui.tui.app_protocol import Frame, Moved, Picked
from hoptui.tui.charts.line_chart import ChartSeries, LineChart
from hoptui.tui.components import gpus, header, host, runs
from hoptui.tui.screen_base import LiveScreen
from hoptui.tui.screens.gpu import content
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import GAP, Line, Span
from hoptui.tui.widgets import Choices, KeyBar, Lines, Panel

_BELOW = ("", "-charting", "-listing")  # the part below the readings in a small terminal


class GpusScreen(LiveScreen):
    """One GPU at a time. `gpu` is its UUID; with `run`, an id, only that run's GPUs can be gone to."""

    BINDINGS = bindings("gpus")

    def __init__(self, gpu: str, run: str | None = None) -> None:
        super().__init__()
        self.gpu_id = gpu
        self.run_id = run
        self.span_s = 300.0

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Lines("tabs")
        yield Lines("verdict")
        with Container(id="body"):
            yield Panel(Choices("reading-list"), name="readings")
            with Vertical(id="beside"):
                yield Panel(Lines("meaning-lines"), name="meaning")
                yield Panel(LineChart("reading-chart"), name="chart")
                yield Panel(Lines("process-lines"), name="processes")
        yield KeyBar()

    def on_mount(self) -> None:
        self._list("reading-list").focus()
        super().on_mount()

    def view(self) -> View:
        """With the run that the screen was opened for, else the one that lives on this GPU."""
        if self.run_id is not None:
            return self.hoptui.view(self.run_id)
        view = self.hoptui.view(None)
        living = (
            [r for r in view.node.runs if self.gpu_id in r.gpus and not r.exit_reason] if view.node else []
        )
        return self.hoptui.view(living[0].run) if len(living) == 1 else view

    def shown(self) -> tuple[GpuInfo, ...]:
        """The GPUs that can be gone to."""
        view = self.hoptui.view(self.run_id)
        return view.gpus() or self.hoptui.view(None).gpus()

    def gpu(self) -> GpuInfo | None:
        """The GPU on screen, the first one where it is no longer there."""
        found = self.shown()
        return next((gpu for gpu in found if gpu.uuid == self.gpu_id), next(iter(found), None))

    # drawing ----------------------------------------------------------------------------------------------

    def draw(self, frame: Frame) -> None:
        view, gpu = self.view(), self.gpu()
        if frame.numbers:
            self._lines("identity").show([self._identity(view, gpu)])
        self.set_class(gpu is None, "-no-gpu")
        if gpu is None:
            if frame.lists:
                self._list("reading-list").show_rows([(Span(gpus.none(self.hoptui.view(None)), "dim"),)], 0)
                self._draw_keys()
            return
        readings = content.all_of(view, gpu)
        chosen = readings[min(self._list("reading-list").index, len(readings) - 1)]
        if frame.numbers:
            self._draw_readings(view, gpu, readings)
            meaning = self._lines("meaning-lines")
            meaning.show(
                content.meaning_lines(chosen, meaning.size.width, meaning.size.height), faded=view.node_stale
            )
            self._panel("meaning").label("What it means")
        if frame.charts:
            self._draw_chart(view, chosen)
        if frame.lists:
            listed = self._lines("process-lines")
            width, height = listed.size
            lines = host.process_lines(view, width, max(1, height), gpu.uuid)
            listed.show(lines, faded=view.node_stale)
            count = len(host.processes(view, gpu.uuid))
            self._panel("processes").label(host.processes_title(view, "Processes", str(count or "")))
            self._draw_keys()

    def _draw_readings(self, view: View, gpu: GpuInfo, readings: list[content.ReadingRow]) -> None:
        choices = self._list("reading-list")
        rows = content.rows(view, readings, choices.size.width, choices.index)
        choices.show_rows(rows, len(readings), faded=view.node_stale)
        title = " · ".join(filter(None, (gpus.title(gpu), choices.part)))
        self._panel("readings").label(title, content.facts(gpu))
        self._lines("tabs").display = len(self.shown()) > 1
        self._lines("tabs").show([self._tabs(view, gpu)])
        self._lines("verdict").show([content.verdict(view, gpu)])

    def _draw_chart(self, view: View, chosen: content.ReadingRow) -> None:
        chart = self.query_one("#reading-chart", LineChart)
        if not chart.size.height:
            return
        share = chosen.meaning.unit == "%"
        wanted = (
            [ChartSeries(chosen.source, chosen.metric, chosen.meaning.label, gpus.ink_of(chosen.name))]
            if chosen.metric
            else []
        )
        if chosen.metric != chosen.name and wanted:
            named = GPU[chosen.metric].label
            wanted = [wanted[0]._replace(label=named)]
        if share and chosen.meaning.group == "Compute" and chosen.name != "busy":
            source = f"gpu/{self.gpu_id}"
            wanted.append(
                ChartSeries(source, "busy", "busy", "dim")
            )  # beside it, what it is usually taken for
        bounds = (0.0, 100.0) if share else None
        chart.plot(
            view,
            wanted,
            self.span_s,
            marks=runs.change_marks(view) if view.run else (),
            bounds=bounds,
            faded=view.node_stale,
        )
        self._panel("chart").label("History" if wanted else "No history of its own")
        self._panel("chart").legend([(f"{w.label} {_axis_unit(chosen)}".rstrip(), w.ink) for w in wanted])

    def _draw_keys(self) -> None:
        self.query_one(KeyBar).show_actions(self.key_actions("gpus"))

    def _identity(self, view: View, gpu: GpuInfo | None) -> Line:
        node = view.node
        left = [Span(" hoptui  ", "title"), Span(numbers.clean(node.host, 40) if node else "", "strong")]
        if gpu is not None:
            user = gpus.users(view, gpu)
            left += [
                Span(" · "),
                Span(f"GPU {gpu.index}", "strong"),
                Span(f" · {user}" if user else "", "dim"),
            ]
        link = header.state(view) if view.link.state != "live" or view.replay else ()
        return (*left, GAP, *link, *header.rate(view), Span(f"   {numbers.clock(view.wall)} ", "dim"))

    def _tabs(self, view: View, chosen: GpuInfo) -> Line:
        """The GPUs with how active their SMs are, the chosen one marked; nothing where there is but one."""
        shown = self.shown()
        spans: list[Span] = []
        for gpu in shown if len(shown) > 1 else ():
            own = gpu.uuid == chosen.uuid
            now = gpus.readings(view, gpu)
            figure = "✕" if gpu.problem else value_text("%", now.get("sm_active", now.get("busy")))
            spans += [
                Span(" ›" if own else "  ", "key"),
                Span(f"└{gpus.part(gpu)}" if gpu.parent else str(gpu.index), "strong" if own else "dim"),
            ]
            spans += [Span(figure, "" if own else "dim", 6, right=True)]
        return tuple(spans)

    # keys -------------------------------------------------------------------------------------------------

    def works(self, action: Action) -> bool:
        if action.id == "gpu.next":
            return len(self.shown()) > 1
        if action.id == "gpu.panel":
            return self.has_class("-narrow") or self.has_class("-low")
        return super().works(action)

    def action_step(self, by: int) -> None:
        shown, now = self.shown(), self.gpu()
        if now is not None:
            self._show(shown[(shown.index(now) + by) % len(shown)])

    def on_key(self, event: events.Key) -> None:
        """A digit goes to the GPU of that number."""
        found = [gpu for gpu in self.shown() if not gpu.parent and str(gpu.index) == event.character]
        if found:
            event.stop()
            self._show(found[0])

    def action_next_panel(self) -> None:
        now = next((name for name in _BELOW if name and self.has_class(name)), "")
        follows = _BELOW[(_BELOW.index(now) + 1) % len(_BELOW)]
        for name in _BELOW[1:]:
            self.set_class(name == follows, name)
        self.redraw()

    def action_shorter(self) -> None:
        self.span_s = float(max((s for s in SPANS if s < self.span_s), default=SPANS[0]))
        self.redraw()

    def action_longer(self) -> None:
        self.span_s = float(min((s for s in SPANS if s > self.span_s), default=SPANS[-1]))
        self.redraw()

    def action_back(self) -> None:
        self.dismiss()

    def on_moved(self, event: Moved) -> None:
        event.stop()
        self.redraw()

    def on_picked(self, event: Picked) -> None:
        event.stop()  # a reading is chosen as soon as the cursor is on it

    def _show(self, gpu: GpuInfo) -> None:
        self.gpu_id = gpu.uuid
        self.redraw()


def _axis_unit(chosen: content.ReadingRow) -> str:
    unit = GPU[chosen.metric].unit if chosen.metric in GPU else chosen.meaning.unit
    return "" if unit in ("count", "bit mask") else unit
