"""The screen of output: the newest lines that a process of a run has written to stdout and stderr."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from hoptui.domain.terminal_text import TextLine
from hoptui.model.outputs import FoundOutput, FoundStream
from hoptui.presentation import numbers
from hoptui.tui.actions import Action, bindings, picking
from hoptui.tui.app_protocol import EVERYTHING, Frame, Moved, Picked
from hoptui.tui.components import lines
from hoptui.tui.dialogs import FilterBox
from hoptui.tui.screen_base import RunPage, TextBox, set_height
from hoptui.tui.screens.output import content
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Span
from hoptui.tui.widgets import Choices, KeyBar, Lines, Panel

FORMS = "words that a line contains"


class OutputScreen(RunPage):
    """The output of the run with the id `run`: one stream of one rank.

    It follows the newest line until the cursor leaves the last one. `wanted` are words that a line contains.
    """

    BINDINGS = bindings("output")

    page = "output"
    run_id: str

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.rank = 0
        self.stream = 0
        self.wanted = ""
        self.follows = True
        self._shown: list[TextLine] = []

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Lines("choice")
        yield Panel(Choices("output-list"), name="output")
        yield KeyBar()

    def on_mount(self) -> None:
        self._list("output-list").focus()
        super().on_mount()

    # drawing ----------------------------------------------------------------------------------------------

    def draw_lists(self, view: View) -> None:
        self.hoptui.client.fetch_output(self.run_id, self.rank)
        found, stream = self._found(view), self._stream(view)
        choices, width = self._list("output-list"), self.size.width
        self._lines("choice").show([content.choice(found, self.stream, self.rank, width)])
        known = stream.lines if stream is not None else ()
        at = content.matching(known, self.wanted)
        self._shown = [known[i] for i in at]
        dropped = stream.dropped if stream is not None else 0
        choices.keep([dropped + i for i in at])
        if self.follows:
            choices.index = max(0, len(at) - 1)
        faded = view.link.state != "live"
        if at:
            choices.show_rows(content.rows(self._shown), len(at), faded=faded)
        else:
            why = f"no line contains {self.wanted!r}" if known else content.reason(view, found, stream)
            choices.show_rows([(Span(part, "dim"),) for part in lines.wrapped(why, choices.size.width)], 0)
        count = numbers.grouped(len(at))
        count = f"{count} of {numbers.grouped(len(known))}" if self.wanted else count
        earlier = "newest " * bool(stream is not None and stream.missing)
        title = ["Output", f"{earlier}{count}" if known else "", choices.part if at else ""]
        title += ["follows" if self.follows else "stands"] if at else []
        place = f"only {self.wanted}" if self.wanted else content.place(stream)
        self._panel("output").label(" · ".join(filter(None, title)), numbers.clean(place, max(20, width - 8)))

    def keys(self, view: View) -> list[Action]:
        return [*([picking("whole line")] if self._shown else []), *self.key_actions("output")]

    def _found(self, view: View) -> FoundOutput | None:
        found = view.store.outputs.get(self.run_id)
        return found if found is not None and found.rank == self.rank else None

    def _stream(self, view: View) -> FoundStream | None:
        return content.chosen(self._found(view), self.stream)

    # keys -------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        found = self.view().store.outputs.get(self.run_id)
        if action.startswith("rank"):
            return found is not None and len(found.ranks) > 1
        if action == "other_stream":
            return found is not None and len(found.streams) > 1
        if action == "filter":
            return bool(self._shown or self.wanted)
        return True

    def action_rank(self, by: int) -> None:
        found = self.view().store.outputs.get(self.run_id)
        ring = list(found.ranks) if found is not None else []
        if ring:
            at = ring.index(self.rank) if self.rank in ring else 0
            self.rank, self.follows = ring[(at + by) % len(ring)], True
            self.redraw()

    def action_other_stream(self) -> None:
        self.stream, self.follows = self.stream + 1, True
        self.redraw()

    def action_filter(self) -> None:
        def narrow(typed: str) -> None:
            self.wanted = typed
            self.draw(EVERYTHING)

        self.app.push_screen(FilterBox(self.wanted, FORMS, narrow))

    def on_moved(self, event: Moved) -> None:
        self.follows = self._list("output-list").index >= len(self._shown) - 1

    def on_picked(self, event: Picked) -> None:
        event.stop()
        if event.index < len(self._shown):
            self.app.push_screen(OutputLineBox(self._shown[event.index]))


class OutputLineBox(TextBox):
    """One line of an output as a whole."""

    BINDINGS = bindings("help", "text")

    def __init__(self, line: TextLine) -> None:
        super().__init__()
        self._line = line

    def compose(self) -> ComposeResult:
        scroll = VerticalScroll(Lines("output-line-text"), id="output-line-scroll", can_focus=False)
        yield Panel(scroll, name="output-line", kind="box")

    def on_mount(self) -> None:
        view = self.hoptui.view(None)
        keys = (view.hint("text.down", "down"), view.hint("help.close", "closes"))
        self.query_one(Panel).label("A line", "   ".join(filter(None, keys)))
        self.redraw()

    def draw(self, frame: Frame) -> None:
        shown = self._lines("output-line-text")
        if shown.size.width:
            found = content.wrapped(self._line, shown.size.width)
            set_height(shown, len(found))
            shown.show(found)
