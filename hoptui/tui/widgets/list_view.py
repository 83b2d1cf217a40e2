"""A list to move in: a cursor, vi keys, and only as many rows drawn as there is room for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from textual import events

from hoptui.tui.actions import bindings
from hoptui.tui.messages import Moved, Picked
from hoptui.tui.styled_text import Line
from hoptui.tui.widgets.text_block import Lines


class Choices(Lines, can_focus=True):
    """Rows of which one is chosen. Posts `Moved` when other rows are to be drawn and `Picked` on Enter or a double click."""

    BINDINGS = bindings("list")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.index = 0
        self._ids: Sequence[Hashable] = ()
        self._moved = False
        self._count = 0
        self._first = 0
        self._room = 1  # rows that there was room for

    def keep(self, ids: Sequence[Hashable], *, from_top: bool = False) -> None:
        """Have the cursor stay on what it is on where rows come, go or change places; `ids` say what each row is.

        Where it begins `from_top`, it stays there until it is moved: the first row is the newest.
        """
        if (self._moved or not from_top) and (chosen := self.chosen) in ids:
            self.index = ids.index(chosen)
        self.index = max(0, min(self.index, len(ids) - 1))
        self._ids = ids

    @property
    def chosen(self) -> Hashable | None:
        """What the cursor is on, of the `ids` that were told last."""
        return self._ids[self.index] if self.index < len(self._ids) else None

    def show_rows(
        self, rows: Sequence[Line], count: int, *, faded: bool = False, marked: bool = True
    ) -> None:
        """Draw the part of `rows` around the cursor; `count` 0 says that they are a text and there is nothing to choose.

        Where it is not `marked`, the keys go elsewhere now.
        """
        self._count = count
        self.index = max(0, min(self.index, count - 1))
        height = self._room = max(1, self.size.height)
        self._first = max(0, min(max(self._first, self.index - height + 1), self.index, len(rows) - height))
        shown = rows[self._first : self._first + height]
        self.show(shown, faded=faded, cursor=self.index - self._first if count and marked else -1)

    @property
    def part(self) -> str:
        """`1–8 of 36` where there is no room for all of them; empty where there is."""
        last = min(self._first + max(1, self.size.height), self._count)
        whole = self._first == 0 and last == self._count
        shown = f"{self._first + 1}–{last}" if last > self._first + 1 else f"{last}"
        return "" if whole else f"{shown} of {self._count}"

    def move_to(self, index: int) -> None:
        """Put the cursor on a row, as near as there is one."""
        index = max(0, min(index, self._count - 1))
        if index != self.index:
            self.index, self._moved = index, True
            self.post_message(Moved())

    def action_up(self) -> None:
        self.move_to(self.index - 1)

    def action_down(self) -> None:
        self.move_to(self.index + 1)

    def action_page(self, direction: int) -> None:
        self.move_to(self.index + direction * max(1, self.size.height - 1))

    def action_first(self) -> None:
        self.move_to(0)

    def action_last(self) -> None:
        self.move_to(self._count - 1)

    def action_pick(self) -> None:
        if self._count:
            self.post_message(Picked(self.index))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "pick" or self._count > 0

    def on_resize(self) -> None:
        if self._count and self._room != max(1, self.size.height):
            self.post_message(Moved())

    def on_click(self, event: events.Click) -> None:
        row = self._first + event.y
        if row < self._count:
            self.move_to(row)
            if event.chain > 1:
                self.post_message(Picked(self.index, clicked=True))

    def on_mouse_scroll_up(self) -> None:
        self.action_up()

    def on_mouse_scroll_down(self) -> None:
        self.action_down()
