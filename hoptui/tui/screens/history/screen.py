"""The history screen: every command given to a run, newest first, with author, outcome and effect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from hoptui.model.command_history import Filter, again, named, newest_first
from hoptui.model.store import MOST_COMMANDS
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.authors import author_word
from hoptui.protocol.messages import CommandRecord
from hoptui.tui import note_box
from hoptui.tui.actions import Action, bindings, of, picking
from hoptui.tui.app_protocol import EVERYTHING, Frame, Moved, Picked
from hoptui.tui.dialogs import FilterBox
from hoptui.tui.screen_base import RunPage, TextBox, set_height
from hoptui.tui.screens.history import content
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Span
from hoptui.tui.widgets import Choices, KeyBar, Lines, Panel

if TYPE_CHECKING:
    from hoptui.tui.app_protocol import AppProtocol


def copy_again(app: AppProtocol, view: View, record: CommandRecord) -> None:
    """Ask the terminal to copy a line (OSC 52 works through SSH; some terminals refuse it), and show it for
    manual copying.
    """
    run = view.store.run(record.run)
    if run is None:
        app.tell("its run is no longer known")
        return
    line = again(record, named(run, view.node))
    app.copy_to_clipboard(line)
    title = "Copied from the recording" if view.replay else "Copied, if the terminal lets it"
    app.tell(line, "information", title=title, timeout=10)


MOST_NOTE_LINES = 3
FORMS = "words that are said of a command, stage:applied, by:ana"


class HistoryScreen(RunPage):
    """The commands of the run with the id `run`, or of all runs without one.

    The store holds the newest `MOST_COMMANDS`. At the end of the list, as many older ones are read from the
    recordings.
    """

    BINDINGS = bindings("history")

    page = "history"

    def __init__(self, run: str | None) -> None:
        super().__init__(run)
        self.wanted = Filter()
        self._older: Mapping[str, CommandRecord] = {}
        self._looking = False  # for older ones
        self._all_read = False
        self._known: tuple[object, object, Filter, list[CommandRecord]] = (None, None, self.wanted, [])

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Panel(Lines("note-lines"), name="notes")
        yield Panel(Lines("history-head"), Choices("command-list"), name="commands")
        yield KeyBar()

    def on_mount(self) -> None:
        self._list("command-list").focus()
        super().on_mount()

    # drawing ----------------------------------------------------------------------------------------------

    def draw_lists(self, view: View) -> None:
        self._draw_notes(view)
        choices, shown, every = self._list("command-list"), self._shown(view), self._every(view)
        choices.keep([record.id for record in shown], from_top=True)
        cells = content.columns(view, shown, choices.size.width)
        nothing = (Span(self._nothing(bool(every)), "dim"),)
        rows = (
            content.CommandRows(view, shown, cells, choices.index, choices.size.width) if shown else [nothing]
        )
        choices.show_rows(rows, len(shown), faded=view.link.state != "live")
        head = self._lines("history-head")
        head.display = bool(shown)
        head.show([content.head(cells)] if shown else [])
        count = numbers.grouped(len(every))
        count = f"{numbers.grouped(len(shown))} of {count}" if self.wanted != Filter() else count
        newest = " newest" * self._has_older(view)
        title = ["Commands", f"{count}{newest}" if every else "", choices.part]
        asked = f"only {self.wanted}" if self.wanted != Filter() else self._where_older(view)
        self._panel("commands").label(" · ".join(filter(None, title)), numbers.clean(asked, 60))

    def _draw_notes(self, view: View) -> None:
        """The newest notes on the run, above its commands, where there are some and room for them."""
        panel, shown = self._panel("notes"), self._lines("note-lines")
        notes = view.run.notes if view.run is not None else ()
        lines = note_box.lines(notes, shown.size.width or self.size.width)[:MOST_NOTE_LINES]
        panel.set_class(not notes, "-empty")
        set_height(shown, len(lines))
        shown.show(lines)
        panel.label(f"Notes · {len(notes)}", view.hint("history.notes", "all of them, or a new one"))

    def keys(self, view: View) -> list[Action]:
        opens = [picking("story")] if self._shown(view) else []
        return [*opens, *self.key_actions("history")]

    def _nothing(self, filtered: bool) -> str:
        if filtered:
            return f"no command is {str(self.wanted)!r}"
        return "nobody has given a command yet"

    def _every(self, view: View) -> list[CommandRecord]:
        """The commands of the run, also of one that the node has forgotten meanwhile."""
        found = {**self._older, **view.store.commands} if self._older else view.store.commands
        return [c for c in found.values() if self.run_id in (None, c.run)]

    def _shown(self, view: View) -> list[CommandRecord]:
        """The commands that are wanted, looked through once for each change of them."""
        commands, older, wanted, found = self._known
        if commands is not view.store.commands or older is not self._older or wanted != self.wanted:
            found = newest_first(self._every(view), self.wanted)
            self._known = (view.store.commands, self._older, self.wanted, found)
        return found

    # older ones -------------------------------------------------------------------------------------------

    def _has_older(self, view: View) -> bool:
        """Whether there may be older commands: the store is full. A recording's store holds all of them."""
        return view.replay is None and len(view.store.commands) >= MOST_COMMANDS and not self._all_read

    def _where_older(self, view: View) -> str:
        """How to get at them: recordings are files of the node that the run is on."""
        if not self._has_older(view):
            return ""
        there = view.link.node
        return (
            f"older ones: hoptui history, on {there}" if there else "older ones come at the end of the list"
        )

    def _look_back(self, view: View) -> None:
        """Read as many again from the recordings, unless that is being done."""
        if self._looking or view.link.node or not self._has_older(view):
            return
        runs = [self.run_id] if self.run_id else [run.run for run in view.node.runs] if view.node else []
        self._looking = True
        self.run_worker(self._read_older(runs, {**self._older, **view.store.commands}))

    async def _read_older(self, runs: list[str], known: Mapping[str, CommandRecord]) -> None:
        from hoptui.model.recorded.store import (
            older_commands,  # here: it needs SQLite, a live dashboard does not
        )

        found, problem = await asyncio.to_thread(older_commands, runs, known.keys(), MOST_COMMANDS)
        self.hoptui.tell(problem)
        self._older = {**{record.id: record for record in found}, **self._older}
        self._looking, self._all_read = False, not found
        self.redraw()

    # keys -------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "app.notes":
            return self.run_id is not None
        if action == "copy":
            return bool(self._shown(self.view()))
        if action in ("filter", "next_stage", "next_person"):
            return bool(self._every(self.view()))
        return True

    def narrow(self, wanted: Filter) -> None:
        """Show only these commands from now on."""
        self.wanted = wanted
        self.draw(EVERYTHING)

    def action_filter(self) -> None:
        def narrow(typed: str) -> None:
            self.narrow(Filter.parse(typed))

        self.app.push_screen(FilterBox(str(self.wanted), FORMS, narrow))

    def action_next_stage(self) -> None:
        there = [
            vocabulary.stage_name(record)
            for record in newest_first(self._every(self.view()), self.wanted._replace(stage=""))
        ]
        self.narrow(self.wanted._replace(stage=_after(self.wanted.stage, there)))

    def action_next_person(self) -> None:
        there = newest_first(self._every(self.view()), self.wanted._replace(by=""))
        people = [author_word(record.origin) for record in there]
        self.narrow(self.wanted._replace(by=_after(self.wanted.by, people)))

    def action_copy(self) -> None:
        view = self.view()
        shown = self._shown(view)
        copy_again(self.hoptui, view, shown[min(self._list("command-list").index, len(shown) - 1)])

    def on_moved(self, event: Moved) -> None:
        view = self.view()
        if self._list("command-list").index >= len(self._shown(view)) - 1:
            self._look_back(view)

    def on_picked(self, event: Picked) -> None:
        event.stop()
        shown = self._shown(self.view())
        if event.index < len(shown):
            self.app.push_screen(Story(self.run_id, shown[event.index].id, self._older))


def _after(now: str, there: Iterable[str]) -> str:
    """The one after `now` of those that are there, nothing after the last."""
    ring = ["", *dict.fromkeys(there)]
    return ring[(ring.index(now) + 1) % len(ring)] if now in ring else ""


class Story(TextBox):
    """One command in full, drawn again while it is on its way or its effect is measured. `older`: not in the
    store.
    """

    BINDINGS = bindings("story", "text")

    def __init__(self, run: str | None, command: str, older: Mapping[str, CommandRecord]) -> None:
        super().__init__()
        self._older = older
        self._run = run
        self._command = command

    def compose(self) -> ComposeResult:
        scroll = VerticalScroll(Lines("story-lines"), id="story-scroll", can_focus=False)
        yield Panel(scroll, name="story", kind="box")

    def on_mount(self) -> None:
        self.query_one(Panel).label("A command", self.hoptui.legend(of("story")))
        self.redraw()

    def draw(self, frame: Frame) -> None:
        view = self.hoptui.view(self._run)
        known = {**self._older, **view.store.commands}
        record, lines = known.get(self._command), self._lines("story-lines")
        if record is not None and lines.size.width:
            shown = content.story(view, record, lines.size.width, known)
            set_height(lines, len(shown))
            lines.show(shown)

    def action_copy(self) -> None:
        view = self.hoptui.view(self._run)
        record = view.store.commands.get(self._command) or self._older.get(self._command)
        if record is not None:
            copy_again(self.hoptui, view, record)
