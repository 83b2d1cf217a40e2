"""What widgets and the client's thread tell the app; named by what happened."""

from __future__ import annotations

from textual.message import Message

from hoptui.client.client import Change


class StoreChanged(Message):
    """The client's thread saw a change of state; rows alone are never told."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, StoreChanged) and message.change == self.change


class Picked(Message):
    """Enter or, `clicked`, a double click on a row of a list."""

    def __init__(self, index: int, *, clicked: bool = False) -> None:
        super().__init__()
        self.index, self.clicked = index, clicked


class Moved(Message):
    """The cursor of a list stands on another row, or there is room for more or fewer of them."""
