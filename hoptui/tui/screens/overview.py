"""The overview of a node: its GPUs, its host, its runs, and what happened last."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal

from hoptui.tui.actions import bindings, of
from hoptui.tui.frame import Frame
from hoptui.tui.lines import GAP, Line, Span
from hoptui.tui.messages import Moved, Picked
from hoptui.tui.panels import events, gpus, header, host, runs
from hoptui.tui.screens.live import LiveScreen, set_height
from hoptui.tui.view import View
from hoptui.tui.widgets.choices import Choices
from hoptui.tui.widgets.key_bar import KeyBar
from hoptui.tui.widgets.line_chart import LineChart, Wanted
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.panel import Panel
from hoptui.viewer import format as text

BORDER = 2
CHARTED_GPUS = 4
INKS = "1234"
SPAN_S = 300.0


class OverviewScreen(LiveScreen):
    """All GPUs and runs of the node. Enter opens the chosen run."""

    BINDINGS = bindings("overview")

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Lines("progress")
        yield Panel(Lines("gpu-head"), Lines("gpu-lines"), name="gpus")
        with Horizontal(id="history"):
            yield Panel(LineChart("busy-chart"), name="busy")
            yield Panel(Lines("host-lines"), LineChart("host-chart"), name="host")
        yield Panel(Lines("run-head"), Choices("run-list"), name="runs")
        yield Panel(Lines("event-lines"), name="events")
        yield KeyBar()

    def on_mount(self) -> None:
        self._run_list().focus()
        super().on_mount()

    def draw(self, frame: Frame) -> None:
        view = self.view()
        if frame.numbers:
            self._lines("identity").show([self._identity(view)])
            self._lines("progress").show([header.progress(view, self.size.width)])
            self._draw_gpus(view)
            lines = self._lines("host-lines")
            lines.show(host.lines(view, lines.size.width), faded=view.node_stale)
            cores = f" · {view.node.cpus} cores" if view.node and view.node.cpus else ""
            self._panel("host").label(f"Host{cores}")
            self._draw_runs(view)
        if frame.charts:
            self._draw_charts(view)
        if frame.lists:
            happened = self._lines("event-lines")
            happened.show(events.lines(view, max(1, happened.size.height)))
            self._panel("events").label("Events")
            last = [a for a in of("everywhere") if a.label]
            opens = [a for a in of("list") if a.id == "list.pick" and runs.ordered(view)]
            note = "slow link: fewer frames" if self.hoptui.pace.slow else ""
            self.query_one(KeyBar).show_actions(opens, last, note)

    def _draw_gpus(self, view: View) -> None:
        head, lines, panel = self._lines("gpu-head"), self._lines("gpu-lines"), self._panel("gpus")
        shown = view.gpus()
        width = lines.size.width
        rows = gpus.rows(view, shown, width, users=True) or [(Span(gpus.none(view), "dim"),)]
        head.display = bool(shown)
        set_height(panel, len(rows) + BORDER + bool(shown))
        head.show([gpus.head(width, users=True)])
        lines.show(rows, faded=view.node_stale)
        drivers = sorted({gpu.driver for gpu in shown if gpu.driver})
        panel.label(f"GPUs · {len(shown)}" if shown else "GPUs", ", ".join(f"driver {d}" for d in drivers))

    def _draw_runs(self, view: View) -> None:
        head, choices = self._lines("run-head"), self._run_list()
        listed = runs.ordered(view)
        width = choices.size.width
        head.display = bool(listed)
        head.show([runs.head(view, width)])
        choices.show_rows(runs.rows(view, width, choices.index), len(listed), faded=view.node_stale)
        self._panel("runs").label(f"Runs · {len(listed)}" if listed else "Runs")

    def _draw_charts(self, view: View) -> None:
        shown = view.gpus()[:CHARTED_GPUS]
        busy, charted = self._panel("busy"), self.query_one("#host-chart", LineChart)
        self.set_class(not shown, "-no-gpus")
        self.set_class(len(view.gpus()) > CHARTED_GPUS, "-many-gpus")
        if not charted.size.height:
            self._panel("host").legend(())
            return
        lines = [
            Wanted(f"gpu/{g.uuid}", "busy", f"GPU {g.index}", ink)
            for g, ink in zip(shown, INKS, strict=False)
        ]
        self.query_one("#busy-chart", LineChart).plot(view, lines, SPAN_S, bounds=(0.0, 100.0))
        busy.label("Busy %")
        busy.legend([(line.label, line.ink) for line in lines])
        total = view.node.memory_total_bytes if view.node else 0
        lines = [Wanted("host", "cpu_percent", "CPU %", "1")]
        lines += [Wanted("host", "memory_used_bytes", "memory %", "3", 100 / total)] if total else []
        charted.plot(view, lines, SPAN_S, bounds=(0.0, 100.0))
        self._panel("host").legend([(line.label, line.ink) for line in lines])

    def _identity(self, view: View) -> Line:
        node = view.node
        left = [Span(" hoptui  ", "title"), Span(text.clean(node.host, 40) if node else "", "strong")]
        right = [Span("   "), *header.state(view)] if view.link.state != "live" else []
        counted = [v.state for v in view.store.vitals.values()]
        live = sum(state != "exited" for state in counted)
        summary = f"{live} running" if live else "nothing is running"
        clock = Span(f"   {text.clock(view.wall)} ", "dim")
        return (*left, GAP, Span(summary if node else "", "good" if live else "dim"), *right, clock)

    def on_moved(self, event: Moved) -> None:
        event.stop()
        self.redraw()

    def on_picked(self, event: Picked) -> None:
        event.stop()
        listed = runs.ordered(self.view())
        if event.index < len(listed):
            self.hoptui.open_run(listed[event.index])

    def _lines(self, name: str) -> Lines:
        return self.query_one(f"#{name}", Lines)

    def _run_list(self) -> Choices:
        return self.query_one("#run-list", Choices)

    def _panel(self, name: str) -> Panel:
        return self.query_one(f"#{name}", Panel)
