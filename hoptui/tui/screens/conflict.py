"""The box that opens where a knob was changed by somebody else while a person was about to change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from textual.app import ComposeResult
from textual.screen import ModalScreen

from hoptui.tui.actions import bindings, key_text, of
from hoptui.tui.panels import editor
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.panel import Panel
from hoptui.viewer import format as text
from hoptui.wire.knobs import KnobState, KnobValue

if TYPE_CHECKING:
    from hoptui.tui.app import HoptuiApp

Choice = Literal["theirs", "mine", "back"]


class Conflict(ModalScreen[Choice]):
    """Three ways on: leave `theirs` in effect, set `mine` over it, or go back to think. `began` is the value of before both."""

    BINDINGS = bindings("conflict")

    def __init__(self, knob: KnobState, began: KnobValue, mine: KnobValue) -> None:
        super().__init__(classes="veil")
        self._knob = knob
        self._began = began
        self._mine = mine

    def compose(self) -> ComposeResult:
        yield Panel(Lines("sides"), name="conflict", kind="box")

    def on_mount(self) -> None:
        self.query_one(Panel).label(f"{text.clean(self._knob.spec.name, 40)} was changed meanwhile")
        keyed = cast("HoptuiApp", self.app).keyed
        keys = {a.label: key_text(keyed(a).keys) for a in of("conflict") if keyed(a).keys}
        lines = editor.sides(self._knob, self._began, self._mine, keys)
        self.query_one(Lines).styles.height = len(lines)
        self.query_one(Lines).show(lines)

    def action_choose(self, choice: Choice) -> None:
        self.dismiss(choice)
