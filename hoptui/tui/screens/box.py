"""A box over a screen that is drawn by the frame clock, as the full screens are."""

from __future__ import annotations

from typing import TypeVar

from textual.screen import ModalScreen

from hoptui.tui.messages import Moved
from hoptui.tui.screens.live import Live

Answer = TypeVar("Answer")


class LiveBox(ModalScreen[Answer], Live):
    """Drawn while it is on top. A `veil` dims what lies below."""

    def __init__(self, *, veil: bool = True) -> None:
        super().__init__(classes="veil" if veil else None)

    def action_close(self) -> None:
        self.dismiss(None)

    def on_moved(self, event: Moved) -> None:
        """The cursor of its list stands elsewhere."""
        event.stop()
        self.redraw()
