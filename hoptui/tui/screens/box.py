"""A box over a screen that is drawn by the frame clock, as the full screens are."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from textual.css.query import NoMatches
from textual.screen import ModalScreen

from hoptui.tui.frame import EVERYTHING, Frame

if TYPE_CHECKING:
    from hoptui.tui.app import HoptuiApp

Answer = TypeVar("Answer")


class LiveBox(ModalScreen[Answer]):
    """The app calls `draw` while it is on top, at the pace of the frame clock. A `veil` dims what lies below."""

    def __init__(self, *, veil: bool = True) -> None:
        super().__init__(classes="veil" if veil else None)

    @property
    def hoptui(self) -> HoptuiApp:
        return cast("HoptuiApp", self.app)

    def draw(self, frame: Frame) -> None:
        """Bring the parts that are due up to date."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw everything when the sizes of the widgets are known."""
        self.call_after_refresh(self._redraw)

    def on_screen_resume(self) -> None:
        self.redraw()

    def on_resize(self) -> None:
        self.redraw()

    def _redraw(self) -> None:
        with suppress(NoMatches):  # it may be on its way out, and loses its widgets one by one
            self.draw(EVERYTHING)
