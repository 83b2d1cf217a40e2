"""The dashboard on a recording: the same screens with a time bar, and keys that move in time instead of steering a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.screen import Screen

from hoptui.client.replay import Reel, Replay
from hoptui.presentation import numbers
from hoptui.tui.actions import Action, bindings, of
from hoptui.tui.app import HoptuiApp
from hoptui.tui.frame_clock import EVERYTHING, Frame
from hoptui.tui.screen_base import LiveScreen
from hoptui.tui.screens.replay.go_to_dialog import GoTo
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.snapshot import View
from hoptui.tui.widgets.key_bar import KeyBar
from hoptui.tui.widgets.time_bar import Sought, TimeBar

WIDE = 100  # cells from which the key bar has room for all keys of a replay
NEEDED = ("replay.play", "replay.go_to")


class ReplayApp(HoptuiApp):
    """Plays a recording from its start. Its position moves with the frame clock, so all on screen is of one moment."""

    CSS_PATH = [*HoptuiApp.CSS_PATH, "screens/replay/screen.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = bindings("replay")

    def __init__(self, replay: Replay, **options: Any) -> None:
        super().__init__(lambda on_change: replay, replay.store.run_id, **options)
        self.replay = replay
        self._listed: object = None  # the commands that lists were last drawn of

    def view(self, run: str | None) -> View:
        return super().view(run)._replace(replay=self.replay.reel)

    def get_default_screen(self) -> Screen[Any]:
        return RunScreen(self.replay.store.name, self.replay.store.run_id)

    def offered(self, actions: list[Action]) -> list[Action]:
        """The replay's own first; others keep the keys that it leaves them.

        On a narrow screen only those of the replay that it cannot do without, and after them the way back.
        """
        label = "pause" if self.replay.playing else "play"
        every = super().offered(of("replay"))
        own = [a._replace(label=label) if a.id == "replay.play" else a for a in every if a.label]
        taken = {key for action in every for key in action.keys.split(",")}
        left = [
            a._replace(keys=",".join(key for key in a.keys.split(",") if key not in taken))
            for a in super().offered(actions)
        ]
        left = [a for a in left if a.keys]
        if self.size.width < WIDE:
            own = [a for a in own if a.id in NEEDED]
            left.sort(key=lambda a: "escape" not in a.keys.split(","))
        return [*own, *left]

    def furnish(self, screen: LiveScreen) -> None:
        super().furnish(screen)
        if not screen.query(TimeBar):  # Textual calls the on_mount of every class of a screen
            screen.mount(TimeBar(), before=screen.query_one(KeyBar))

    calm = False  # its time passes with the frame clock, which stands ready to play

    def tick(self) -> None:
        self.replay.advance()
        super().tick()

    def _draw(self, frame: Frame) -> None:
        """Lists too whenever a command has changed: played fast, numbers would else be of another moment than they."""
        commands = self.replay.store.commands
        if frame.numbers and commands != self._listed:
            frame = frame._replace(lists=True)
        if frame.lists:
            self._listed = commands
        super()._draw(frame)
        if frame.numbers:
            reel = self.replay.reel
            behind = next(s for s in reversed(self.screen_stack) if isinstance(s, LiveScreen))  # of a box
            for bar in behind.query(TimeBar):
                bar.show_reel(reel, _about(reel))

    # keys --------------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Boxes have their own use for the keys of the replay."""
        if any(a.action.partition("(")[0] == f"app.{action}" for a in of("replay")):
            return isinstance(self.screen, LiveScreen)
        return super().check_action(action, parameters)

    def action_play_or_pause(self) -> None:
        if self.replay.playing:
            self.replay.pause()
        else:
            self.replay.play()
        self._draw(EVERYTHING)

    def action_jump(self, seconds: float) -> None:
        self.replay.jump(seconds)
        self._draw(EVERYTHING)

    def action_change_speed(self, direction: int) -> None:
        self.replay.change_speed(direction)
        self._draw(EVERYTHING)

    def action_step_event(self, direction: int) -> None:
        if not self.replay.step_event(direction):
            self.tell(
                f"there is no event or command {'after' if direction > 0 else 'before'} this", "information"
            )
        self._draw(EVERYTHING)

    def action_to_edge(self, share: float) -> None:
        """The beginning (0) or the end (1)."""
        start, end = self.replay.store.span
        self.replay.seek(start + round(share * (end - start)))
        self._draw(EVERYTHING)

    def action_go_to(self) -> None:
        def answered(t: int | None) -> None:
            if t is not None:
                self.replay.seek(t)
            self._draw(EVERYTHING)

        self.push_screen(GoTo(self.replay), answered)

    def on_sought(self, event: Sought) -> None:
        self.action_to_edge(event.share)


def _about(reel: Reel) -> str:
    """`2026-05-04 12:45:01 … 14:59:06 · run.hoptui`."""
    first, last = numbers.day_clock(reel.wall(reel.start)), numbers.day_clock(reel.wall(reel.end))
    if first[:10] == last[:10]:
        last = last[11:]
    return f"{first} … {last} · {numbers.clean(Path(reel.path).name, 40)}"
