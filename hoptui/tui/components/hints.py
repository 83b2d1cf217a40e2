"""The hints of the demo: which key to press next, one line at a time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hoptui.presentation import numbers
from hoptui.protocol.messages import Vital
from hoptui.tui.actions import ACTIONS, key_text
from hoptui.tui.run_control import advised
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, first_fitting

HINT_S = 30.0
"""A hint is shown for so long, unless its key is pressed before."""
ENOUGH = 30
"""Iterations before the advised change. Fewer do not show how uneven a run is on a busy machine, and even a
large effect may then not be found."""
FEWEST, FEWEST_S = 20, 12.0
"""So few suffice if they took that many seconds: on a very busy machine nobody should wait for more."""
PERIOD_S = 120.0
"""After so long since the first one, no hint is shown."""


class Hint(NamedTuple):
    """What the key of an action does: in a run, and in a recording. Empty where it is no hint."""

    action: str
    live: str
    recorded: str


HINTS = (
    Hint("knob.advice", "applies what the verdict advises", "applies this advice in a run of your own"),
    Hint("view.where", "shows the lines of code that take the time", "shows the lines that took the time"),
    Hint("view.history", "", "shows what each change did"),
    Hint("view.tuner", "opens the tuner, which tries settings by itself", "shows what the tuner tried"),
    Hint("app.leave", "leaves; it asks whether the run goes on", "leaves"),
)
_LATER = ("view.history", "view.tuner")
"""In a recording, their keys have nothing to show at first."""
_COMMANDS = {action.id: action.action for action in ACTIONS}
RECORDING = "This is a recording"
STARTING = "The run is starting: PyTorch is loading"


class Hints:
    """The hints that are left. `recorded` names what a recording is of; empty for a run that trains."""

    def __init__(self, recorded: str = "", hints: Sequence[Hint] = HINTS) -> None:
        self._left = dict.fromkeys(hints, HINT_S)
        self._recorded = recorded
        self._shown: Hint | None = None
        self._opened: float | None = None
        self._at: float | None = None
        self._ends: float | None = None

    def did(self, command: str) -> None:
        """A key has called an action of Textual: its hint is over."""
        for hint in [hint for hint in self._left if _COMMANDS[hint.action] == command]:
            del self._left[hint]

    def line(self, view: View, now: float, width: int) -> Line | None:
        """Return the line to show at `now` (seconds of any clock), None once there is nothing left to say.

        Before the run has connected, the line says what takes the time. The line of a recording stays: it
        says that nothing trains.
        """
        if view.run is None and not self._recorded:
            self._opened = now if self._opened is None else self._opened
            return (Span(f"{STARTING}, {numbers.duration(now - self._opened)} so far", "strong"),)
        self._count(now)
        recorded = bool(self._recorded)
        self._shown = next((hint for hint in self._left if self._possible(hint, view)), None)
        text = _text(self._shown, view, recorded=recorded) if self._shown else ""
        if recorded:
            head = (Span(RECORDING, "warn"),)
            whole = (*head, Span(f" of {self._recorded}: nothing trains here", "warn"))
            key = (Span("  "), Span(text, "strong")) if text else ()
            return first_fitting([(*whole, *key), (*head, *key)], width)
        return (Span("› ", "key"), Span(text, "strong")) if text else None

    def _count(self, now: float) -> None:
        """Take the time since the last call from the hint that was shown."""
        if self._ends is None:
            self._ends = now + PERIOD_S
        if self._shown is not None and self._at is not None and self._shown in self._left:
            self._left[self._shown] -= now - self._at
        self._left = {hint: left for hint, left in self._left.items() if left > 0 and now < self._ends}
        self._at = now

    def _possible(self, hint: Hint, view: View) -> bool:
        """Whether the key has something to show now. In a recording that goes on, the key that leaves is not
        shown while others may follow."""
        if not view.keymap.get(hint.action) or not (hint.recorded if self._recorded else hint.live):
            return False
        if hint.action == "knob.advice":
            return advised(view) is not None and (view.vital is None or _measurable(view.vital))
        if not self._recorded:
            return True
        if hint.action == "view.history":
            return any(c.measured is not None and c.measured.detectable for c in view.commands())
        if hint.action == "view.tuner":
            return any(c.origin.kind == "tuner" for c in view.commands())
        ended = view.replay is None or view.replay.position >= view.replay.end
        return hint.action != "app.leave" or ended or not any(one.action in _LATER for one in self._left)


def _measurable(vital: Vital) -> bool:
    """Whether the effect of a change would be found."""
    took_s = vital.step * (vital.iteration_s or 0.0)
    return vital.step >= ENOUGH or (vital.step >= FEWEST and took_s >= FEWEST_S)


def _text(hint: Hint, view: View, *, recorded: bool) -> str:
    if recorded:
        return view.hint(hint.action, hint.recorded)
    start = key_text(view.keymap.get("tuner.start", "")) if hint.action == "view.tuner" else ""
    return view.hint(hint.action, hint.live) + (f"; {start} starts it" if start else "")
