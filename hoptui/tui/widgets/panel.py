"""A box with a title around lines and charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from textual.containers import Vertical
from textual.content import Content
from textual.style import Style
from textual.widget import Widget

from hoptui.tui.lines import FULL, as_ascii

if TYPE_CHECKING:
    from hoptui.tui.app import HoptuiApp


class Panel(Vertical):
    """A bordered column of widgets; its texts are plain, whatever a run is called. `kind` is `panel` or `box`."""

    def __init__(self, *children: Widget, name: str, kind: str = "panel") -> None:
        super().__init__(*children, id=name, classes=kind)
        self._texts = ("", "")
        self._entries: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        return self._texts[0]

    def label(self, title: str, subtitle: str = "") -> None:
        """Set the texts in the border; equal ones cost nothing."""
        before, self._texts = self._texts, (title, subtitle)
        if before[0] != title:
            self.border_title = Content(self._shown(title))
        if before[1] != subtitle:
            self.border_subtitle = Content(self._shown(subtitle))
            self._entries = ()

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """Name the curves of a chart in the lower border, each after a stroke of its ink: (label, ink)."""
        if tuple(entries) == self._entries:
            return
        self._entries = tuple(entries)
        parts = []
        for label, ink in entries:
            style = Style.from_rich_style(self._hoptui.inks[ink])
            parts += [Content.styled(f"{self._shown(FULL)} ", style), Content(f"{self._shown(label)}   ")]
        self.border_subtitle = Content.assemble(*parts).rstrip()

    def _shown(self, string: str) -> str:
        return as_ascii(string) if self._hoptui.ascii else string

    @property
    def _hoptui(self) -> HoptuiApp:
        return cast("HoptuiApp", self.app)
