"""The help page: keys, and what the symbols mean."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import ModalScreen

from hoptui.tui.actions import Scope, bindings, key_text, of
from hoptui.tui.lines import Line, Span
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.panel import Panel
from hoptui.viewer import words

_SECTIONS: tuple[tuple[str, Scope], ...] = (
    ("On a run", "run"),
    ("In a list", "list"),
    ("In the knob editor", "editor"),
    ("Everywhere", "everywhere"),
)
KEYS = 12


class Help(ModalScreen[None]):
    """Made from the registry of actions and the words of the states."""

    BINDINGS = bindings("help")

    def __init__(self) -> None:
        super().__init__(classes="veil")

    def compose(self) -> ComposeResult:
        yield Panel(Lines("help-lines"), name="help", kind="box")

    def on_mount(self) -> None:
        self.query_one(Panel).label("Help", "esc closes")
        shown = lines()
        self.query_one(Lines).styles.height = len(shown)
        self.query_one(Lines).show(shown)

    def action_close(self) -> None:
        self.dismiss(None)


def lines() -> list[Line]:
    """Every key with its sentence, then the symbols."""
    found: list[Line] = []
    for title, scope in _SECTIONS:
        found.append((Span(title, "strong"),))
        found += [(Span(key_text(a.keys, every=True), "key", KEYS), Span(a.help)) for a in of(scope)]
    found.append((Span("Symbols", "strong"),))
    states = [span for word in words.STATES.values() for span in _symbol(word)]
    stages = [
        span
        for stage in ("sent", "scheduled", "applied", "rejected")
        for span in _symbol(words.STAGES[stage])
    ]
    return [*found, (Span("runs", "dim", KEYS), *states), (Span("commands", "dim", KEYS), *stages)]


def _symbol(word: words.Word) -> Line:
    return Span(f"{word.symbol} ", "key"), Span(f"{word.text}  ", "dim")
