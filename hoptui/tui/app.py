"""The dashboard's app: one client, one frame clock, the screens and the themes. `run` is what the command line calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from rich.style import Style
from textual.app import App
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.screen import Screen

from hoptui.tui import themes
from hoptui.tui.actions import Action, bindings, of
from hoptui.tui.commands import Palette
from hoptui.tui.driver import TerminalDriver
from hoptui.tui.frame import EVERYTHING, TICK_S, Frame, Pace
from hoptui.tui.messages import StoreChanged
from hoptui.tui.screens.confirm import Confirm
from hoptui.tui.screens.gpus import GpusScreen
from hoptui.tui.screens.help import Help
from hoptui.tui.screens.knob_editor import KnobEditor
from hoptui.tui.screens.live import LiveScreen
from hoptui.tui.screens.overview import OverviewScreen
from hoptui.tui.screens.run import RunScreen
from hoptui.tui.steering import HOLD_S, Steering
from hoptui.tui.view import SECOND, Connection, View, undoable
from hoptui.viewer import format as text
from hoptui.viewer.client import Change, Client
from hoptui.viewer.names import Ambiguous, NoSuchRun, find_run
from hoptui.wire.messages import RunState

RENEW_EVERY_S = 1.0
FAST_HZ = 10.0
CONSEQUENCE = "It ends at its next boundary. It cannot be taken back."


class HoptuiApp(App[None]):
    """Shows a run, or the overview without one.

    `connect` makes the client from the callback that it is to call on a change of state; `clock` is seconds, monotonic.
    Without `frames` nothing is drawn by itself and `tick` is the caller's: for tests.
    """

    TITLE = "hoptui"
    CSS_PATH = [  # all at once: a sheet that is loaded later makes Textual read every sheet again
        "styles/tokens.tcss",
        "screens/overview.tcss",
        "screens/run.tcss",
        "screens/gpus.tcss",
        "screens/knob_editor.tcss",
        "screens/confirm.tcss",
        "screens/help.tcss",
    ]
    COMMANDS = {Palette}
    BINDINGS: ClassVar[list[BindingType]] = bindings("everywhere")
    AUTO_FOCUS = None

    def __init__(
        self,
        connect: Callable[[Callable[[Change], None]], Connection],
        run: str | None = None,
        *,
        plain: bool = False,
        theme: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        frames: bool = True,
    ) -> None:
        chosen = next((t for t in themes.THEMES if t.name == theme), None) or themes.choose(os.environ)
        super().__init__(driver_class=TerminalDriver, ansi_color=True if chosen.ansi else None)
        for one in themes.THEMES:
            self.register_theme(one)
        self.theme = chosen.name
        self.stylesheet.set_variables(self.get_css_variables())
        self._inks: tuple[str, dict[str, Style]] = ("", {})
        self.ascii = plain
        self.set_class(plain, "-ascii")
        self.clock = clock
        self.client = connect(self._on_change)
        self.steering = Steering(self.client)
        self.pace = Pace()
        self._asked = run
        self._frames = frames
        self._renew_at = 0.0
        self._changed = False
        self._fast = False
        if "SSH_CONNECTION" in os.environ:
            self.animation_level = "none"

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.DARK.variables

    @property
    def inks(self) -> dict[str, Style]:
        """The styles of the theme in use."""
        if self._inks[0] != self.theme:
            self._inks = (self.theme, themes.inks(self.theme_variables))
        return self._inks[1]

    def view(self, run: str | None) -> View:
        """The store and a run at this moment."""
        store = self.client.store
        now, node = store.now(), store.node
        wall = (now + node.wall_offset_ns) / SECOND if node else time.time()
        found = store.run(run) if run else None
        vital = store.vital(run) if run else None
        return View(store, self.client.link, found, vital, now, wall, self.clock())

    def can_undo(self, view: View) -> bool:
        """Whether there is a change of the run to take back."""
        return undoable(view.commands()) is not None

    def general(self) -> list[Action]:
        """The actions that work on every full screen."""
        return of("everywhere")

    def offered(self, actions: list[Action]) -> list[Action]:
        """What the key bar shows of a screen that would show `actions`."""
        return actions

    def furnish(self, screen: LiveScreen) -> None:
        """Put on a full screen what all of them have in this app: nothing more."""

    # life --------------------------------------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[Any]:
        return RunScreen(self._asked) if self._asked else OverviewScreen()

    def on_mount(self) -> None:
        self.client.start()
        if not self._asked:
            self.client.watch(None)
        if self._frames:
            self.set_interval(TICK_S, self.tick)

    def on_unmount(self) -> None:
        self.client.close()

    def _on_change(self, change: Change) -> None:
        """Called in the client's thread: it may post a message and nothing else."""
        self.post_message(StoreChanged(change))

    def on_store_changed(self, event: StoreChanged) -> None:
        if event.change == "node":
            self._find_asked()
        link = self.client.link
        if event.change == "link" and link.state == "failed":
            self.notify(text.clean(link.reason, 400), severity="error", markup=False, timeout=30)
        if not self._changed:  # changes come in bunches: draw once for all that wait
            self._changed = True
            self.call_later(self._draw_changes)

    def _draw_changes(self) -> None:
        self._changed = False
        self._draw(EVERYTHING)

    def tick(self) -> None:
        """One beat of the frame clock."""
        now = self.clock()
        driver = self._driver
        if isinstance(driver, TerminalDriver) and driver.gone:
            self.exit(return_code=129)
            return
        if now >= self._renew_at:
            self._renew_at = now + RENEW_EVERY_S
            self.steering.renew(now)
        frame = self.pace.due(now, driver.waiting if isinstance(driver, TerminalDriver) else 0)
        if any(frame):
            self._draw(frame)

    def _draw(self, frame: Frame) -> None:
        """Draw the screen on top; what is hidden is drawn when it comes back."""
        screen = self.screen
        if isinstance(screen, LiveScreen | KnobEditor) and screen.is_mounted:
            # A screen that is being taken down loses its widgets one by one while this clock still beats.
            with self.batch_update(), suppress(NoMatches):
                screen.draw(frame)

    # screens -----------------------------------------------------------------------------------------------------------

    def _find_asked(self) -> None:
        """Find the run that the person named, as soon as there is a node to look on."""
        node = self.client.store.node
        screen = next(s for s in reversed(self.screen_stack) if isinstance(s, LiveScreen))
        if not isinstance(screen, RunScreen) or screen.run_id is not None or node is None:
            return
        try:
            found = find_run(node, self.client.store.vitals, screen.asked)
        except (NoSuchRun, Ambiguous) as error:
            self.notify(text.clean(str(error), 300), severity="warning", markup=False, timeout=10)
            self.open_overview()
            return
        screen.run_id = found.run
        self.client.watch(found.run)

    def open_run(self, run: RunState) -> None:
        """Show a run instead of what is on screen."""
        self.client.watch(run.run)
        self._go(RunScreen(run.name, run.run))

    def open_overview(self) -> None:
        """Show the node instead of what is on screen."""
        self.client.watch(None)
        self._go(OverviewScreen())

    def open_gpus(self, gpu: str, run: str | None = None) -> None:
        """Show all readings of a GPU, by its UUID, on top of what is on screen; with a run, only that run's GPUs."""
        self.push_screen(GpusScreen(gpu, run))

    def _go(self, screen: LiveScreen) -> None:
        """Put a full screen on top; the first one of all stays below, because Textual cannot replace it."""
        if len(self.screen_stack) > 1:
            self.switch_screen(screen)
        else:
            self.push_screen(screen)

    def edit_knob(self, run: str, knob: str) -> None:
        """Open the editor of a knob."""
        found = self.view(run).knob(knob)
        if found is not None:
            self.push_screen(KnobEditor(run, found))

    def ask_to_stop(self, view: View) -> None:
        """Stop a run after a question that names it."""
        run = view.run
        if run is None:
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self.steering.stop(self.view(run.run))

        name = text.clean(run.name, 40)
        question = f"Stop {name} (pid {run.pid})?"
        self.push_screen(Confirm(f"Stop {name}", question, CONSEQUENCE), answered)

    # keys --------------------------------------------------------------------------------------------------------------

    def action_leave(self) -> None:
        self.exit()

    def action_help(self) -> None:
        if not isinstance(self.screen, Help):
            self.push_screen(Help())

    def action_sample_fast(self) -> None:
        """Ask for fast sampling, or no longer; the header shows the rate there is."""
        self._fast = not self._fast
        self.client.sample(FAST_HZ if self._fast else 0.0)
        told = f"GPUs are sampled {FAST_HZ:g} times a second while this is open; f ends it"
        self.notify(told if self._fast else "GPUs are sampled at the usual rate", timeout=3)

    def action_next_theme(self) -> None:
        """The next theme of the same kind: a terminal with sixteen colours has only one."""
        names = [t.name for t in themes.THEMES if t.ansi == self.current_theme.ansi]
        self.theme = names[(names.index(self.theme) + 1) % len(names)]


def run(run: str | None, *, ascii: bool = False, mouse: bool = True) -> int:  # noqa: A002 - as the option is called
    """Open the dashboard on a run (its name or the beginning of its id), or on the overview; blocks until the person leaves.

    Returns the exit code: 0, or 128 + the signal that ended it. No run is touched by leaving.
    """
    app = HoptuiApp(lambda on_change: Client(on_change=on_change), run, plain=ascii)
    app.run(mouse=mouse)
    for held in app.steering.held:
        known = app.client.store.run(held)
        name = text.clean(known.name if known else held, 60)
        print(
            f"{name} stays paused and goes on by itself within {HOLD_S:.0f} s; at once: hoptui resume {name}"
        )
    return app.return_code or 0


def replay(
    path: str,
    *,
    ascii: bool = False,  # noqa: A002 - as the option is called
    mouse: bool = True,
    theme: str | None = None,
) -> int:
    """Open a recording in the dashboard; blocks until the person leaves it. No daemon, GPU or run is needed.

    Returns the exit code: 0, or 128 + the signal that ended it.

    Raises:
        RecordingError: the file is no recording, cannot be read, or has nothing in it.
    """
    from hoptui.tui.replay import ReplayApp  # here, because it needs SQLite and a live dashboard does not
    from hoptui.viewer.replay import Replay

    app = ReplayApp(Replay(path), plain=ascii, theme=theme)
    app.run(mouse=mouse)
    return app.return_code or 0
