"""The help page over a screen, as long as it takes, with the keys of a pager."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from hoptui.tui.actions import bindings
from hoptui.tui.frame import Frame
from hoptui.tui.panels import help_page
from hoptui.tui.panels.help_page import Page
from hoptui.tui.screens.box import LiveBox
from hoptui.tui.screens.live import set_height
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.panel import Panel


class Help(LiveBox[None]):
    """Shows a page that was made when it was opened: keys do not change while it is read."""

    BINDINGS = bindings("help")

    def __init__(self, page: Page) -> None:
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
            view.hint("help.down", "down"),
            view.hint("help.page_down", "more"),
            view.hint("help.close", "closes"),
        )
        self.query_one(Panel).label("Help", "   ".join(filter(None, keys)))
        self.redraw()

    def draw(self, frame: Frame) -> None:
        """Wrap the page to the width that there is."""
        shown = self.query_one(Lines)
        if shown.size.width != self._width:
            self._width = shown.size.width
            lines = help_page.lines(self._page, self._width)
            set_height(shown, len(lines))
            shown.show(lines)

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
