"""The help page: keys, what the symbols mean, and the readings that matter most."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from hoptui.tui.actions import Action, bindings, key_text, of
from hoptui.tui.lines import Line, Span
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.panel import Panel
from hoptui.viewer import words
from hoptui.viewer.meanings import DERIVED, GPU

Sections = Sequence[tuple[str, Sequence[Action]]]
SECTIONS: Sections = (
    ("On a run", of("run")),
    ("On the overview", of("overview")),
    ("On a GPU", of("gpus")),
    ("In a list", of("list")),
    ("In the knob editor", of("editor")),
    ("Everywhere", of("everywhere")),
)
KEYS = 12
_LABELS = 18
_READINGS = (
    *(GPU[name] for name in ("busy", "sm_active", "tensor_active", "dram_active", "throttle")),
    *(
        DERIVED[name]
        for name in ("mfu", "mfu_estimated", "energy_per_unit_j", "idle_power_w", "memory_headroom_bytes")
    ),
)


class Help(ModalScreen[None]):
    """Made from the registry of actions and the words of the states."""

    BINDINGS = bindings("help")

    def __init__(self, sections: Sections = SECTIONS) -> None:
        super().__init__(classes="veil")
        self._sections = sections

    def compose(self) -> ComposeResult:
        yield Panel(VerticalScroll(Lines("help-lines"), id="help-scroll"), name="help", kind="box")

    def on_mount(self) -> None:
        self.query_one(Panel).label("Help", "↑ ↓ more   esc closes")
        self.query_one(VerticalScroll).focus()
        shown = lines(self._sections)
        self.query_one(Lines).styles.height = len(shown)
        self.query_one(Lines).show(shown)

    def action_close(self) -> None:
        self.dismiss(None)


def lines(sections: Sections = SECTIONS) -> list[Line]:
    """Every key with its sentence, then the symbols and the readings."""
    found: list[Line] = []
    for title, actions in sections:
        found.append((Span(title, "strong"),))
        found += [(Span(key_text(a.keys, every=True), "key", KEYS), Span(a.help)) for a in actions]
    found.append((Span("Symbols", "strong"),))
    states = [span for word in words.STATES.values() for span in _symbol(word)]
    stages = [
        span
        for stage in ("sent", "scheduled", "applied", "rejected")
        for span in _symbol(words.STAGES[stage])
    ]
    found += [(Span("runs", "dim", KEYS), *states), (Span("commands", "dim", KEYS), *stages)]
    found.append((Span("Readings", "strong"), Span(" (all of them, with what is good: d)", "dim")))
    return [*found, *((Span(m.label, "dim", _LABELS), Span(m.short)) for m in _READINGS)]


def _symbol(word: words.Word) -> Line:
    return Span(f"{word.symbol} ", "key"), Span(f"{word.text}  ", "dim")
