"""A question before something that cannot be taken back."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import ModalScreen

from hoptui.tui.actions import bindings
from hoptui.tui.lines import Line, Span
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.panel import Panel


class Confirm(ModalScreen[bool]):
    """Ends with True on `y` alone; everything else is a no."""

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
        keys: Line = (Span("y", "key"), Span(" yes   ", "dim"), Span("n", "key"), Span(" no", "dim"))
        lines = [(Span(self.question, "strong"),), (Span(self._consequence, "dim"),), (), keys]
        self.query_one(Lines).show(lines)

    def action_yes(self) -> None:
        self.dismiss(True)

    def action_no(self) -> None:
        self.dismiss(False)
