"""A box over a screen that is drawn by the frame clock, as the full screens are."""

from __future__ import annotations

from typing import TypeVar

from textual.containers import VerticalScroll
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


class TextBox(LiveBox[None]):
    """One with a text in a `VerticalScroll` that cannot be focused, and the keys of a pager: `bindings("text")`."""

    def action_scroll(self, lines: int) -> None:
        self._scroll.scroll_relative(y=lines, animate=False)

    def action_page(self, direction: int) -> None:
        self._scroll.scroll_relative(y=direction * max(1, self._scroll.size.height - 1), animate=False)

    def action_scroll_to(self, share: int) -> None:
        """The beginning (0) or the end (1)."""
        self._scroll.scroll_to(y=share * self._scroll.max_scroll_y, animate=False)

    @property
    def _scroll(self) -> VerticalScroll:
        return self.query_one(VerticalScroll)
