"""The overview screen: GPUs, processes, host, runs and events of a node."""

from __future__ import annotations

import signal
from collections.abc import Hashable
from typing import NamedTuple

from textual.app import ComposeResult
from textual.containers import Horizontal

from hoptui.domain.devices import GpuProcess
from hoptui.presentation import numbers
from hoptui.tui.actions import bindings, picking
from hoptui.tui.app_protocol import Frame, Moved, Picked
from hoptui.tui.charts.line_chart import ChartSeries, LineChart
from hoptui.tui.components import events, gpus, header, host, process_tree, runs
from hoptui.tui.dialogs import Confirm
from hoptui.tui.process_handle import NotYoursError, ProcessHandle
from hoptui.tui.screen_base import LiveScreen, set_height
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import GAP, Line, Span
from hoptui.tui.widgets import BORDER, SIDES, Choices, KeyBar, Lines, Panel

_LONGEST = 300


class Question(NamedTuple):
    """What is asked of the person, and the signal that a yes sends."""

    title: str
    question: str
    consequence: str
    number: signal.Signals


class Endings:
    """Remembers who was asked to end. Times are seconds of the local monotonic clock."""

    def __init__(self) -> None:
        self._asked: dict[tuple[int, float], float] = {}

    def hold(self, view: View, shown: GpuProcess) -> ProcessHandle:
        """The process itself, until the question is answered.

        Raises:
            NotYoursError: it may not be ended from here; the text has the reason.
        """
        if view.read_only:
            raise NotYoursError("read-only: no process is ended")
        if view.link.node:
            raise NotYoursError(f"the process is on {view.link.node}: it cannot be ended from here")
        if view.node is None:
            raise NotYoursError("there is no word from the daemon")
        return ProcessHandle(shown, view.node)

    def question(self, view: View, shown: GpuProcess, held: ProcessHandle) -> Question:
        """What to ask: it names the pid, the user and the command, as they are now."""
        who = f"process {held.pid} of {numbers.clean(held.user, 40)}"
        lines = [numbers.clean(held.command, _LONGEST)]
        run = view.store.run(shown.run) if shown.run else None
        if run is not None:
            lines.append(
                f"It belongs to the run {numbers.clean(run.name, 40)}. "
                "Stop the run itself if it is to end well."
            )
        since = self._asked.get((held.pid, held.started))
        if since is None:
            lines.append("SIGTERM asks it to end. What it has not saved may be lost.")
            return Question("End process", f"End {who}?", "\n".join(lines), signal.SIGTERM)
        ago = numbers.duration(max(0.0, view.clock - since))
        lines.append(
            f"It was asked to end {ago} ago and is still there. SIGKILL ends it at once: it can save nothing."
        )
        return Question("Kill process", f"Kill {who}?", "\n".join(lines), signal.SIGKILL)

    def end(self, held: ProcessHandle, number: signal.Signals, now: float) -> str:
        """Send the signal; returns one sentence on what was done."""
        try:
            held.end(number)
        except NotYoursError as error:
            return str(error)
        self._asked[held.pid, held.started] = now
        return f"process {held.pid} got {number.name}"


SPAN_S = 300.0
MANY_GPUS = 4  # with more of them there is no room for everything in a small terminal
_ELSE_TALL, _ELSE_LOW = 29, 12  # lines that the rest of the screen needs
_BARS = 3  # lines: identity, progress, keys; without a banner a small terminal has no progress
_CHARTS, _LEAST_CHARTS = 12, 7  # lines that the charts keep if they can, and in any case
_RUNS_TALL = 6  # lines for which the charts give some of theirs
_EVENTS, _EVENTS_LOW = 6, 4  # lines that the events keep
_RUNS, _PROCESSES, _PROCESSES_LOW = 4, 5, 4  # lines that a list has in any case
_BESIDE_CORES = 8  # lines that the rest of the host has beside the cells of cores: chart, gauges, words
_SEVERAL_RUNS = 5  # lines for two of them


class OverviewScreen(LiveScreen):
    """All GPUs, their processes, and the runs of the node. Tab moves between the three; Enter opens the
    chosen one.
    """

    BINDINGS = bindings("overview")

    def __init__(self) -> None:
        super().__init__()
        self._gpu_lines = BORDER + 1
        self._endings = Endings()
        self._sort: process_tree.Sort = process_tree.SORTS[0]
        self._opened: set[int] = set()  # the pids whose workers are shown
        self._order: list[Hashable] = []  # of the rows, while the cursor is among them

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Lines("progress")
        yield Panel(Lines("gpu-head"), Choices("gpu-list"), name="gpus")
        yield Lines("host-short")
        with Horizontal(id="history"):
            yield Panel(LineChart("work-chart"), name="work")
            yield Panel(LineChart("power-chart"), name="power")
            yield Panel(Lines("host-lines"), LineChart("host-chart"), name="host")
        yield Panel(Lines("process-head"), Choices("process-list"), name="processes")
        yield Panel(Lines("run-head"), Choices("run-list"), name="runs")
        yield Panel(Lines("event-lines"), name="events")
        yield KeyBar()

    def on_mount(self) -> None:
        self._list("run-list").focus()
        super().on_mount()

    # drawing ----------------------------------------------------------------------------------------------

    def draw(self, frame: Frame) -> None:
        view = self.view()
        if frame.numbers:
            self._lines("identity").show([self._identity(view)])
            self._lines("progress").show([header.progress(view, self.size.width)])
            self.set_class(header.banner(view) is None, "-calm")
            self._draw_gpus(view)
            self._draw_host(view)
            self._draw_runs(view)
        if frame.charts:
            self._draw_charts(view)
        if frame.lists:
            self._leave_empty_list(view)
            self._share_out(view)
            self._draw_processes(view)
            happened = self._lines("event-lines")
            happened.show(events.lines(view, max(1, happened.size.height), happened.size.width))
            self._panel("events").label("Events")
            self._draw_keys(view)

    def _share_out(self, view: View) -> None:
        """Give runs and processes the lines that they need; the charts, or without them the events, get the
        rest.
        """
        width, height = self.size
        tall = width >= 100 and height >= 32
        left = (
            height
            - (_BARS if tall or header.banner(view) is not None else _BARS - 1)
            - sum(bar.size.height for bar in self.query("TimeBar, #host-bar"))
            - self._gpu_lines
        )
        if width < 60 or height < 16:
            set_height(self._panel("runs"), max(_RUNS, height - self._gpu_lines - 2))
            return
        spare = left - _EVENTS - _RUNS_TALL - (_PROCESSES if view.gpus() else 0)
        left -= max(_LEAST_CHARTS, min(_CHARTS, spare)) if tall else 1
        listed = runs.ordered(view)
        least_runs, least = (
            (_RUNS, _PROCESSES) if tall else (_SEVERAL_RUNS if len(listed) > 1 else _RUNS, _PROCESSES_LOW)
        )
        events_too = tall or left >= least_runs + least + _EVENTS_LOW
        hidden = self.hoptui.preferences.hidden if tall else ()
        events_too = events_too and "overview.events" not in hidden
        processes_too = bool(view.gpus()) and (tall or left >= least_runs + least)
        processes_too = processes_too and "overview.processes" not in hidden
        self.set_class(not events_too, "-no-events")
        self.set_class(not processes_too, "-no-processes")
        if events_too:
            left -= _EVENTS if tall else _EVENTS_LOW
        all_runs = len(runs.rows(view, width - SIDES, -1)) + bool(listed) + BORDER
        tree = self._tree(view)
        every = len(process_tree.lines(view, tree, width, -1)) + bool(tree) + BORDER
        least = _PROCESSES if left >= _PROCESSES + _RUNS_TALL else least
        some = min(every, max(least, left - all_runs)) if processes_too else 0
        if some:
            set_height(self._panel("processes"), some)
        set_height(self._panel("runs"), max(_RUNS, min(all_runs, left - some)))

    def _draw_gpus(self, view: View) -> None:
        top, choices, panel = self._lines("gpu-head"), self._list("gpu-list"), self._panel("gpus")
        shown = view.gpus()
        width = choices.size.width
        cursor = choices.index if choices.has_focus else -1
        rows = gpus.table_rows(view, shown, width, users=True, cursor=cursor)
        top.display = bool(shown)
        least = _ELSE_TALL if self.size.height >= 32 else _ELSE_LOW
        visible = max(1, min(len(shown), max(MANY_GPUS, self.size.height - least)))
        self._gpu_lines = visible + BORDER + bool(shown)
        set_height(panel, self._gpu_lines)
        top.show([gpus.table_head(view, shown, width, users=True)])
        choices.show_rows(
            rows or [(Span(gpus.none(view), "dim"),)],
            len(rows),
            faded=view.node_stale,
            marked=choices.has_focus,
        )
        drivers = sorted({gpu.driver for gpu in shown if gpu.driver})
        title = ("GPUs", gpus.heading(shown, width), choices.part)
        panel.label(" · ".join(filter(None, title)), ", ".join(f"driver {d}" for d in drivers))

    def _draw_host(self, view: View) -> None:
        lines, short = self._lines("host-lines"), self._lines("host-short")
        if short.size.height:
            short.show([host.short(view, short.size.width)], faded=view.node_stale)
        if lines.size.width:
            room = self._panel("host").content_size.height - _BESIDE_CORES
            shown = host.lines(view, lines.size.width, min(host.MOST_STRIPS, max(0, room)))
            set_height(lines, len(shown))
            lines.show(shown, faded=view.node_stale)
        cores = f" · {view.node.cpus} cores" if view.node and view.node.cpus else ""
        self._panel("host").label(f"Host{cores}")

    def _draw_runs(self, view: View) -> None:
        top, choices = self._lines("run-head"), self._list("run-list")
        listed = runs.ordered(view)
        width = choices.size.width
        top.display = bool(listed)
        top.show([runs.head(view, width)])
        choices.keep([run.run for run in listed])
        cursor = choices.index if choices.has_focus else -1
        rows = runs.rows(view, width, cursor)
        choices.show_rows(rows, len(listed), faded=view.node_stale, marked=choices.has_focus)
        self._panel("runs").label(f"Runs · {choices.part or len(listed)}" if listed else "Runs")

    def _draw_processes(self, view: View) -> None:
        choices, top = self._list("process-list"), self._lines("process-head")
        listed = self._tree(view)
        width, count = choices.size.width, len(listed)
        choices.keep([one.id for one in listed])
        self._order = [one.id for one in listed] if choices.has_focus else []
        choices.can_focus = bool(count)
        top.display = bool(count)
        top.show([process_tree.head(view, width, self._sort)])
        rows = process_tree.lines(view, listed, width, choices.index if choices.has_focus else -1)
        choices.show_rows(rows, count, faded=view.node_stale, marked=choices.has_focus)
        told = (choices.part if count else "") or (f"{count} processes" if count > 1 else "")
        self._panel("processes").label(host.processes_title(view, "On the GPUs", told))

    def _draw_charts(self, view: View) -> None:
        shown = view.gpus()
        self.set_class(not shown, "-no-gpus")
        charted = self.query_one("#host-chart", LineChart)
        if not charted.size.height:
            self._panel("host").legend(())
        else:
            total = view.node.memory_total_bytes if view.node else 0
            lines = [ChartSeries("host", "cpu_percent", "CPU %", "1")]
            lines += [ChartSeries("host", "memory_used_bytes", "memory %", "3", 100 / total)] if total else []
            charted.plot(view, lines, SPAN_S, bounds=(0.0, 100.0))
            self._panel("host").legend([(line.label, line.ink) for line in lines])
        if not shown:
            return
        whose = ""
        if len(shown) > gpus.CHARTED:  # more than there are inks: the chosen one
            shown = shown[min(self._list("gpu-list").index, len(shown) - 1) :][:1]
            whose = f" · GPU {shown[0].index}"
        work, watts = gpus.work_curves(view, shown), gpus.power_curves(shown)
        what = "Work" if len(shown) == 1 else "SM %" if work[0].metric == "sm_active" else "Busy %"
        for name, curves, bounds, title in (
            ("work", work, (0.0, 100.0), what),
            ("power", watts, None, "Power W"),
        ):
            chart = self.query_one(f"#{name}-chart", LineChart)
            if chart.size.height:
                chart.plot(view, curves, SPAN_S, bounds=bounds)
            self._panel(name).label(f"{title}{whose}")
            self._panel(name).legend([(line.label, line.ink) for line in curves] if len(curves) > 1 else ())

    def _draw_keys(self, view: View) -> None:
        opens = [picking("open")] if self._opens(view) else []
        self.query_one(KeyBar).show_actions([*opens, *self.key_actions("overview")])

    def _leave_empty_list(self, view: View) -> None:
        """Have the keys in the list that has something to choose."""
        if self._list("run-list").has_focus:
            if view.gpus() and view.node and not view.node.runs:
                self._list("gpu-list").focus()
            return
        emptied = {"gpu-list": not view.gpus(), "process-list": not host.processes(view)}
        if any(empty and self._list(name).has_focus for name, empty in emptied.items()):
            self._list("run-list").focus()

    def _identity(self, view: View) -> Line:
        node = view.node
        left = [Span(" hoptui  ", "title"), Span(numbers.clean(node.host, 40) if node else "", "strong")]
        right = [Span("   "), *header.state(view)] if view.link.state != "live" or view.replay else []
        counted = [v.state for v in view.store.vitals.values()]
        live = sum(state != "exited" for state in counted)
        summary = f"{live} running" if live else "no run is live"
        summary = "" if view.node_stale else summary  # how many there are now is not known
        clock = Span(f"   {numbers.clock(view.wall)} ", "dim")
        return (
            *left,
            GAP,
            Span(summary if node else "", "good" if live else "dim"),
            *right,
            *header.rate(view),
            clock,
        )

    # keys -------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        view = self.view()
        if action == "end_process":
            chosen = self._process(view) if self._list("process-list").has_focus else None
            ours = chosen is not None and bool(chosen.command and chosen.user)  # else it is always refused
            return ours and not view.read_only
        if action == "sort_processes":
            return bool(host.processes(view))
        if action == "fold":
            row = self._row(view) if self._list("process-list").has_focus else None
            return row is not None and bool(row.started)
        if action.startswith("next_list"):
            return sum(map(bool, (runs.ordered(view), view.gpus(), host.processes(view)))) > 1
        if action == "app.runs":
            return view.replay is None
        return action != "gpus" or bool(view.gpus())

    def _opens(self, view: View) -> bool:
        """Whether Enter opens something in the list that has the keys."""
        if self._list("process-list").has_focus:
            chosen = self._process(view)
            return chosen is not None and bool(chosen.run)
        return bool(runs.ordered(view) or view.gpus())

    def _process(self, view: View) -> GpuProcess | None:
        """The process under the cursor."""
        row = self._row(view)
        return row.gpu if row is not None else None

    def _row(self, view: View) -> process_tree.ProcessRow | None:
        chosen = self._list("process-list").chosen
        return next((one for one in self._tree(view) if one.id == chosen), None)

    def _tree(self, view: View) -> list[process_tree.ProcessRow]:
        """The rows of processes. Their order stays while the cursor is among them."""
        return process_tree.arranged(view, self._sort, self._opened, self._order)

    def action_sort_processes(self) -> None:
        """Sort by the next column."""
        sorts = process_tree.SORTS
        self._sort, self._order = sorts[(sorts.index(self._sort) + 1) % len(sorts)], []
        self.redraw()

    def action_fold(self) -> None:
        """Show what the chosen process has started, or hide it."""
        row = self._row(self.view())
        if row is not None and row.started:
            self._opened ^= {row.pid}
            self.redraw()

    def action_end_process(self) -> None:
        """Ask about the chosen process, hold it meanwhile, and signal that very one."""
        view = self.view()
        shown = self._process(view)
        if shown is None:
            return
        try:
            held = self._endings.hold(view, shown)
        except NotYoursError as error:
            self.hoptui.tell(str(error))
            return
        asked = self._endings.question(view, shown, held)

        def answered(yes: bool | None) -> None:
            with held:
                if yes:
                    self.hoptui.tell(self._endings.end(held, asked.number, self.hoptui.clock()))

        self.hoptui.push_screen(Confirm(asked.title, asked.question, asked.consequence), answered)

    def action_next_list(self, step: int) -> None:
        """Have the keys in the next list."""
        if step > 0:
            self.focus_next()
        else:
            self.focus_previous()

    def action_gpus(self) -> None:
        shown, at = self.view().gpus(), self._list("gpu-list").index
        if shown:
            self.hoptui.open_gpus(shown[min(at, len(shown) - 1)].uuid)

    def on_moved(self, event: Moved) -> None:
        event.stop()
        self.redraw()

    def on_descendant_focus(self) -> None:
        self.redraw()

    def on_picked(self, event: Picked) -> None:
        event.stop()
        if self._list("gpu-list").has_focus:
            self.action_gpus()
            return
        if self._list("process-list").has_focus:
            chosen = self._process(self.view())
            of_run = self.view().store.run(chosen.run) if chosen is not None and chosen.run else None
            if of_run is not None:
                self.hoptui.open_run(of_run)
            return
        run = self.view().store.run(str(self._list("run-list").chosen))
        if run is not None:
            self.hoptui.open_run(run)
