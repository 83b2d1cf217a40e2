"""A box with a title around lines and charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self, cast

from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.style import Style
from textual.widget import Widget

from hoptui.tui.styled_text import FULL, as_shown

if TYPE_CHECKING:
    from hoptui.tui.app_protocol import Appearance

BORDER, SIDES = 2, 4
"""The lines, and the cells of a line, that a panel takes for its border and blanks."""


class Panel(Vertical):
    """A bordered column of widgets; its texts are plain, whatever a run is called. `kind` is `panel` or `box`."""

    def __init__(self, *children: Widget, name: str, kind: str = "panel") -> None:
        super().__init__(*children, id=name, classes=kind)
        self._texts = ("", "")
        self._entries: tuple[tuple[str, str], ...] = ()
        self._engraved: Literal["title", "subtitle"] | None = None

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda theme: self._draw_legend())

    def on_unmount(self) -> None:
        """The subscription would keep it, and all that is in it, for as long as the app lives."""
        self.app.theme_changed_signal.unsubscribe(self)

    @property
    def title(self) -> str:
        return self._texts[0]

    def label(self, title: str, subtitle: str = "") -> None:
        """Set the texts in the border; equal ones cost nothing."""
        before, self._texts = self._texts, (title, subtitle)
        if before[0] != title:
            self._engrave("title", Content(self._shown(title)))
        if before[1] != subtitle:
            self._engrave("subtitle", Content(self._shown(subtitle)))
            self._entries = ()

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """Name the curves of a chart in the lower border, each after a stroke of its ink: (label, ink)."""
        if tuple(entries) != self._entries:
            self._entries = tuple(entries)
            self._engrave("subtitle", Content(self._shown(self._texts[1])))  # where there is none any more
            self._draw_legend()

    def _draw_legend(self) -> None:
        """In the colours of the theme; of a panel without a legend nothing."""
        parts = []
        for label, ink in self._entries:
            style = Style.from_rich_style(self._hoptui.inks[ink])
            parts += [
                Content.styled(f"{self._shown(FULL, ink)} ", style),
                Content(f"{self._shown(label)}   "),
            ]
        if parts:
            self._engrave("subtitle", Content.assemble(*parts).rstrip())

    def _engrave(self, which: Literal["title", "subtitle"], content: Content) -> None:
        """Put a text into the border. Textual would draw all that is in the panel again for it: this draws that line."""
        self._engraved = which
        setattr(self, f"border_{which}", content)
        self._engraved = None

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        width, height = self.outer_size
        if self._engraved is not None and height:
            edge = Region(0, 0 if self._engraved == "title" else height - 1, width, 1)
            regions = (edge.translate(-self.content_offset),)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def _shown(self, string: str, ink: str = "") -> str:
        app = self._hoptui
        return as_shown(string, ink, plain=app.ascii, colours=app.colours)

    @property
    def _hoptui(self) -> Appearance:
        return cast("Appearance", self.app)
