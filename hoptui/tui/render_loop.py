"""The base of the app: theme, symbols and keys, one client with its store, and the clock that draws.

`HoptuiApp` in `app` adds the screens.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from rich.style import Style
from textual import constants, on
from textual.app import App
from textual.css.query import NoMatches
from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import AwaitMount

from hoptui.client.client import Change
from hoptui.domain.pacing import REST_S
from hoptui.presentation import numbers
from hoptui.tui.actions import Action, for_textual, key_text
from hoptui.tui.alert_bell import AlertBell
from hoptui.tui.app_protocol import EVERYTHING, Frame, News, Pace, StoreChanged
from hoptui.tui.driver import TerminalDriver
from hoptui.tui.preferences import DARK, THEMES, Colourless, Preferences, inks, word_of
from hoptui.tui.run_control import Steering
from hoptui.tui.screen_base import Live, LiveScreen
from hoptui.tui.snapshot import SECOND, View, ViewerClient

LONGEST_TOLD = 600  # characters: a command to be copied by hand is whole


def configuration_problems(preferences: Preferences) -> str:
    """A sentence about the problems of the configuration, shown at the start; short, because toasts cover the
    screen.
    """
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
        for one in THEMES:
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
        self.tell(configuration_problems(self.preferences))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Those of Textual but for its own reading of NO_COLOR, which an explicit theme is stronger than."""
        kept = [f for f in super().get_line_filters() if not isinstance(f, Monochrome | NoColor)]
        return kept if self.colours else [*kept, Colourless()]

    def refresh_css(self, animate: bool = True) -> None:
        """Do nothing before the first screen: only the variables of the theme are needed then.

        Textual asks for the refresh because a theme was chosen. It would parse all style sheets, and parse
        them again for the screen.
        """
        if self.screen_stack:
            super().refresh_css(animate)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return DARK.variables

    @property
    def inks(self) -> dict[str, Style]:
        """The styles of the theme in use."""
        if self._inks[0] != self.theme:
            self._inks = (self.theme, inks(self.theme_variables))
        return self._inks[1]

    def keyed(self, action: Action) -> Action:
        """The action with the keys that it has now."""
        return action._replace(keys=self.preferences.keymap[action.id])

    def offered(self, actions: list[Action]) -> list[Action]:
        """What the key bar shows of a screen that would show `actions`: those that have a key."""
        return [keyed for action in actions if (keyed := self.keyed(action)).keys]

    def legend(self, actions: Iterable[Action]) -> str:
        """`enter send esc close`: the keys in the border of a dialog, for the actions that have a key and a
        label.
        """
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

    # keys -------------------------------------------------------------------------------------------------

    def action_next_theme(self) -> None:
        """The next theme of the same kind: a terminal with sixteen colours has only one."""
        names = [t.name for t in THEMES if t.ansi == self.current_theme.ansi]
        if len(names) > 1:
            self.choose_theme(word_of(names[(names.index(self.theme) + 1) % len(names)]))

    def choose_theme(self, word: str) -> None:
        """Have a theme from now on, as far as this sitting can."""
        self.tell(self.preferences.choose_theme(word))
        if self.preferences.at_once:
            self.theme = self.preferences.look.theme.name


RENEW_EVERY_S = 1.0
TURN_S = 0.0002
"""Seconds that a drawing may keep the client's thread waiting for the interpreter.

CPython's own 5 ms, twice for each command, made a command 4 ms late at the median on two busy cores.
"""

_FURTHER = (
    "overview",
    "charts.screen",
    "knob_editor.screen",
    "gpu.screen",
    "history.screen",
    "tuner.screen",
    "where.screen",
    "output.screen",
    "job.screen",
    "settings.screen",
)
"""Screens that are imported when they are opened, or one per beat after the first frame: the start does not
wait.
"""
_FURTHER_AFTER_S = 1.0


class DrawnApp(PersonalApp):
    """One client, its store, and the clock that draws from it. `HoptuiApp` explains `connect`, `clock` and
    `frames`.
    """

    alone = False
    """Whether the dashboard owns the process.

    Then imported modules are kept out of garbage collection. It would find no garbage in them, and would
    delay one key in fifty by 15 to 40 ms. Threads also take turns more often.
    """
    FURTHER_CSS: ClassVar[Sequence[str]] = ()
    """Those of `CSS_PATH` that the run screen does not need. They are read before another screen is made, or
    after the first frame."""

    def __init__(
        self,
        preferences: Preferences,
        connect: Callable[[Callable[[Change], None]], ViewerClient],
        clock: Callable[[], float],
        *,
        frames: bool,
    ) -> None:
        super().__init__(preferences)
        self.clock = clock
        self.client = connect(self._on_change)
        self.steering = Steering(self.client)
        self.pace = Pace()
        self.news = News()
        self.bell_of_alerts = AlertBell(preferences.config.alerts)
        self._frames = frames
        further = {Path(__file__).parent / name for name in self.FURTHER_CSS}
        self._further_styles = [path for path in self.css_path if path in further]
        for path in self.css_path:  # the order of the sheets counts: this one keeps their places
            self.stylesheet.add_source("", (str(path), ""))
        self.css_path = [path for path in self.css_path if path not in further]
        self._renew_at = 0.0
        self._changed = False
        self._fast = False
        self._further = list(_FURTHER)
        self._further_at = math.inf
        self._beat: Timer | None = None

    def _handle_exception(self, error: Exception) -> None:
        """Ignore a screen without widgets: it was about to open when the app ended, which is no error."""
        if not (self._exit and isinstance(error, NoMatches)):
            super()._handle_exception(error)

    def on_exit_app(self) -> None:
        """Mark the app as ended: a closed browser tab and a signal send this message without `exit`."""
        self._exit = True

    def read_further_styles(self) -> None:
        """Read the other style sheets. Textual would read all sheets again for one that is added."""
        while self._further_styles:
            path = self._further_styles.pop()
            self.stylesheet.add_source(path.read_text(encoding="utf-8"), (str(path), ""))

    def _get_screen(self, screen: Screen[Any] | str) -> tuple[Screen[Any], AwaitMount]:
        self.read_further_styles()
        return super()._get_screen(screen)

    def view(self, run: str | None) -> View:
        """The store and a run at this moment."""
        store = self.client.store
        now, node = store.now(), store.node
        wall = (now + node.wall_offset_ns) / SECOND if node else time.time()
        found = store.run(run) if run else None
        vital = store.vital(run) if run else None
        return View(
            store,
            self.client.link,
            found,
            vital,
            now,
            wall,
            self.clock(),
            keymap=self.preferences.keymap,
            read_only=self.client.read_only,
        )

    def on_mount(self) -> None:
        self.client.start()
        self._await_beat()

    def on_unmount(self) -> None:
        self.client.close()

    @on(Driver.SignalResume)
    def _draw_again(self) -> None:
        """The shell has brought the process back, on a terminal that shows nothing of it any more."""
        self.refresh(layout=True)
        self._draw(EVERYTHING)

    def _on_change(self, change: Change) -> None:
        """Called in the client's thread: it may post a message and nothing else."""
        if self.is_running:  # before that there is nobody to read it, and `on_mount` sees what has changed
            self.post_message(StoreChanged(change))

    def on_store_changed(self, event: StoreChanged) -> None:
        link = self.client.link
        if event.change == "link" and link.state == "failed":
            self.tell(link.reason, "error", timeout=30)
        if not self._changed:  # changes come in bunches: draw once for all that wait
            self._changed = True
            self.call_later(self._draw_changes)

    def _draw_changes(self) -> None:
        self._changed = False
        self.news.forget()
        self._draw(EVERYTHING)
        self._ring()
        self._await_beat()

    def _ring(self) -> None:
        """Ring for new alerts. The driver writes it between two frames."""
        if self.bell_of_alerts.silent or not isinstance(self._driver, TerminalDriver):
            return
        if signal := self.bell_of_alerts.signal(self.client.store.events, self.view(None).wall):
            self._driver.write(signal)

    def on_ready(self) -> None:
        """There is a layout to draw on."""
        if isinstance(self.screen, LiveScreen):
            self.screen.begin()
            self._draw(EVERYTHING)
        self._further_at = self.clock() + _FURTHER_AFTER_S
        if self.alone:
            sys.setswitchinterval(TURN_S)
        self._keep_imports()

    def _keep_imports(self) -> None:
        if self.alone:
            gc.freeze()
            gc.enable()

    @property
    def waiting(self) -> int:
        """Frames that the terminal has not taken yet."""
        return self._driver.waiting if isinstance(self._driver, TerminalDriver) else 0

    @property
    def calm(self) -> bool:
        """Whether nothing trains: then the readings of the node are drawn once a second, unless faster ones
        are requested.
        """
        living = any(vital.state != "exited" for vital in self.client.store.vitals.values())
        return not living and not self._fast and not self._further

    def _await_beat(self) -> None:
        """Have the frame clock beat next when it is to from now on."""
        if self._beat is not None:
            self._beat.stop()
        if self._frames:
            rest_s = self.pace.rest_s(self.clock(), self.view(None).wall, calm=self.calm)
            self._beat = self.set_timer(rest_s, self._on_beat)

    def _on_beat(self) -> None:
        self._beat = None
        self.tick()
        self._await_beat()

    def tick(self) -> None:
        """One beat of the frame clock."""
        now = self.clock()
        if isinstance(self._driver, TerminalDriver) and self._driver.gone:
            self.exit(return_code=129)
            return
        if now >= self._renew_at:
            self._renew_at = now + RENEW_EVERY_S
            self.steering.renew(now)
            for told in self.steering.answers(now):
                self.tell(told)
        due = self.pace.due(now, self.waiting)
        self.client.pace(REST_S if self.pace.crawls else 0.0)
        frame = self.news.of(due, self._moment()) if any(due) else due
        if any(frame):
            self.pace.drew(frame, now)
            self._draw(frame)
        elif now >= self._further_at and self._further_styles:
            self.read_further_styles()
            self.stylesheet.parse()
        elif now >= self._further_at and self._further:
            importlib.import_module(f"hoptui.tui.screens.{self._further.pop(0)}")
            self._keep_imports()

    def _moment(self) -> tuple[object, ...]:
        """What changes whenever the frame clock has something else to draw."""
        view = self.view(None)
        return view.store, view.store.changes, int(view.wall), view.link, self.pace.slow

    def _draw(self, frame: Frame) -> None:
        """Draw the visible full screen and the dialogs over it; hidden screens are drawn when they return."""
        stack = self.screen_stack  # empty as the app ends, when the clock may beat once more
        full = [i for i, screen in enumerate(stack) if isinstance(screen, LiveScreen)]
        for screen in stack[full[-1] if full else -1 :]:
            if isinstance(screen, Live) and screen.begun and screen.is_mounted:
                # A screen that is being taken down loses its widgets one by one while this clock still beats.
                with self.batch_update(), suppress(NoMatches):
                    screen.draw(frame)
