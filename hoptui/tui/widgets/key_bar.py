"""The last line: the keys that work now. A click on one is a press of it."""

from __future__ import annotations

from textual import events

from hoptui.tui.actions import Action, key_text, of
from hoptui.tui.styled_text import GAP, Line, Span, width_of
from hoptui.tui.widgets.text_block import Lines

NARROW = 60  # cells


class KeyBar(Lines):
    """Shows as many of the actions as fit, those that work everywhere (help, leave) always; of those, in little room, what it takes."""

    def __init__(self) -> None:
        super().__init__("keys")
        self._places: list[tuple[int, int, str]] = []
        self._pressed = ""  # the action that the mouse went down on

    def show_actions(self, actions: list[Action]) -> None:
        """Draw these actions, and flush right those that work everywhere. What has no key is left out."""
        narrow = self.size.width < NARROW  # the help page tells of the commands
        everywhere = [a for a in of("everywhere") if a.label and not (narrow and a.id == "app.commands")]
        last = [keyed for action in everywhere if (keyed := self._hoptui.keyed(action)).keys]
        note = "slow link: fewer frames  " if self._hoptui.pace.slow else ""
        tail: Line = (Span(note, "warn"), *(s for a in last for s in _item(a)))
        room = self.size.width - width_of(tail) - 1
        head: list[Span] = [Span(" ")]
        self._places = []
        used = 1
        for action in self._hoptui.offered(actions):
            item = _item(action)
            if used + width_of(item) > room:
                break
            self._places.append((used, used + width_of(item), action.action))
            head += item
            used += width_of(item)
        at = self.size.width - width_of(tail) + len(tail[0].text)
        for action in last:
            self._places.append((at, at + width_of(_item(action)), action.action))
            at += width_of(_item(action))
        self.show([(*head, GAP, *tail)])

    def action_at(self, x: int) -> str:
        """The action whose key is drawn in a column, empty where there is none."""
        return next((action for start, end, action in self._places if start <= x < end), "")

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._pressed = self.action_at(event.x)

    async def on_click(self, event: events.Click) -> None:
        """A mouse that went down on one key and up on another has pressed neither."""
        action = self.action_at(event.x)
        # The second click of a double click may come to a screen that the first has closed.
        if self.screen.is_active and action and action == self._pressed:
            await self.app.run_action(action, default_namespace=self.screen)


def _item(action: Action) -> Line:
    return Span(key_text(action.keys), "key"), Span(f" {action.label}  ", "dim")
