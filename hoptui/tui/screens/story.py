"""The box with the whole story of one command."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from hoptui.protocol.messages import CommandRecord
from hoptui.tui.actions import bindings, of
from hoptui.tui.copying import copy_again
from hoptui.tui.frame import Frame
from hoptui.tui.panels import history
from hoptui.tui.screens.box import TextBox
from hoptui.tui.screens.live import set_height
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.panel import Panel


class Story(TextBox):
    """Goes on being drawn: a command may be on its way, or its effect being measured. `older` are those that the store lacks."""

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
            shown = history.story(view, record, lines.size.width, known)
            set_height(lines, len(shown))
            lines.show(shown)

    def action_copy(self) -> None:
        view = self.hoptui.view(self._run)
        record = view.store.commands.get(self._command) or self._older.get(self._command)
        if record is not None:
            copy_again(self.hoptui, view, record)
