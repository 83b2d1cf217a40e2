"""The box that opens where a knob was changed by somebody else while a person was about to change it."""

from __future__ import annotations

from typing import Literal

from textual.app import ComposeResult

from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.presentation import numbers
from hoptui.tui.actions import bindings, key_text, of
from hoptui.tui.frame_clock import EVERYTHING, Frame
from hoptui.tui.screen_base import LiveBox, set_height
from hoptui.tui.screens.knob_editor import content
from hoptui.tui.widgets.panel import Panel
from hoptui.tui.widgets.text_block import Lines

Choice = Literal["theirs", "mine", "back"]


class Conflict(LiveBox[Choice]):
    """Three ways on: leave `theirs` in effect, set `mine` over it, or go back to think. `began` is the value of before both."""

    BINDINGS = bindings("conflict")

    def __init__(self, knob: KnobState, began: KnobValue, mine: KnobValue) -> None:
        super().__init__()
        self._knob = knob
        self._began = began
        self._mine = mine

    def compose(self) -> ComposeResult:
        yield Panel(Lines("sides"), name="conflict", kind="box")

    def on_mount(self) -> None:
        self._panel("conflict").label(f"{numbers.clean(self._knob.spec.name, 40)} was changed meanwhile")
        self.draw(EVERYTHING)

    def draw(self, frame: Frame) -> None:
        """Nothing in it changes: it is about what had been set when it opened."""
        keyed = self.hoptui.keyed
        keys = {a.label: key_text(keyed(a).keys) for a in of("conflict") if keyed(a).keys}
        lines = content.sides(self._knob, self._began, self._mine, keys)
        set_height(self._lines("sides"), len(lines))
        self._lines("sides").show(lines)

    def action_choose(self, choice: Choice) -> None:
        self.dismiss(choice)
