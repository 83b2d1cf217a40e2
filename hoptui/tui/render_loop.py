"""The app as its clock drives it: what has changed is drawn, at a pace that suits the terminal and what there is to see.

Which screens there are, and what the keys do, is told in `app`.
"""

from __future__ import annotations

import gc
import importlib
import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from textual import on
from textual.css.query import NoMatches
from textual.driver import Driver
from textual.timer import Timer

from hoptui.client.client import Change
from hoptui.domain.pacing import REST_S
from hoptui.tui.base_app import PersonalApp
from hoptui.tui.driver import TerminalDriver
from hoptui.tui.frame_clock import EVERYTHING, Frame, News, Pace
from hoptui.tui.messages import StoreChanged
from hoptui.tui.preferences import Preferences
from hoptui.tui.run_control import Steering
from hoptui.tui.screen_base import Live, LiveScreen
from hoptui.tui.snapshot import SECOND, View, ViewerClient

RENEW_EVERY_S = 1.0
TURN_S = 0.0002
"""How long a drawing may keep the client's thread waiting for the interpreter; CPython's own 5 ms, on the way out and again on the
way back, made a command some 4 ms late at the median on two busy cores."""

_FURTHER = ("overview", "charts", "knob_editor", "gpu", "history", "tuner", "help", "settings")
"""Screens that are imported where they are opened, or one a beat once the first one is seen: nobody waits for them at the start."""
_FURTHER_AFTER_S = 1.0


class DrawnApp(PersonalApp):
    """One client, its store, and the clock that draws from it. `connect`, `clock` and `frames` are those of `HoptuiApp`."""

    alone = False
    """Whether the process is ours. What has been imported then is kept out of the search for garbage, which would find none in
    it and make one key in fifty wait for 15 to 40 ms; and threads take turns more often."""

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
        self._frames = frames
        self._renew_at = 0.0
        self._changed = False
        self._fast = False
        self._further = list(_FURTHER)
        self._further_at = math.inf
        self._beat: Timer | None = None

    def _handle_exception(self, error: Exception) -> None:
        """A screen that was about to open when the app was told to leave gets no widgets, which is no fault of anybody."""
        if not (self._exit and isinstance(error, NoMatches)):
            super()._handle_exception(error)

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
        self._await_beat()

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
        """Whether nothing trains: the machine's own readings are then drawn once a second, unless they are asked for faster."""
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
        elif now >= self._further_at and self._further:
            importlib.import_module(f"hoptui.tui.screens.{self._further.pop(0)}.screen")
            self._keep_imports()

    def _moment(self) -> tuple[object, ...]:
        """What changes whenever the frame clock has something else to draw."""
        view = self.view(None)
        return view.store, view.store.changes, int(view.wall), view.link, self.pace.slow

    def _draw(self, frame: Frame) -> None:
        """Draw the full screen that is seen, and the boxes over it; what is hidden is drawn when it comes back."""
        stack = self.screen_stack  # empty as the app ends, when the clock may beat once more
        full = [i for i, screen in enumerate(stack) if isinstance(screen, LiveScreen)]
        for screen in stack[full[-1] if full else -1 :]:
            if isinstance(screen, Live) and screen.begun and screen.is_mounted:
                # A screen that is being taken down loses its widgets one by one while this clock still beats.
                with self.batch_update(), suppress(NoMatches):
                    screen.draw(frame)
