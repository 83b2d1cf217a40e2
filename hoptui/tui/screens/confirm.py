"""A question before something that cannot be taken back."""

from __future__ import annotations

import textwrap

from textual.app import ComposeResult

from hoptui.tui.actions import bindings, key_text, of
from hoptui.tui.frame import EVERYTHING, Frame
from hoptui.tui.lines import Line, Span
from hoptui.tui.screens.box import LiveBox
from hoptui.tui.screens.live import set_height
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.panel import Panel

WIDTH, FRAME = 72, 6  # cells of the box, and of its border and padding


class Confirm(LiveBox[bool]):
    """Ends with True on `y` alone; everything else is a no. The consequence may have several lines."""

    BINDINGS = bindings("confirm")

    def __init__(self, title: str, question: str, consequence: str) -> None:
        super().__init__()
        self._title = title
        self.question = question
        self._consequence = consequence

    def compose(self) -> ComposeResult:
        yield Panel(Lines("question"), name="confirm", kind="box")

    def on_mount(self) -> None:
        self._panel("confirm").label(self._title)
        self.draw(EVERYTHING)

    def draw(self, frame: Frame) -> None:
        """Nothing in it changes but the width there is."""
        yes, no = (self.hoptui.keyed(action) for action in of("confirm"))
        keys: Line = (
            Span(key_text(yes.keys), "key"), Span(" yes   ", "dim"), Span(key_text(no.keys), "key"), Span(" no", "dim"),
        )  # fmt: skip
        width = max(8, min(WIDTH, self.app.size.width * 96 // 100) - FRAME)
        asked = [(Span(line, "strong"),) for line in textwrap.wrap(self.question, width)]
        told = [line for one in self._consequence.splitlines() for line in textwrap.wrap(one, width)]
        lines = [*asked, *((Span(line, "dim"),) for line in told), (), keys]
        set_height(self._lines("question"), len(lines))
        self._lines("question").show(lines)

    def action_yes(self) -> None:
        self.dismiss(True)

    def action_no(self) -> None:
        self.dismiss(False)
