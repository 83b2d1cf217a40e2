"""The settings: what is set and by whom; themes and panels can be changed here and are remembered."""

from __future__ import annotations

from textual.app import ComposeResult

from hoptui.presentation import numbers
from hoptui.settings import THEMES
from hoptui.tui.actions import bindings, picking
from hoptui.tui.app_protocol import Frame, Moved, Picked
from hoptui.tui.components import header
from hoptui.tui.screen_base import LiveScreen, set_height
from hoptui.tui.screens.settings import content
from hoptui.tui.styled_text import GAP, Span
from hoptui.tui.widgets import BORDER, Choices, KeyBar, Lines, Panel

LEAST_FOR_FILES = 20  # lines of the terminal: below that the list needs them


class SettingsScreen(LiveScreen):
    """A list of all settings. The user's file is shown, never written: see `hoptui.settings`."""

    BINDINGS = bindings("settings")

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Panel(Lines("setting-head"), Choices("setting-list"), name="settings")
        yield Panel(Lines("setting-detail"), name="chosen")
        yield Panel(Lines("setting-files"), name="files")
        yield KeyBar()

    def on_mount(self) -> None:
        self._list("setting-list").focus()
        self._panel("files").label("Files")
        super().on_mount()

    def draw(self, frame: Frame) -> None:
        self.set_class(self.size.height < LEAST_FOR_FILES, "-short")
        if frame.numbers:
            view = self.view()
            clock = Span(f"   {numbers.clock(view.wall)} ", "dim")
            self._lines("identity").show(
                [(Span(" hoptui  ", "title"), Span("settings", "strong"), GAP, *header.rate(view), clock)]
            )
        if frame.lists:
            shown, choices = content.items(self.hoptui.preferences), self._list("setting-list")
            self._lines("setting-head").show([content.head(choices.size.width)])
            choices.show_rows(content.rows(shown, choices.index, choices.size.width), len(shown))
            self._panel("settings").label(" · ".join(filter(None, ("Settings", choices.part))))
            chosen, detail = shown[choices.index], self._lines("setting-detail")
            self._panel("chosen").label(chosen.label)
            set_height(self._panel("chosen"), content.detail_lines(shown, detail.size.width) + BORDER)
            detail.show(content.detail(chosen, detail.size.width))
            places = self._lines("setting-files")
            files = content.files(self.hoptui.preferences, places.size.width)
            set_height(self._panel("files"), len(files) + BORDER)
            places.show(files)
            opens = [picking("change")] if chosen.enter else []
            self.query_one(KeyBar).show_actions([*opens, *self.key_actions("settings")])

    def action_back(self) -> None:
        self.dismiss()

    def on_moved(self, event: Moved) -> None:
        event.stop()
        self.redraw()

    def on_picked(self, event: Picked) -> None:
        event.stop()
        chosen = content.items(self.hoptui.preferences)[event.index]
        if chosen.kind == "panel":
            self.hoptui.hide_or_show(chosen.name)
        elif chosen.name == "theme":
            words = list(THEMES)
            self.hoptui.choose_theme(words[(words.index(chosen.value) + 1) % len(words)])
        self.redraw()
