"""A monkey's hands, and what they mean: keys, clicks, scrolling, pasting and resizing at random, each looked
at before it is made.

Whatever leaves the dashboard must be what the gesture plainly meant on the screen that it was made on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from textual import events
from textual.command import CommandPalette
from textual.keys import key_to_character
from textual.pilot import Pilot
from textual.screen import Screen

from hoptui.domain.knobs import KnobValue
from hoptui.model.command_history import UNDO
from hoptui.protocol.messages import Verb
from hoptui.tui.actions import ACTIONS
from hoptui.tui.app import HoptuiApp
from hoptui.tui.dialogs import Confirm
from hoptui.tui.driver import taken
from hoptui.tui.screens.knob_editor.screen import KnobEditor, StagedBox
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.screens.tuner.screen import LimitsBox, TunerScreen
from hoptui.tui.widgets import KeyBar

LEAVES = {"q", "ctrl+c", "ctrl+q"}
ODD = ("1", "8", "backspace", "ctrl+z", "x", "space", "ctrl+a", "shift+tab", "ctrl+w")
KEYS = (*sorted({key for action in ACTIONS for key in action.keys.split(",")} - LEAVES), *ODD)
STEERING = (
    "p", "c", "u", "e", "s", "a", "d", "h", "t", "o", "slash", "down", "up", "8", "insert", "enter", "enter",
    "y", "n", "m", "escape", "escape", "escape",
)  # fmt: skip
PATHS = (
    ("e", "up", "enter", "y"), ("down", "e", "up", "insert", "a", "enter", "y"),
    ("down", "down", "e", "8", "enter", "y"),
    ("e", "up", "insert", "down", "e", "down", "insert", "a", "enter", "enter"), ("u", "y"), ("s", "n"),
    ("s", "y"), ("ctrl+p", "p", "a", "u", "s", "e", "enter"), ("ctrl+p", "u", "n", "d", "o", "enter", "y"),
    ("p", "p", "c"), ("t", "s", "down", "right", "enter"), ("t", "s", "end", "right", "enter", "y"),
    ("t", "tab", "down", "space", "x"), ("o", "y"),
)  # fmt: skip
"""What leads to something that is sent, one key after the other."""
PASTED = ("8", "0.003\n", "fp32\ny\n", "q y\r", "é\x1b[A", "7" * 400)
WORDS = ("lr", "reward", "GPU 3", "stop", "set lr", "13:05", "by:root")
STAYS = 0.95
"""How often the next key of a path is pressed, instead of anything else."""
NAMED = {" ": "space", ":": "colon"}
SIZES = ((80, 24), (120, 40), (200, 50), (60, 16), (59, 15), (20, 5), (1, 1), (300, 12), (81, 100))
KINDS = {
    "key": 25, "steer": 25, "path": 12, "click": 12, "double": 4, "scroll": 4, "drag": 2, "paste": 1,
    "word": 1, "size": 2,
}  # fmt: skip
SETTLE, SETTLE_S = 3, 0.002
"""A gesture may have a message sent that has another sent."""
AT_ONCE = {"pause": "pause", "resume": "pause", "checkpoint": "checkpoint"}
"""What one key on the run's screen sends, and the action of that key."""
ADVISED = "advised: "
"""How the reason of a command begins that follows advice."""
WISHES = {"tune.stop": "stop", "tune.freeze": "freeze", "tune.release": "freeze"}
"""What one key on the tuner's screen asks of it, and the action of that key."""


class Gesture(NamedTuple):
    """What a hand did: keys in their order, or what was done with the mouse at a place."""

    kind: str
    keys: tuple[str, ...] = ()
    at: tuple[int, int] = (0, 0)
    to: tuple[int, int] = (0, 0)
    text: str = ""


class Seen(NamedTuple):
    """What a person had before their eyes when they made a gesture, as far as it says what the gesture means.

    `action` is what the key or the place under the mouse stands for there, `values` the knobs that sending,
    or a choice, would set, and to what, `asks` the question of a box.
    """

    screen: Screen[Any]
    action: str
    values: dict[str, KnobValue | None]
    asks: str = ""


class Sent(NamedTuple):
    """What left the dashboard: a command's verb, a wish to the tuner, or the renewal of a pause."""

    verb: str
    knob: str = ""
    value: KnobValue | None = None
    why: str = ""
    id: str = ""


def gestures(chosen: random.Random) -> Iterator[Gesture]:
    """Gestures for ever; places are shares of a screen in thousandths."""
    path: list[str] = []
    while True:
        if path and chosen.random() < STAYS:
            yield Gesture("key", (path.pop(0),))
            continue
        kind = chosen.choices(list(KINDS), list(KINDS.values()))[0]
        place = (chosen.randrange(1000), chosen.choice((chosen.randrange(1000), 999)))  # the keys are below
        match kind:
            case "key" | "steer":
                yield Gesture("key", (chosen.choice(KEYS if kind == "key" else STEERING),))
            case "path":
                path = list(chosen.choice(PATHS))
            case "word":
                yield Gesture("key", tuple(NAMED.get(letter, letter) for letter in chosen.choice(WORDS)))
            case "paste":
                yield Gesture(kind, text=chosen.choice(PASTED))
            case "size":
                yield Gesture(kind, to=chosen.choice(SIZES))
            case "drag":
                yield Gesture(kind, at=place, to=(chosen.randrange(1000), chosen.randrange(1000)))
            case _:
                yield Gesture(kind, at=place)


async def make(app: HoptuiApp, pilot: Pilot[None], gesture: Gesture) -> None:
    """Let the app have a gesture as its driver would, and wait until it has dealt with it."""
    at, to = (_place(app, share) for share in (gesture.at, gesture.to))
    match gesture.kind:
        case "key":
            for key in gesture.keys:
                app.post_message(events.Key(key, key_to_character(key)))
                await taken(app)
        case "size":
            await pilot.resize_terminal(*gesture.to)
        case "paste":
            app.post_message(events.Paste(gesture.text))
        case "scroll":
            _mouse(app, events.MouseScrollUp if sum(at) % 2 else events.MouseScrollDown, at)
        case "drag":
            for kind, place in ((events.MouseDown, at), (events.MouseMove, to), (events.MouseUp, to)):
                _mouse(app, kind, place)
        case "click" | "double":
            for _ in range(1 + (gesture.kind == "double")):
                for kind in (events.MouseMove, events.MouseDown, events.MouseUp):
                    _mouse(app, kind, at)
    for _ in range(SETTLE):
        await pilot.pause(
            SETTLE_S
        )  # until every widget has dealt with what was there before; a live app is never idle


def seen(app: HoptuiApp, gesture: Gesture) -> Seen:
    """What is before a person's eyes who is about to make a gesture."""
    screen, action = app.screen, ""
    if gesture.kind == "key":
        action = _of_key(app, gesture.keys[-1])
    elif gesture.kind in ("click", "double"):
        action = _of_place(app, _place(app, gesture.at))
    values: dict[str, KnobValue | None] = {}
    if isinstance(screen, KnobEditor):
        values = {screen.draft.spec.name: screen.draft.value}
    elif isinstance(screen, StagedBox):
        values = {one.spec.name: one.value for run in _runs(app) for one in app.staging.of(run)}
    return Seen(screen, action, values, screen.question if isinstance(screen, Confirm) else "")


RENEWAL = "pause.renew"
PICK = "pick"
"""Enter in a list: of a box that sends by it, the same as its own key."""


def meant(sent: Sent, before: Seen) -> bool:
    """Whether what was sent is what the gesture meant."""
    screen, action = before.screen, before.action
    if sent.verb == RENEWAL:
        return True  # of what was paused before
    if isinstance(screen, CommandPalette):  # it names what it does, and asks as the keys do
        return action in ("enter", "click") and sent.verb != "stop"
    if isinstance(screen, Confirm):
        return action == "yes" and _asked(sent, before.asks)
    if isinstance(screen, RunScreen):
        if sent.verb in AT_ONCE:
            return action == AT_ONCE[sent.verb]
        undone = action == "undo" and sent.why.startswith(UNDO)
        return sent.verb == "set" and (undone or _advised(sent, action))
    if isinstance(screen, TunerScreen):
        return action == WISHES.get(sent.verb) or (sent.verb == "set" and _advised(sent, action))
    if isinstance(screen, LimitsBox):
        return sent.verb == "tune.start" and action in ("start", PICK)
    sends = action in (("send", PICK) if isinstance(screen, StagedBox) else ("send",))
    return sent.verb == "set" and sends and (sent.knob, sent.value) in before.values.items()


def _advised(sent: Sent, action: str) -> bool:
    """Whether it follows the advice that the key stands for."""
    return action == "advice" and sent.why.startswith(ADVISED)


def _asked(sent: Sent, question: str) -> bool:
    """Whether a question was about what was sent."""
    match sent.verb:
        case "stop":
            return question.startswith("Stop ")
        case "tune.start":
            return question.startswith("Let the tuner set ")
        case "set":
            return question.startswith("Set ") and sent.knob in question
    return False


class Watch:
    """Stands between apps and their clients, and keeps what passes: `count` by verb, `ids` of commands."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.ids: set[str] = set()
        self._passed: list[Sent] = []

    def over(self, client: Any) -> Any:
        """The same client, watched."""
        send, renew_pause, tune = client.send, client.renew_pause, client.tune

        def watched_send(verb: Verb, run_id: str, **named: Any) -> str:
            command: str = send(verb, run_id, **named)
            self._keep(Sent(verb, named.get("knob", ""), named.get("value"), named.get("why", ""), command))
            return command

        def watched_renewal(run_id: str) -> None:
            renew_pause(run_id)
            self._keep(Sent(RENEWAL))

        def watched_tune(run_id: str, op: str, **named: Any) -> None:
            tune(run_id, op, **named)
            self._keep(Sent(f"tune.{op}", named.get("knob", "")))

        client.send, client.renew_pause, client.tune = watched_send, watched_renewal, watched_tune
        return client

    def take(self) -> list[Sent]:
        """What has passed since the last call."""
        found, self._passed = self._passed, []
        return found

    def _keep(self, sent: Sent) -> None:
        self._passed.append(sent)
        self.count[sent.verb] += 1
        self.ids.update(filter(None, (sent.id,)))


class UnmeantError(Exception):
    """The dashboard sent something unintended."""


async def play(
    app: HoptuiApp, pilot: Pilot[None], watch: Watch, hand: Iterator[Gesture], go_on: Callable[[], bool]
) -> int:
    """Make gestures for as long as one is to go on and the app has not been left; how many it were.

    Raises:
        UnmeantError: see above.
    """
    made = 0
    while app.is_running and go_on():
        gesture = next(hand)
        before = seen(app, gesture)
        await make(app, pilot, gesture)
        made += 1
        passed = watch.take()
        if passed and not before.action and app.screen is before.screen:
            before = seen(app, gesture)  # a key that began to work on its way: the run has just come in
        for sent in passed:
            if not meant(sent, before):
                where = f"{type(before.screen).__name__} with {before.values or before.asks!r}"
                raise UnmeantError(f"{sent} after {gesture}, which means {before.action!r} on {where}")
    return made


def _of_key(app: HoptuiApp, key: str) -> str:
    """The action that a key stands for on the screen on top; in the palette the key itself."""
    if isinstance(app.screen, CommandPalette):
        return key
    found = app.screen.active_bindings.get(key)
    return found.binding.action if found is not None else ""


def _of_place(app: HoptuiApp, at: tuple[int, int]) -> str:
    """The action that a click stands for there."""
    if isinstance(app.screen, CommandPalette):
        return "click"
    for bar in app.screen.query(KeyBar):
        if bar.region.contains(*at):
            return bar.action_at(at[0] - bar.region.x)
    return ""


def _place(app: HoptuiApp, share: tuple[int, int]) -> tuple[int, int]:
    """A place of the screen from thousandths of it."""
    return share[0] * app.size.width // 1000, share[1] * app.size.height // 1000


def _mouse(app: HoptuiApp, kind: type[events.MouseEvent], at: tuple[int, int]) -> None:
    x, y = at
    button = 0 if kind is events.MouseMove else 1
    app.post_message(kind(None, x, y, 0, 0, button, False, False, False, x, y))


def _runs(app: HoptuiApp) -> list[str]:
    node = app.client.store.node
    return [run.run for run in node.runs] if node else []
