"""A question before something that cannot be taken back."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.screen import ModalScreen

from hoptui.tui.actions import bindings, key_text, of
from hoptui.tui.lines import Line, Span
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from hoptui.tui.app import HoptuiApp

WIDTH, FRAME = 72, 6  # cells of the box, and of its border and padding


class Confirm(ModalScreen[bool]):
    """Ends with True on `y` alone; everything else is a no. The consequence may have several lines."""

    BINDINGS = bindings("confirm")

    def __init__(self, title: str, question: str, consequence: str) -> None:
        super().__init__(classes="veil")
        self._title = title
        self.question = question
        self._consequence = consequence

    def compose(self) -> ComposeResult:
        yield Panel(Lines("question"), name="confirm", kind="box")

    def on_mount(self) -> None:
        self.query_one(Panel).label(self._title)
        app = cast("HoptuiApp", self.app)
        yes, no = (app.keyed(action) for action in of("confirm"))
        keys: Line = (
            Span(key_text(yes.keys), "key"), Span(" yes   ", "dim"), Span(key_text(no.keys), "key"), Span(" no", "dim"),
        )  # fmt: skip
        width = min(WIDTH, self.app.size.width * 96 // 100) - FRAME
        told = [line for one in self._consequence.splitlines() for line in textwrap.wrap(one, max(8, width))]
        asked = [(Span(line, "strong"),) for line in textwrap.wrap(self.question, max(8, width))]
        lines = [*asked, *((Span(line, "dim"),) for line in told), (), keys]
        self.query_one(Lines).styles.height = len(lines)
        self.query_one(Lines).show(lines)

    def action_yes(self) -> None:
        self.dismiss(True)

    def action_no(self) -> None:
        self.dismiss(False)
