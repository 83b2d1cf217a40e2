"""A widget that draws lines of spans: equal lines cost nothing, changed ones are refreshed one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from hoptui.tui.styled_text import Line, lay

if TYPE_CHECKING:
    from hoptui.tui.app_protocol import AppProtocol


DIM = Style(dim=True, bold=False)
"""What lies under a box, where its veil cannot be mixed in: its keys do not work."""


class Lines(Widget):
    """Draws the lines it was last shown, cut to its size, on the line API.

    `name` is its id. Lines are laid out when they are drawn, so a resize needs no new ones. `faded` draws everything in the ink of old
    values; `cursor` is the index of the line drawn as chosen, -1 for none.
    """

    ALLOW_SELECT = False

    def __init__(self, name: str, *, classes: str | None = None) -> None:
        super().__init__(id=name, classes=classes)
        self._lines: list[Line] = []
        self.faded = False
        self.cursor = -1
        self._style: Style | None = None

    @property
    def lines(self) -> list[Line]:
        return self._lines

    @property
    def text(self) -> str:
        """What is on screen, without style."""
        laid = (self._laid(y) for y in range(min(len(self._lines), self.size.height)))
        return "\n".join("".join(piece for piece, _ in pieces).rstrip() for pieces in laid)

    def show(self, lines: Sequence[Line], *, faded: bool = False, cursor: int = -1) -> bool:
        """Draw these lines from now on; refreshes only those that differ, and says whether any does."""
        old, restyled = self._lines, faded != self.faded
        changed = {
            i
            for i in range(max(len(lines), len(old)))
            if restyled or i >= len(old) or i >= len(lines) or old[i] != lines[i]
        }
        if cursor != self.cursor:
            changed |= {cursor, self.cursor} - {-1}
        self._lines, self.faded, self.cursor = list(lines), faded, cursor
        if changed:
            width, height = self.size
            regions = [Region(0, i, width, 1) for i in sorted(changed) if i < height]
            if regions:
                self.refresh(*regions)
        return bool(changed)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Textual finds out a widget's style from all that it lies in: once for all lines, and only if one of them is drawn."""
        self._style = None
        try:
            return super().render_lines(crop)
        finally:
            self._style = None

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self._style = self._style or self.rich_style
        if y >= len(self._lines):
            return Strip([Segment(" " * width, base)], width)
        app = self._hoptui
        inks = app.inks
        if y == self.cursor:
            ground = Color.parse(app.theme_variables["ink-cursor"]).rich_color
            base += Style(bgcolor=ground, bold=ground.is_default or None)  # what has no ground is bold
        pieces = self._laid(y)
        fade = inks["veiled" if self._veiled else "stale"] if self.faded else None
        over = DIM if not app.mixes and app.screen is not self.screen else None
        return Strip([Segment(text, base + (fade or inks[ink]) + over) for text, ink in pieces], width)

    def _laid(self, y: int) -> list[tuple[str, str]]:
        app = self._hoptui
        return lay(self._lines[y], self.size.width, plain=app.ascii, colours=app.colours)

    @property
    def _veiled(self) -> bool:
        """Whether something lies over its screen that dims it."""
        top = self.app.screen
        return top is not self.screen and top.styles.background.a > 0

    @property
    def _hoptui(self) -> AppProtocol:
        return cast("AppProtocol", self.app)
