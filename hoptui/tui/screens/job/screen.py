"""The screen of a job: a run on several nodes, with a heat map of its ranks, and what is wrong with them."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import Click

from hoptui.domain.facts import Fact
from hoptui.domain.job_findings import findings
from hoptui.domain.job_history import JobHistory
from hoptui.domain.jobs import JobNode, JobState
from hoptui.presentation import jobs
from hoptui.presentation.time_ticks import SPANS
from hoptui.tui.actions import Action, bindings, picking
from hoptui.tui.app_protocol import Moved, Picked
from hoptui.tui.components import lines
from hoptui.tui.screen_base import RunPage, set_height
from hoptui.tui.screens.job import content, heat_maps
from hoptui.tui.screens.job.heat_maps import NodeGrid
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span
from hoptui.tui.widgets import BORDER, Choices, KeyBar, Lines, Panel

SHORTEST_S, LONGEST_S = 60.0, 300.0
LEAST_TABLE = 3
"""Lines of the table of ranks below which it is left out: its head and two ranks."""
MOST_FINDINGS = 10


class NodeMap(Choices):
    """The heat map of nodes × ranks. The cursor stands on a node, also in several columns."""

    BINDINGS = bindings("nodes")

    def __init__(self) -> None:
        super().__init__("node-map")
        self._grid = NodeGrid(1, 1, 1, 1, 1, False)
        self._shown: JobState | None = None

    def show_map(self, state: JobState, reading: str, grid: NodeGrid, *, faded: bool) -> None:
        """Draw the nodes of a state, with the cursor on the node where it was."""
        self.keep([node.index for node in state.nodes])
        self._grid, self._shown, self._count = grid, state, len(state.nodes)
        self._first = heat_maps.first_shown(grid, self._count, self.index)
        self.show(heat_maps.nodes_map(state, reading, grid, self.index, self._first), faded=faded)

    def show_text(self, sentences: list[str]) -> None:
        """Draw a text in the place of the map."""
        self._shown = None
        self.show_rows([(Span(part, "dim"),) for part in sentences], 0)

    @property
    def part(self) -> str:
        """`1–48 of 64` where there is no room for all nodes."""
        last = min(self._first + self._grid.places, self._count)
        return "" if last - self._first >= self._count else f"{self._first + 1}–{last} of {self._count}"

    def action_column(self, by: int) -> None:
        """Go to the node beside this one."""
        self.move_to(self.index + by * self._grid.lines)

    def action_page(self, direction: int) -> None:
        self.move_to(self.index + direction * max(1, self._grid.lines - 1))

    def on_resize(self) -> None:
        if self._count:
            self.post_message(Moved())

    def on_click(self, event: Click) -> None:
        if self._shown is None:
            return
        place = heat_maps.node_at(self._grid, self._shown, self._first, event.x, event.y)
        if place is not None:
            self.move_to(place)
            if event.chain > 1:
                self.post_message(Picked(self.index, clicked=True))


class JobScreen(RunPage):
    """The run with the id `run` on all of its nodes."""

    BINDINGS = bindings("job")

    page = "job"
    run_id: str

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.reading = next(iter(jobs.READINGS))
        self.span_s = LONGEST_S
        self._shades = heat_maps.ShadeCache()
        self._found: tuple[JobState | None, list[Fact]] = (None, [])  # of a state

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Lines("job-size")
        yield Lines("job-spread")
        yield Lines("job-totals")
        with Horizontal(id="maps"):
            yield Panel(NodeMap(), Lines("node-line"), Lines("rank-table"), name="nodes")
            yield Panel(Lines("time-map"), name="times")
        yield Panel(Lines("finding-lines"), name="findings")
        yield KeyBar()

    def on_mount(self) -> None:
        self._map.focus()
        super().on_mount()

    # drawing ----------------------------------------------------------------------------------------------

    def draw_lists(self, view: View) -> None:
        job = view.job
        state = job.state if job is not None else None
        self.set_class(state is None, "-nothing")
        if job is None or state is None:
            width = self._map.size.width
            self._map.show_text(lines.wrapped(content.nothing(view), width))
            self._panel("nodes").label("Nodes")
            return
        age_s = content.age_s(view, job)
        faded = age_s is not None and age_s > content.OLD_S
        width = self.size.width
        recorded = view.replay is not None
        clocks = view.replay.clocks if view.replay is not None else ()
        unit = content.throughput_unit(view)
        for name, line in (
            ("job-size", content.size(state, age_s, clocks, recorded=recorded, ended=view.exited)),
            ("job-spread", content.spread(state, self.reading, width)),
            ("job-totals", content.totals(state, unit, width)),
        ):
            self._lines(name).show([line], faded=faded)
        self._draw_findings(view, job, state)
        self._lay_out(state)
        self._draw_nodes(state, faded=faded, ended=view.exited)
        self._draw_times(job, state, faded=faded)

    def _draw_findings(self, view: View, job: JobHistory, state: JobState) -> None:
        if self._found[0] is not state:
            self._found = state, findings(state, job.moments)
        found = self._found[1]
        told = self._lines("finding-lines")
        bare = self.has_class("-low")  # without a border there is room for more
        most = max(2, min(MOST_FINDINGS, self.size.height // 8 + 2 * bare))
        shown = [*content.findings(found, told.size.width, most), *content.of_head(view)]
        set_height(self._panel("findings"), len(shown) + (0 if bare else BORDER))
        self._panel("findings").label(
            " · ".join(("What differs", str(len(found)))) if found else "What differs"
        )
        told.show(shown)

    def _lay_out(self, state: JobState) -> None:
        """A small job has the nodes with all ranks above the time. A large one has them beside each other."""
        needed = len(state.nodes) + content.table_lines(state) + 2 + BORDER
        few = self._both and needed <= self.query_one("#maps").size.height // 2
        if self.has_class("-few") != few:
            self.set_class(few, "-few")
            self.call_after_refresh(self.redraw)
        if few:
            set_height(self._panel("nodes"), needed)
        else:
            self._panel("nodes").styles.clear_rule("height")

    @property
    def _both(self) -> bool:
        """Whether there is room for the nodes and for the map over time."""
        return self.has_class("-wide") and self.has_class("-tall")

    def _draw_nodes(self, state: JobState, *, faded: bool, ended: bool) -> None:
        panel, node_map = self._panel("nodes"), self._map
        width, room = panel.content_size
        table = self._table(state, width, room)
        grid = heat_maps.grid(state, width, max(1, room - 1 - len(table)))
        set_height(node_map, grid.lines)
        node_map.show_map(state, self.reading, grid, faded=faded)
        chosen = self._chosen(state)
        line = [content.node_line(chosen, state, ended=ended)] if chosen else []
        self._lines("node-line").show(line, faded=faded)
        self._lines("rank-table").show(table, faded=faded)
        title = ["Nodes", node_map.part, jobs.title(self.reading)]
        if grid.together > 1:
            title.append(f"{grid.together} ranks in a cell")
        panel.label(" · ".join(filter(None, title)))
        panel.glyph_legend(heat_maps.legend(self.reading, width))

    def _table(self, state: JobState, width: int, room: int) -> list[Line]:
        """The ranks of all nodes if there is room for them below the map, else those of the chosen one."""
        if content.table_lines(state) + len(state.nodes) + 2 <= room:
            return [(), *content.table(state.nodes, width, named=True)]
        chosen = self._chosen(state)
        if chosen is None:
            return []
        found = content.table([chosen], width, named=False)
        tight = heat_maps.grid(state, width, max(1, room - 2 - len(found)))
        if tight.places >= len(state.nodes) and len(found) >= LEAST_TABLE:
            return [(), *found] if tight.lines + len(found) + 2 <= room else found
        return []

    def _draw_times(self, job: JobHistory, state: JobState, *, faded: bool) -> None:
        drawn, panel = self._lines("time-map"), self._panel("times")
        width, height = drawn.size
        if not height:
            return
        shown = heat_maps.time_map(state, job.moments, self.reading, width, height, self.span_s, self._shades)
        drawn.show(shown, faded=faded)
        size = jobs.group_size(state, height - 1)
        title = ["Ranks over time", jobs.title(self.reading)]
        panel.label(" · ".join([*title, f"{size} ranks a line"] if size > 1 else title))
        panel.glyph_legend(heat_maps.legend(self.reading, width))

    def keys(self, view: View) -> list[Action]:
        opens = [picking("open node")] if view.job is not None else []
        return [*opens, *self.key_actions("job")]

    # state ------------------------------------------------------------------------------------------------

    @property
    def _map(self) -> NodeMap:
        return self.query_one(NodeMap)

    def _chosen(self, state: JobState) -> JobNode | None:
        index = self._map.index
        return state.nodes[index] if index < len(state.nodes) else None

    # keys -------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "next_panel" or not self._both

    def action_reading(self, by: int) -> None:
        every = list(jobs.READINGS)
        self.reading = every[(every.index(self.reading) + by) % len(every)]
        self.redraw()

    def action_shorter(self) -> None:
        self.span_s = max((s for s in SPANS if SHORTEST_S <= s < self.span_s), default=self.span_s)
        self.redraw()

    def action_longer(self) -> None:
        self.span_s = min((s for s in SPANS if self.span_s < s <= LONGEST_S), default=self.span_s)
        self.redraw()

    def action_next_panel(self) -> None:
        self.toggle_class("-times")
        self.call_after_refresh(self.redraw)

    def on_picked(self, event: Picked) -> None:
        event.stop()
        job = self.view().job
        chosen = self._chosen(job.state) if job is not None and job.state is not None else None
        if job is not None and job.state is not None and chosen is not None:
            self.hoptui.open_node(chosen, job.state)
