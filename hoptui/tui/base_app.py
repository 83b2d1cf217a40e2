"""The app as a person has set it: theme, signs, keys. What it shows is told in `app`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from rich.style import Style
from textual import constants
from textual.app import App
from textual.filter import LineFilter, Monochrome, NoColor
from textual.notifications import SeverityLevel

from hoptui.presentation import numbers
from hoptui.tui import themes
from hoptui.tui.actions import Action, for_textual, key_text
from hoptui.tui.driver import TerminalDriver
from hoptui.tui.preferences import Preferences

LONGEST_TOLD = 600  # characters: a command to be copied by hand is whole


def told(preferences: Preferences) -> str:
    """What is said at the start of what is wrong with the configuration, in one sentence: toasts lie over the screen."""
    problems = preferences.problems
    if len(problems) < 2:
        return "".join(problems)
    keys = preferences.keymap["app.settings"]
    where = f"{key_text(keys)} shows them" if keys else "Settings, in the command palette, shows them"
    return f"{len(problems)} things in the configuration are not as they were asked for: {where}"


class PersonalApp(App[None]):
    """`ascii`: draw with ASCII only. `inks` are the styles. `colours`: any. `mixes`: colours can be mixed."""

    def __init__(self, preferences: Preferences) -> None:
        self.preferences = preferences
        look = preferences.look
        driver = None if constants.DRIVER else TerminalDriver  # a web server has a driver of its own
        super().__init__(driver_class=driver, ansi_color=True if look.theme.ansi else None)
        for one in themes.THEMES:
            self.register_theme(one)
        self.theme = look.theme.name
        self.colours = look.colours
        self.mixes = not look.theme.ansi
        self.stylesheet.set_variables(self.get_css_variables())
        self._inks: tuple[str, dict[str, Style]] = ("", {})
        self.ascii = preferences.config.ascii
        self.set_class(self.ascii, "-ascii")
        self.set_keymap(for_textual(preferences.granted))
        if "SSH_CONNECTION" in os.environ:
            self.animation_level = "none"

    def on_mount(self) -> None:
        self.tell(told(self.preferences))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Those of Textual but for its own reading of NO_COLOR, which an explicit theme is stronger than."""
        kept = [f for f in super().get_line_filters() if not isinstance(f, Monochrome | NoColor)]
        return kept if self.colours else [*kept, themes.Colourless()]

    def refresh_css(self, animate: bool = True) -> None:
        """Before the first screen there is nothing to refresh: the theme's variables are set, and Textual, which asks for it
        because a theme was chosen, would read all sheets and forget them, to read them again for the screen."""
        if self.screen_stack:
            super().refresh_css(animate)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.DARK.variables

    @property
    def inks(self) -> dict[str, Style]:
        """The styles of the theme in use."""
        if self._inks[0] != self.theme:
            self._inks = (self.theme, themes.inks(self.theme_variables))
        return self._inks[1]

    def keyed(self, action: Action) -> Action:
        """The action with the keys that it has now."""
        return action._replace(keys=self.preferences.keymap[action.id])

    def offered(self, actions: list[Action]) -> list[Action]:
        """What the key bar shows of a screen that would show `actions`: those that have a key."""
        return [keyed for action in actions if (keyed := self.keyed(action)).keys]

    def legend(self, actions: Iterable[Action]) -> str:
        """`enter send  esc close`: what the border of a box tells of its keys, for the actions that have one and a label."""
        keyed = (self.keyed(action) for action in actions if action.label)
        return "  ".join(f"{key_text(action.keys)} {action.label}" for action in keyed if action.keys)

    def tell(
        self,
        sentence: str,
        severity: SeverityLevel = "warning",
        *,
        title: str = "",
        timeout: float | None = None,
    ) -> None:
        """Show a sentence for a while (`timeout` in seconds); nothing for an empty one."""
        if sentence:
            told = numbers.clean(sentence, LONGEST_TOLD)
            self.notify(told, title=title, severity=severity, timeout=timeout, markup=False)

    # keys --------------------------------------------------------------------------------------------------------------

    def action_next_theme(self) -> None:
        """The next theme of the same kind: a terminal with sixteen colours has only one."""
        names = [t.name for t in themes.THEMES if t.ansi == self.current_theme.ansi]
        if len(names) > 1:
            self.choose_theme(themes.word_of(names[(names.index(self.theme) + 1) % len(names)]))

    def choose_theme(self, word: str) -> None:
        """Have a theme from now on, as far as this sitting can."""
        self.tell(self.preferences.choose_theme(word))
        if self.preferences.at_once:
            self.theme = self.preferences.look.theme.name
