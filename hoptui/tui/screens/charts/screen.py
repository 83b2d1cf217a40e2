"""The charts screen: any series on one x axis, and another run or recording for comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs
from textual.app import ComposeResult
from textual.containers import Container

from hoptui.tui.actions import Action, bindings
from hoptui.tui.app_protocol import Frame
from hoptui.tui.charts.grid import PAGE, Board, Extent, Grid, Pick, arrange
from hoptui.tui.charts.line_chart import LABEL_CELLS, Dragged, Gesture, Pointed, TouchChart, Turned, holding
from hoptui.tui.charts.plot import Paper
from hoptui.tui.charts.raster import ACROSS
from hoptui.tui.dialogs import Choice, Finder, Option
from hoptui.tui.screen_base import LiveScreen, set_height
from hoptui.tui.screens.charts import content
from hoptui.tui.screens.charts.axes import Axis, Comparison, StepAxis
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Span
from hoptui.tui.widgets import KeyBar, Lines, Panel

if TYPE_CHECKING:
    from hoptui.model.reference_run import Companion
    from hoptui.tui.app_protocol import AppProtocol


async def ask_for_recording(
    app: AppProtocol,
    run: str,
    replayed: Path | None,
    *,
    comparing: bool,
    chosen: Callable[[Path | None], None],
) -> None:
    """Ask what to compare a run with, which may be `replayed` from a file, and call `chosen` with the file.

    It is called with None where nothing is to be compared any more, which is offered to who is `comparing`.
    """
    # Here, because it needs SQLite and a live dashboard does not:
    from hoptui.model.reference_run import comparable

    found = await asyncio.to_thread(comparable, run, replayed)
    ends = [Option("nothing", "end the comparison")] if comparing else []

    def typed(path: str) -> list[Option]:
        return [Option(path, "the file of this name")] if recording_file(path) else []

    def answered(answer: Choice | None) -> None:
        if answer is None:
            return
        if answer.place < len(ends):
            chosen(None)
        elif answer.place < len(ends) + len(found):
            chosen(found[answer.place - len(ends)].path)
        elif path := recording_file(answer.option.text):
            chosen(path)

    options = [*ends, *(Option(one.name, one.about) for one in found)]
    nothing = "there is no other recording; type the path of one"
    app.push_screen(Finder("Compare with", options, nothing=nothing, more=typed), answered)


def recording_file(typed: str) -> Path | None:
    """The file with this name. None if it does not exist or cannot be read."""
    try:
        path = Path(typed).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # name too long, folder closed; unknown home; no name
        return None


def recorded_view(view: View, base: Companion) -> View:
    """The view of a run that only its recording knows: it counts as ended there."""
    store, run = base.store, base.run
    vital = store.vital(run.run)
    ended = structs.replace(vital, state="exited") if vital is not None else None
    return view._replace(store=store, run=run, vital=ended, now=store.now())


ZOOM = 0.5
PAN = 0.25
LEGENDS = ((12, 3), (10, 2), (0, 1))  # a chart that has so many rows has a legend of so many lines


class ChartScreen(LiveScreen):
    """The charts of a run, by its id, or of the node without one. `board` is what they show; it outlives the
    screen.

    `base` is the recording of the run if the node does not know it. The screen closes it.
    """

    BINDINGS = bindings("chart")

    def __init__(self, run: str | None, board: Board, base: Companion | None = None) -> None:
        super().__init__()
        self._base = base
        self.run_id = run
        self.board = board
        self.comparison = Comparison()
        self._grid = Grid(0, 0)
        self._seen = (0, 1)  # the part of the x axis on screen

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Lines("span")
        with Container(id="charts"):
            for i in range(PAGE):
                panel = Panel(
                    Lines(f"legend-{i}", classes="legend"), TouchChart(f"chart-{i}"), name=f"slot-{i}"
                )
                panel.add_class("chart")
                yield panel
        yield Lines("nothing")
        yield KeyBar()

    def on_unmount(self) -> None:
        self.comparison.end()
        if self._base is not None:
            self._base.close()

    def view(self) -> View:
        view, base = self.hoptui.view(self.run_id), self._base
        return view if base is None else recorded_view(view, base)

    # drawing ----------------------------------------------------------------------------------------------

    def draw(self, frame: Frame) -> None:
        view = self._filled()
        self.comparison.renew(self.hoptui.clock())
        axis = self.axis(view)
        there = axis.extent(self._picks())
        if frame.charts:
            self._lay_out()
            self._draw_charts(view, axis, there)
        if frame.numbers:
            cross, sides = self.board.timeline.cross, self._sides(view)
            beside = content.beside_text(sides) if sides else ""
            step = (
                self.comparison.iteration(view, cross)
                if cross is not None and not self.board.by_step
                else None
            )
            self._lines("identity").show([content.identity(view, self.board, beside)])
            span = self._lines("span")
            seen, width = self._seen, span.size.width
            span.show([content.span_line(view, self.board, axis, seen, there, step, width)])
            self._draw_legends(view, axis, there)
        if frame.lists:
            self.query_one(KeyBar).show_actions([self._named(a) for a in self.key_actions("chart")])

    def _filled(self) -> View:
        """The view, with the charts to begin with on the board once there are any."""
        view = self.view()
        if self.run_id is None or view.run is not None:
            content.fill(self.board, view)
        return view

    def axis(self, view: View) -> Axis:
        """The x axis of this moment."""
        return self.comparison.axis(view, by_step=self.board.by_step)

    def _lay_out(self) -> None:
        """Give the charts on the page their places; only where these are others than before."""
        place = self.query_one("#charts", Container)
        grid = arrange(self.board, *place.size)
        self.set_class(not grid.shown, "-empty")
        for i in range(PAGE):
            panel = self._panel(f"slot-{i}")
            panel.set_class(i < len(grid.shown) and grid.shown[i] == self.board.index, "-chosen")
            panel.display = i < len(grid.shown)
            last = i == len(grid.shown) - 1
            panel.styles.column_span = 1 + last * (grid.columns * grid.rows - len(grid.shown))
        if (grid.columns, grid.rows) != (self._grid.columns, self._grid.rows):
            place.styles.grid_size_columns, place.styles.grid_size_rows = grid.columns, grid.rows
        if grid != self._grid:
            self.redraw()  # when the charts have their new sizes
        self._grid = grid
        if not grid.shown:
            hint = self.view().hint("chart.find", "finds something to chart")
            self._lines("nothing").show([(Span(f"no chart  {hint}", "dim"),)])

    def _draw_charts(self, view: View, axis: Axis, there: Extent) -> None:
        across = max((self._chart(i).dots for i in range(len(self._grid.shown))), default=1)
        x0, x1 = self.board.timeline.edges(there)
        x0, x1 = self._seen = holding(x0, x1, across)
        marks = content.marks(view, axis)
        for i, index in enumerate(self._grid.shown):
            chart, shown = self._chart(i), self.board.charts[index]
            found = content.entries(view, shown)
            chosen = "› " if index == self.board.index and len(self.board.charts) > 1 else ""
            self._panel(f"slot-{i}").label(f"{chosen}{content.title(found)}", content.units(found))
            if not chart.size.height:
                continue
            axis.look_closer(shown.picks, x0, x1 - 1, chart.dots)
            paper = Paper(
                x0,
                x1,
                ticks=tuple(axis.ticks(x0, x1, max(2, chart.dots // ACROSS // LABEL_CELLS))),
                marks=marks,
                cross=self.board.timeline.cross,
                bounds=content.bounds(found, log=shown.log),
                log=shown.log,
            )
            pens = content.pens(found, axis, others=len(self.comparison.companions))
            chart.draw(paper, pens, view.clock, smooth=self.board.smooth, faded=view.node_stale)

    def _draw_legends(self, view: View, axis: Axis, there: Extent) -> None:
        names = self._sides(view)
        (x0, x1), timeline = self._seen, self.board.timeline
        inside = timeline.cross is not None and x0 <= timeline.cross < x1
        now = not inside and timeline.mode != "frozen"
        at = timeline.cross if timeline.cross is not None and inside else there.newest if now else x1 - 1
        for i, index in enumerate(self._grid.shown):
            found = content.entries(view, self.board.charts[index])
            chart = self._chart(i)
            dot = max(1, (x1 - x0) // chart.dots)
            others = len(self.comparison.companions)
            values = content.values(view, found, axis, chart.curves, at, dot, now=now, others=others)
            legend = self._lines(f"legend-{i}")
            rows = self._panel(f"slot-{i}").size.height
            most = next(lines for least, lines in LEGENDS if rows >= least)
            lines = content.legend(found, values, others=names, width=max(1, legend.size.width), most=most)
            set_height(legend, max(1, len(lines)))
            legend.show(lines, faded=view.node_stale)

    def _sides(self, view: View) -> tuple[str, ...] | None:
        """What this run and those beside it are called, None where nothing is compared."""
        beside = [companion.run for companion in self.comparison.companions]
        return content.sides(view.run, beside) if view.run and beside else None

    def _named(self, action: Action) -> Action:
        frozen = self.board.timeline.mode == "frozen"
        labels = {
            "chart.freeze": "live" if frozen else "freeze",
            "chart.alone": "grid" if self.board.alone else "alone",
            "chart.smooth": "values" if self.board.smooth else "smooth",
            "chart.axis": "by time" if self.board.by_step else "by iteration",
        }
        return action._replace(label=labels.get(action.id, action.label))

    # keys -------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("choose", "alone", "remove", "log", "smooth"):
            return bool(self.board.charts)
        if action in ("by_step", "compare"):
            return self.run_id is not None
        return True

    def _moved(self) -> Extent:
        """What there is to see; something about it is about to change."""
        self.redraw()
        return self.axis(self.view()).extent(self._picks())

    def action_find(self) -> None:
        found = content.catalog(self._filled())
        options = [Option(e.title, " · ".join(filter(None, (e.unit, e.pick.metric)))) for e in found]

        def answered(answer: Choice | None) -> None:
            if answer is not None:
                pick = found[answer.place].pick
                self._say(self.board.join(pick) if answer.together else self.board.add([pick]))

        self.app.push_screen(
            Finder(
                "Chart a series", options, nothing="nothing is known yet", together=bool(self.board.charts)
            ),
            answered,
        )

    def action_choose(self, by: int) -> None:
        self.board.move(by)
        self.redraw()

    def action_alone(self) -> None:
        self.board.alone = not self.board.alone
        self.redraw()

    def action_remove(self) -> None:
        self.board.remove()
        self.redraw()

    def action_merge(self) -> None:
        self._say(self.board.merge())

    def action_split(self) -> None:
        self._say(self.board.split())

    def action_log(self) -> None:
        if self.board.chosen is not None and self.board.index in self._grid.shown:
            drawn = self._chart(self._grid.shown.index(self.board.index))
            self.board.chosen.log = not drawn.logarithmic
        self.redraw()

    def action_smooth(self) -> None:
        self.board.smooth = not self.board.smooth
        self.redraw()

    def action_cross(self, cells: int) -> None:
        chart = self._chart(0)
        self.board.timeline.move_cross(cells * ACROSS / max(1, chart.dots), self._moved())

    def action_pan(self, direction: int) -> None:
        self.board.timeline.pan(direction * PAN, self._moved())

    def action_zoom(self, direction: int) -> None:
        self.board.timeline.zoom(ZOOM**direction, self._moved())

    def action_all(self) -> None:
        self.board.timeline.all()
        self.redraw()

    def action_live(self) -> None:
        self.board.timeline.live()
        self.redraw()

    def action_freeze(self) -> None:
        self.board.timeline.freeze(self._moved())

    def action_by_step(self) -> None:
        """The same part on the other axis."""
        view = self.view()
        before = self.axis(view)
        there = before.extent(self._picks())
        self.board.by_step = not self.board.by_step
        after = self.axis(view)
        if type(after) is type(before):
            self.board.by_step = not self.board.by_step
            self._say("no iteration is known yet")
            return
        place = after.nearest if isinstance(after, StepAxis) else before.stamp
        self.board.timeline.remap(place, there, after.least)
        self.redraw()

    def action_back(self) -> None:
        if self.board.timeline.cross is not None:
            self.board.timeline.cross = None
            self.redraw()
        else:
            self.dismiss()

    # comparing --------------------------------------------------------------------------------------------

    async def action_compare(self) -> None:
        """Choose one more recording to lie beside this run, or end the comparison."""
        view, comparing = self.view(), bool(self.comparison.companions)
        replayed = Path(view.replay.path) if view.replay else None
        await ask_for_recording(
            self.hoptui, self.run_id or "", replayed, comparing=comparing, chosen=self._compare_or_end
        )

    def _compare_or_end(self, path: Path | None) -> None:
        if path is None:
            self.comparison.end()
            self.redraw()
        else:
            self.compare(path)

    def compare(self, path: Path) -> None:
        """Show one more recording beside this run, and the whole of both."""
        self.compare_all([path])

    def compare_all(self, paths: Sequence[Path]) -> None:
        """Show several recordings beside this run, and report what is wrong with the others."""
        opened = [self.comparison.open(path, self.hoptui.clock()) for path in paths]
        if ("" in opened or self._base is not None) and self.board.timeline.mode == "live":
            self.board.timeline.all()
        self._say("; ".join(filter(None, opened)))

    # mouse ------------------------------------------------------------------------------------------------

    def on_pointed(self, event: Pointed) -> None:
        self._choose_touched(event)
        x0, x1 = self._seen
        self.board.timeline.cross = x0 + round(event.share * (x1 - x0))
        self.redraw()

    def on_turned(self, event: Turned) -> None:
        x0, x1 = self._seen
        at = x0 + round(event.share * (x1 - x0))
        self.board.timeline.zoom(ZOOM**event.direction, self._moved(), at=at)

    def on_dragged(self, event: Dragged) -> None:
        self._choose_touched(event)
        self.board.timeline.pan(-event.share, self._moved())

    def _choose_touched(self, event: Gesture) -> None:
        touched = next((i for i in range(len(self._grid.shown)) if self._chart(i) is event.chart), None)
        if touched is not None:
            self.board.index = self._grid.shown[touched]

    def _picks(self) -> list[Pick]:
        return [pick for chart in self.board.charts for pick in chart.picks]

    def _say(self, problem: str) -> None:
        self.hoptui.tell(problem)
        self.redraw()

    def _chart(self, slot: int) -> TouchChart:
        return self.query_one(f"#chart-{slot}", TouchChart)
