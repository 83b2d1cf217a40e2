"""The help page over a screen, as long as it takes."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from hoptui.tui.actions import bindings
from hoptui.tui.frame_clock import Frame
from hoptui.tui.screen_base import TextBox, set_height
from hoptui.tui.screens.help import content
from hoptui.tui.screens.help.content import HelpPage
from hoptui.tui.widgets.panel import Panel
from hoptui.tui.widgets.text_block import Lines


class Help(TextBox):
    """Shows a page that was made when it was opened: keys do not change while it is read."""

    BINDINGS = bindings("help", "text")

    def __init__(self, page: HelpPage) -> None:
        super().__init__()
        self._page = page
        self._width = 0  # that the page is wrapped to

    def compose(self) -> ComposeResult:
        yield Panel(
            VerticalScroll(Lines("help-lines"), id="help-scroll", can_focus=False), name="help", kind="box"
        )

    def on_mount(self) -> None:
        view = self.hoptui.view(None)
        keys = (
            view.hint("text.down", "down"),
            view.hint("text.page_down", "more"),
            view.hint("help.close", "closes"),
        )
        self.query_one(Panel).label("Help", "   ".join(filter(None, keys)))
        self.redraw()

    def draw(self, frame: Frame) -> None:
        """Wrap the page to the width that there is."""
        shown = self.query_one(Lines)
        if shown.size.width != self._width:
            self._width = shown.size.width
            lines = content.lines(self._page, self._width)
            set_height(shown, len(lines))
            shown.show(lines)
