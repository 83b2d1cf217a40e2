"""The runs screen: recorded and live runs of this node as a table; marked ones are charted together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.app import ComposeResult

from hoptui.model.run_selection import Selection, WrongSelection, conditions, named_columns, unknown_columns
from hoptui.model.run_table import RecordedRuns, RunRow, live_runs, with_live
from hoptui.node.addresses import AddressError, addresses
from hoptui.presentation import numbers
from hoptui.tui.actions import Action, bindings, picking
from hoptui.tui.app_protocol import EVERYTHING, Frame, Moved, Picked
from hoptui.tui.components import header
from hoptui.tui.dialogs import Choice, FilterBox, Finder, Option
from hoptui.tui.screen_base import LiveScreen
from hoptui.tui.screens.runs import content
from hoptui.tui.screens.runs.content import TableState
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span
from hoptui.tui.widgets import Choices, KeyBar, Lines, Panel

AGAIN_S = 5.0  # interval of looking for changed recordings
FORMS = "tag=baseline lr<0.001 name~ppo duration>2h; all must hold"


class RunsScreen(LiveScreen):
    """The table. `table` is what a person has chosen in it."""

    BINDINGS = bindings("runs")

    def __init__(self, table: TableState) -> None:
        super().__init__()
        self.table = table
        self._recorded: list[RunRow] = []
        self._reader: RecordedRuns | None = None
        self._problem = ""
        self._read_at: float | None = None  # of the last time, on the app's clock
        self._reading = False

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Panel(Lines("table-head"), Choices("table-rows"), name="table")
        yield KeyBar()

    def on_mount(self) -> None:
        self._list("table-rows").focus()
        super().on_mount()

    # drawing ----------------------------------------------------------------------------------------------

    def draw(self, frame: Frame) -> None:
        view = self.view()
        if frame.numbers:
            self._lines("identity").show([(*content.identity(view), *header.corner(view))])
        if frame.lists:
            self._read(view)
            self._draw_table(view)
            self.query_one(KeyBar).show_actions(self._keys())

    def _draw_table(self, view: View) -> None:
        every, choices = self.rows(view), self._list("table-rows")
        groups = self.table.selection.of(every)
        shown = [row for _, rows in groups for row in rows]
        choices.keep([row.run for row in shown])
        width = choices.size.width
        columns = content.columns(shown, self.table.selection, width)
        lines = content.rows(groups, columns, self.table, choices.index)
        unknown = self._unknown(every)
        choices.show_rows(lines or self._nothing(every, unknown, width), len(shown))
        head = self._lines("table-head")
        head.display = bool(shown)
        head.show([content.head(columns, self.table.selection)])
        count = f"{len(shown)} of {len(every)}" if len(shown) < len(every) else f"{len(every)}"
        marked = f"{len(self.table.marked)} marked" if self.table.marked else ""
        title = ("Runs", count if every else "", choices.part, marked)
        there = f"recordings are on {view.link.node}" if view.link.node else self._problem
        asked = numbers.clean(there or " · ".join(filter(None, (content.asked(self.table), *unknown))), 100)
        self._panel("table").label(" · ".join(filter(None, title)), asked)

    def _nothing(self, every: list[RunRow], unknown: list[str], width: int) -> list[Line]:
        """Why there is no run in the table."""
        if unknown:
            return content.wrong_columns(every, unknown, width)
        nothing = "no run is selected" if every else "no run is known yet"
        nothing = "recordings are being read" if self._read_at is None and not every else nothing
        return [(Span(nothing, "dim"),)]

    def rows(self, view: View) -> list[RunRow]:
        """All runs, the live ones first."""
        node, store = view.node, view.store
        known = live_runs(node.runs, store.vital, store.latest, store.details) if node else []
        return with_live(self._recorded, known, view.wall)

    def _keys(self) -> list[Action]:
        opens = [picking("open")] if self._shown() else []
        return [*opens, *self.key_actions("runs")]

    def _shown(self) -> list[RunRow]:
        return [row for _, rows in self.table.selection.of(self.rows(self.view())) for row in rows]

    def _chosen(self) -> RunRow | None:
        chosen = self._list("table-rows").chosen
        return next((row for row in self._shown() if row.run == chosen), None)

    # recordings -------------------------------------------------------------------------------------------

    def _read(self, view: View) -> None:
        """Look for changed recordings, unless that is being done; those of another node cannot be read."""
        late = self._read_at is None or self.hoptui.clock() - self._read_at >= AGAIN_S
        if late and not self._reading and not view.link.node:
            self._reading = True
            self.run_worker(self._read_changed())

    async def _read_changed(self) -> None:
        self._recorded, self._problem = await asyncio.to_thread(self._read_all)
        self._reading, self._read_at = False, self.hoptui.clock()
        self.redraw()

    def _read_all(self) -> tuple[list[RunRow], str]:
        """The rows of the recordings, and why they cannot be read. In a thread."""
        try:
            if self._reader is None:
                self._reader = RecordedRuns(addresses().state)
            return self._reader.rows()
        except AddressError as error:
            return [], str(error)

    # keys -------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "unmark":
            return bool(self.table.marked)
        if action in ("filter", "sort", "group"):
            return bool(self.rows(self.view()))
        return action not in ("mark", "charts") or bool(self._shown())

    def action_mark(self) -> None:
        """Mark the run under the cursor, or unmark it, and go to the next one."""
        chosen = self._chosen()
        if chosen is not None:
            self.hoptui.tell(self.table.mark(chosen.run))
            self._list("table-rows").action_down()
            self.redraw()

    def action_unmark(self) -> None:
        self.table.marked.clear()
        self.redraw()

    def action_filter(self) -> None:
        self.app.push_screen(FilterBox(self.table.typed, FORMS, self._narrow))

    def _narrow(self, typed: str) -> str:
        """Show only these runs; what cannot be read yet changes nothing. Returns what is wrong with it."""
        try:
            wanted = conditions(typed)
        except WrongSelection as error:
            return str(error)
        self.table.typed = typed
        self.table.selection = self.table.selection._replace(conditions=wanted)
        self.draw(EVERYTHING)
        return "; ".join(self._unknown(self.rows(self.view())))

    def _unknown(self, every: list[RunRow]) -> list[str]:
        """Which columns of the filter no run has."""
        return unknown_columns(every, [one.column for one in self.table.selection.conditions])

    def action_sort(self) -> None:
        def chosen(column: str) -> Selection:
            now = self.table.selection
            return now._replace(sort=column, falling=now.sort == column != "" and not now.falling)

        self._ask("Sort by", "the newest first", self.table.selection.sort, chosen)

    def action_group(self) -> None:
        self._ask(
            "Group by",
            "no groups",
            self.table.selection.group,
            lambda column: self.table.selection._replace(group=column),
        )

    def _ask(self, title: str, nothing: str, now: str, chosen: Callable[[str], Selection]) -> None:
        """Ask for a column; the first option is none."""
        names = named_columns(self.rows(self.view()))
        options = [Option(nothing), *(Option(name, "now" if name == now else "") for name in names)]

        def answered(answer: Choice | None) -> None:
            if answer is not None:
                self.table.selection = chosen(names[answer.place - 1] if answer.place else "")
                self.redraw()

        self.app.push_screen(Finder(title, options, nothing="no run is known yet"), answered)

    def action_charts(self) -> None:
        """Chart the marked runs together, or the one under the cursor."""
        rows = {row.run: row for row in self.rows(self.view())}
        wanted = [rows[run] for run in self.table.marked if run in rows]
        chosen = self._chosen()
        if not wanted and chosen is not None:
            wanted = [chosen]
        self._chart(wanted)

    def _chart(self, wanted: list[RunRow]) -> None:
        """Chart runs: a live one lies below, else the first; the others come from their recordings."""
        view = self.view()
        known = [row for row in wanted if row.state not in (None, "exited") and view.store.run(row.run)]
        base = next(iter(known or wanted), None)
        if base is None:
            return
        others = [row for row in wanted if row is not base]
        missing = [row for row in (others if base in known else wanted) if row.path is None]
        if missing:
            names = ", ".join(numbers.clean(row.name or row.run, 40) for row in missing)
            self.hoptui.tell(f"there is no recording of {names} on this machine")
            return
        beside = [row.path for row in others if row.path is not None]
        self.hoptui.open_comparison(base.run, None if base in known else base.path, beside)

    def action_back(self) -> None:
        self.dismiss()

    def on_moved(self, event: Moved) -> None:
        event.stop()
        self.redraw()

    def on_picked(self, event: Picked) -> None:
        event.stop()
        chosen = self._chosen()
        if chosen is None:
            return
        run = self.view().store.run(chosen.run)
        if run is not None:
            self.hoptui.open_run(run)
        else:
            self._chart([chosen])
