"""A recording in the dashboard: its app, the time bar at the bottom, and the dialog that goes to a moment."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from hoptui.client.replay import SECOND, Reel, Replay
from hoptui.presentation import numbers, vocabulary
from hoptui.settings import Config
from hoptui.tui.actions import Action, bindings, of
from hoptui.tui.app import HoptuiApp
from hoptui.tui.app_protocol import EVERYTHING, Frame
from hoptui.tui.screen_base import LiveBox, LiveScreen
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import FULL, GAP, TRACK, Line, Span, width_of
from hoptui.tui.widgets import KeyBar, Lines, Panel

HEAD = "●"
TICKS = {"info": ("┆", "dim"), "command": ("┆", "mark"), "warning": ("│", "warn"), "alarm": ("│", "bad")}
"""How each kind of tick is drawn; where several share a cell the last of these is."""
_RANKS = tuple(TICKS)
SPEED = 5  # cells of the speed, so that what stands after it does not move


class Sought(Message):
    """A click on the track: go to this share of the recording."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share


class TimeBar(Lines):
    """One line, or two where its style gives it two: then the track has a line of its own."""

    def __init__(self) -> None:
        super().__init__("time-bar")
        self._track = (0, 0, 1)  # line, first cell, cells

    def show_reel(self, reel: Reel, note: str = "") -> None:
        """Draw where the replay stands; `note` is flush right where there is a line for it."""
        width = self.size.width
        stand = standing(reel)
        if self.size.height > 1:
            self._track = (0, 1, max(1, width - 2))
            about: Line = (Span(note, "dim"), Span(" "))
            self.show([(Span(" "), *track(reel, width - 2)), (*stand, GAP, *about)])
            return
        start = width_of(stand) + 2
        self._track = (0, start, max(1, width - start - 1))
        self.show([(*stand, Span("  "), *track(reel, width - start - 1))])

    def on_click(self, event: events.Click) -> None:
        line, start, cells = self._track
        if event.y == line and start <= event.x < start + cells:
            self.post_message(Sought((event.x - start) / max(1, cells - 1)))


def standing(reel: Reel) -> Line:
    """`▶ 20×   14:05:30   1:20:31 / 2:14:05`."""
    word = vocabulary.PLAYING if reel.playing else vocabulary.HALTED
    whole = (reel.end - reel.start) / SECOND
    return (
        Span(f" {word.symbol} ", "title"),
        Span(f"{reel.speed:g}×", "strong" if reel.playing else "dim", SPEED + 1),
        Span(numbers.clock(reel.wall(reel.position)), "strong"),
        Span(f"  {elapsed((reel.position - reel.start) / SECOND, whole)}"),
        Span(f" / {elapsed(whole, whole)}", "dim"),
    )


def track(reel: Reel, width: int) -> Line:
    """The whole recording in `width` cells: what is behind is heavy, the head stands at the position."""
    if width < 2:
        return ()
    span = max(1, reel.end - reel.start)
    head = (reel.position - reel.start) * (width - 1) // span
    ranks = [-1] * width
    for tick in reel.ticks:
        cell = min(max((tick.t - reel.start) * (width - 1) // span, 0), width - 1)
        ranks[cell] = max(ranks[cell], _RANKS.index(tick.kind))
    spans: list[Span] = []
    for cell, rank in enumerate(ranks):
        if cell == head:
            symbol, ink = HEAD, "strong"
        elif rank >= 0:
            symbol, ink = TICKS[_RANKS[rank]]
        else:
            symbol, ink = (FULL, "1") if cell < head else (TRACK, "track")
        if spans and spans[-1].ink == ink:
            spans[-1] = Span(spans[-1].text + symbol, ink)
        else:
            spans.append(Span(symbol, ink))
    return tuple(spans)


def elapsed(seconds: float, whole: float) -> str:
    """A time since the start, as wide as that of the whole: `1:05`, and from an hour on `0:01:05`."""
    return _clock(seconds, whole).rjust(len(_clock(whole, whole)))


def _clock(seconds: float, whole: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if whole >= 3600 else f"{m}:{s:02}"


FORMS = (
    ("14:05:30", "a time of day, or with its date 2026-05-04 14:05"),
    ("+1h20m", "after the start, as is 1:20:00; -10m: before the end"),
    ("50%", "a share of the whole"),
    ("#1200", "an iteration"),
)


class GoTo(LiveBox[int]):
    """Ends with the stamp to go to, or None."""

    BINDINGS = bindings("goto")

    def __init__(self, replay: Replay) -> None:
        super().__init__()
        self._replay = replay
        self.found: int | None = None

    def compose(self) -> ComposeResult:
        with Panel(name="go-to", kind="box"):
            yield Lines("forms")
            with Horizontal(id="where-entry"):
                yield Lines("where-prompt")
                yield Input(id="where", compact=True)
            yield Lines("where-verdict")

    def on_mount(self) -> None:
        self._panel("go-to").label("Go to", self.hoptui.legend(of("goto")))
        self._lines("forms").show([(Span(form, "key", 12), Span(meaning, "dim")) for form, meaning in FORMS])
        self._lines("where-prompt").show([(Span("where", "dim"),)])
        self.query_one(Input).focus()

    def draw(self, frame: Frame) -> None:
        """Nothing in it changes but the width there is."""
        if frame.lists:
            self._tell(self.query_one(Input).value)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._tell(event.value)

    def action_go(self) -> None:
        """Go there; with nothing typed, stay; with nonsense typed, say what is wrong with it again."""
        typed = self.query_one(Input).value
        self._tell(typed)
        if self.found is not None or not typed.strip():
            self.dismiss(self.found)

    def _tell(self, typed: str) -> None:
        """Show what is meant, in as many lines as it takes."""
        said = self._lines("where-verdict")
        sign, verdict = self._judge(typed) or (Span(""), Span(""))
        found = textwrap.wrap(verdict.text, max(8, said.size.width - 2))
        said.show([(sign if not i else Span("  "), Span(line, verdict.ink)) for i, line in enumerate(found)])

    def _judge(self, typed: str) -> tuple[Span, Span] | None:
        """Find what is meant; a sign, and the moment or what is wrong with it."""
        self.found = None
        if not typed.strip():
            return None
        try:
            self.found = self._replay.find(typed)
        except ValueError as error:
            return (Span("✕ ", "bad"), Span(str(error), "warn"))
        reel = self._replay.reel
        whole = (reel.end - reel.start) / SECOND
        since = elapsed((self.found - reel.start) / SECOND, whole).strip()
        return (
            Span("✓ ", "good"),
            Span(f"{numbers.day_clock(reel.wall(self.found))}, {since} after the start"),
        )


WIDE = 100  # cells from which the key bar has room for all keys of a replay
NEEDED = ("replay.play", "replay.go_to")


class ReplayApp(HoptuiApp):
    """Plays a recording from its start. The position moves with the frame clock, so the whole screen shows
    one moment.
    """

    CSS_PATH = [*HoptuiApp.CSS_PATH, "styles/replay.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = bindings("replay")

    def __init__(self, replay: Replay, **options: Any) -> None:
        super().__init__(lambda on_change: replay, replay.store.run_id or None, **options)
        self.replay = replay
        self._listed: object = None  # the commands that lists were last drawn of

    def view(self, run: str | None) -> View:
        return super().view(run)._replace(replay=self.replay.reel)

    def on_mount(self) -> None:  # Textual calls that of DrawnApp too
        for note in self.replay.reel.clocks:
            self.tell(note, "information", timeout=10)

    def get_default_screen(self) -> Screen[Any]:
        if not self.replay.store.run_id:  # of a node alone: the overview
            return super().get_default_screen()
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
        """Draw lists also when a command has changed: in a fast replay, lists and numbers would else show two
        moments.
        """
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

    # keys -------------------------------------------------------------------------------------------------

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


def replay(
    path: str,
    *more: str,
    config: Config | None = None,
    app: Callable[..., ReplayApp] = ReplayApp,
) -> int:
    """Open a recording in the dashboard; blocks until the user leaves. It needs no daemon, GPU or run.

    Args:
        path: the file.
        more: the recordings of other nodes of the same run.
        app: makes the dashboard.

    Returns:
        The exit code: 0, or 128 + the signal that ended the dashboard.

    Raises:
        RecordingError: a file is no recording, cannot be read, or is empty.
        JoinError: the recordings are not of one run, or of one node.
    """
    config = config or Config()
    opened = app(Replay(path, more=more), config=config)
    opened.alone = True
    opened.run(mouse=config.mouse)
    return opened.return_code or 0
