"""The dashboard's app: one client, one frame clock, the screens and the themes."""

from __future__ import annotations

import gc
import importlib
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from textual.binding import ActiveBinding, BindingType
from textual.command import CommandPalette
from textual.css.query import NoMatches
from textual.screen import Screen

from hoptui.tui.actions import bindings
from hoptui.tui.board import Board
from hoptui.tui.commands import Palette, PaletteBox
from hoptui.tui.driver import TerminalDriver
from hoptui.tui.frame import EVERYTHING, TICK_S, Frame, News, Pace
from hoptui.tui.messages import StoreChanged
from hoptui.tui.panels import runs
from hoptui.tui.personal import PersonalApp
from hoptui.tui.preferences import HIDEABLE, Preferences
from hoptui.tui.screens.live import Live, LiveScreen
from hoptui.tui.screens.run import RunScreen
from hoptui.tui.staging import Staging
from hoptui.tui.steering import Steering
from hoptui.tui.view import SECOND, Connection, View, undoable
from hoptui.tui.wheel import Wheel
from hoptui.viewer.client import Change
from hoptui.viewer.config import Config
from hoptui.viewer.names import Ambiguous, NoSuchRun, find_run
from hoptui.wire.messages import RunState

RENEW_EVERY_S = 1.0
FAST_HZ = 10.0

_FURTHER = ("overview", "chart", "knob_editor", "gpus", "history", "tuner", "help", "settings")
"""Screens that are imported where they are opened, or one a beat once the first one is seen: nobody waits for them at the start."""
_FURTHER_AFTER_S = 1.0


class HoptuiApp(PersonalApp):
    """Shows a run, or the overview without one.

    `connect` makes the client from the callback that it is to call on a change of state; `config` is what the person has
    set; `clock` is seconds, monotonic. Without `frames` nothing is drawn by itself and `tick` is the caller's: for tests.
    """

    TITLE = "hoptui"
    CSS_PATH = [  # all at once: a sheet that is loaded later makes Textual read every sheet again
        "styles/tokens.tcss",
        "screens/overview.tcss",
        "screens/run.tcss",
        "screens/gpus.tcss",
        "screens/knob_editor.tcss",
        "screens/conflict.tcss",
        "screens/staged.tcss",
        "screens/history.tcss",
        "screens/tuner.tcss",
        "screens/chart.tcss",
        "screens/finder.tcss",
        "screens/confirm.tcss",
        "screens/help.tcss",
        "screens/settings.tcss",
        "styles/hidden.tcss",
    ]
    alone = False
    """Whether the process is ours. What has been imported then is kept out of the search for garbage, which would find none in
    it and make one key in fifty wait for 15 to 40 ms."""

    COMMANDS = {Palette}
    BINDINGS: ClassVar[list[BindingType]] = bindings("everywhere")
    AUTO_FOCUS = None

    def __init__(
        self,
        connect: Callable[[Callable[[Change], None]], Connection],
        run: str | None = None,
        *,
        config: Config | None = None,
        clock: Callable[[], float] = time.monotonic,
        frames: bool = True,
    ) -> None:
        super().__init__(Preferences(config or Config()))
        self.clock = clock
        self.client = connect(self._on_change)
        self.steering = Steering(self.client)
        self.staging = Staging()
        self.wheel = Wheel(self.client)
        self.pace = Pace()
        self.news = News()
        self._boards: dict[str | None, Board] = {}
        self.worked: dict[str, ActiveBinding] = {}
        self._asked = run
        self._frames = frames
        self._renew_at = 0.0
        self._changed = False
        self._fast = False
        self._further = iter(_FURTHER)
        self._further_at = math.inf

    def view(self, run: str | None) -> View:
        """The store and a run at this moment."""
        store = self.client.store
        now, node = store.now(), store.node
        wall = (now + node.wall_offset_ns) / SECOND if node else time.time()
        found = store.run(run) if run else None
        vital = store.vital(run) if run else None
        view = View(
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
        return view._replace(wheel=self.wheel.state(view, view.clock))

    def can_undo(self, view: View) -> bool:
        """Whether there is a change of the run to take back."""
        return undoable(view.commands()) is not None

    def furnish(self, screen: LiveScreen) -> None:
        """Give a full screen what all of them have in this app: no panels that the person has hidden."""
        for panel in HIDEABLE:
            screen.set_class(panel.id in self.preferences.hidden, panel.css_class)

    # life --------------------------------------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[Any]:
        if self._asked:
            return RunScreen(self._asked)
        from hoptui.tui.screens.overview import OverviewScreen

        return OverviewScreen()

    def on_mount(self) -> None:
        self.client.start()
        if not self._asked:
            self.client.watch(None)
        self._find_asked()  # the client may have set out before, and be there
        if self._frames:
            self.set_interval(TICK_S, self.tick)

    def on_unmount(self) -> None:
        self.client.close()

    def _on_change(self, change: Change) -> None:
        """Called in the client's thread: it may post a message and nothing else."""
        if self.is_running:  # before that there is nobody to read it, and `on_mount` sees what has changed
            self.post_message(StoreChanged(change))

    def on_store_changed(self, event: StoreChanged) -> None:
        if event.change == "node":
            self._find_asked()
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

    def on_ready(self) -> None:
        """There is a layout to draw on."""
        if isinstance(self.screen, LiveScreen):
            self.screen.begin()
            self._draw(EVERYTHING)
        self._further_at = self.clock() + _FURTHER_AFTER_S
        self._keep_imports()

    def _keep_imports(self) -> None:
        if self.alone:
            gc.freeze()
            gc.enable()

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
            for told in (*self.wheel.poll(now), *self.steering.answers(now)):
                self.tell(told)
        due = self.pace.due(now, driver.waiting if isinstance(driver, TerminalDriver) else 0)
        frame = self.news.of(due, self._moment()) if any(due) else due
        if any(frame):
            self._draw(frame)
        elif now >= self._further_at and (further := next(self._further, "")):
            importlib.import_module(f"hoptui.tui.screens.{further}")
            self._keep_imports()

    def _moment(self) -> tuple[object, ...]:
        """What changes whenever the frame clock has something else to draw."""
        view = self.view(None)
        return view.store, view.store.changes, int(view.wall), view.link, self.pace.slow

    def _draw(self, frame: Frame) -> None:
        """Draw the full screen that is seen, and the box over it; what is hidden is drawn when it comes back."""
        behind = next(s for s in reversed(self.screen_stack) if isinstance(s, LiveScreen))
        for screen in dict.fromkeys((behind, self.screen)):
            if isinstance(screen, Live) and screen.begun and screen.is_mounted:
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
            self.tell(str(error), timeout=10)
            self.open_overview()
            return
        screen.run_id = found.run
        self.client.watch(found.run)

    def open_run(self, run: RunState) -> None:
        """Show a run instead of what is on screen."""
        self.client.watch(run.run)
        self._go(RunScreen(run.name, run.run))

    def has_other_run(self, here: str | None) -> bool:
        """Whether there is a run to go on to."""
        return any(run.run != here for run in runs.living(self.view(None)))

    def open_next_run(self, here: str | None, step: int) -> None:
        """Show the run after this one, or the one before."""
        listed = runs.living(self.view(None))
        other = runs.beside(listed, next((run for run in listed if run.run == here), None), step)
        if other is not None:
            self.open_run(other)

    def open_overview(self) -> None:
        """Show the node instead of what is on screen."""
        from hoptui.tui.screens.overview import OverviewScreen

        self.client.watch(None)
        self._go(OverviewScreen())

    def open_gpus(self, gpu: str, run: str | None = None) -> None:
        """Show all readings of a GPU, by its UUID, on top of what is on screen; with a run, only that run's GPUs."""
        from hoptui.tui.screens.gpus import GpusScreen

        self.push_screen(GpusScreen(gpu, run))

    def _go(self, screen: LiveScreen) -> None:
        """Put a full screen on top; the first one of all stays below, because Textual cannot replace it."""
        if len(self.screen_stack) > 1:
            self.switch_screen(screen)
        else:
            self.push_screen(screen)

    def edit_knob(self, run: str, knob: str) -> None:
        """Open the editor of a knob, on the value that is staged if there is one."""
        from hoptui.tui.screens.knob_editor import KnobEditor

        view, staged = self.view(run), self.staging.find(run, knob)
        found = view.knob(knob)
        if found is not None and view.run is not None:
            self.push_screen(KnobEditor(run, found, view.run.epoch, staged.value if staged else None))

    # keys --------------------------------------------------------------------------------------------------------------

    def action_leave(self) -> None:
        self.exit()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "sample_fast":
            node = self.client.store.node
            return not self.client.read_only and (self._fast or bool(node and node.gpus))
        return super().check_action(action, parameters)

    def action_help(self) -> None:
        """What can be done on the screen on top, and what it shows; again closes it."""
        from hoptui.tui.panels import help_page
        from hoptui.tui.screens.help import Help

        if isinstance(self.screen, Help):
            self.screen.dismiss(None)
        else:
            active = ((key, one.binding.id or "") for key, one in self.screen.active_bindings.items())
            view = self.view(None)
            self.push_screen(Help(help_page.page(active, view.keymap, read_only=view.read_only)))

    def action_command_palette(self) -> None:
        """Offer what works now: with the palette on top, hardly any key does."""
        if not isinstance(self.screen, CommandPalette):
            self.worked = self.screen.active_bindings
            self.push_screen(PaletteBox(id="--command-palette"))

    def action_settings(self) -> None:
        from hoptui.tui.screens.settings import SettingsScreen

        if not isinstance(self.screen, SettingsScreen):
            self.push_screen(SettingsScreen())

    def action_history(self) -> None:
        """The commands given to the run on screen, on the overview those given to all."""
        from hoptui.tui.screens.history import HistoryScreen

        if not isinstance(self.screen, HistoryScreen):
            self.push_screen(HistoryScreen(getattr(self.screen, "run_id", None)))

    def action_tuner(self) -> None:
        """What the tuner does to the run on screen."""
        from hoptui.tui.screens.tuner import TunerScreen

        run = getattr(self.screen, "run_id", None)
        if run is not None and not isinstance(self.screen, TunerScreen):
            self.push_screen(TunerScreen(run))

    def open_charts(self, run: str | None, *, find: bool) -> None:
        """Show the charts of a run, or of the node, as they were left; with `find`, what else could be charted too."""
        from hoptui.tui.screens.chart import ChartScreen

        screen = ChartScreen(run, self._boards.setdefault(run, Board()))
        self.push_screen(screen)

        def find_there() -> None:
            if self.screen is screen:  # it may have been left already
                screen.action_find()

        if find:
            screen.call_after_refresh(find_there)

    def action_charts(self) -> None:
        self.open_charts(getattr(self.screen, "run_id", None), find=True)

    def action_sample_fast(self) -> None:
        """Ask for fast sampling, or no longer; the header shows the rate there is."""
        self._fast = not self._fast
        self.client.sample(FAST_HZ if self._fast else 0.0)
        told = "GPUs are sampled at the usual rate"
        if self._fast:
            ends = self.view(None).hint("gpus.fast", "ends it")
            fast = f"GPUs are sampled {FAST_HZ:g} times a second while this is open"
            told = "; ".join(filter(None, (fast, ends)))
        self.tell(told, "information", timeout=3)

    def hide_or_show(self, panel: str) -> None:
        """Hide a panel of some screen, or show it again."""
        self.tell(self.preferences.hide_or_show(panel))
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                self.furnish(screen)
                screen.redraw()
