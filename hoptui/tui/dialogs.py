"""A question before something that cannot be taken back."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.fuzzy import Matcher
from textual.widgets import Input

from hoptui.tui.actions import bindings, key_text, of
from hoptui.tui.frame_clock import EVERYTHING, Frame
from hoptui.tui.messages import Picked
from hoptui.tui.screen_base import LiveBox, set_height
from hoptui.tui.styled_text import GAP, Line, Span
from hoptui.tui.widgets.list_view import Choices
from hoptui.tui.widgets.panel import Panel
from hoptui.tui.widgets.text_block import Lines

MOST = 200  # of the best matches are listed


class Option(NamedTuple):
    """Something to find: `text` is what is searched and shown, `note` stands flush right."""

    text: str
    note: str = ""


class Choice(NamedTuple):
    """The option chosen, its place among all of them, and whether it was to be put with what is there already."""

    place: int
    option: Option
    together: bool


class Finder(LiveBox[Choice]):
    """Ends with what was found, or None.

    `more` makes options of what is typed, and is asked at each change: their indices are those after `options`. `together` offers the key that puts the
    option with what is there already. `nothing` is said where there is nothing to find.
    """

    BINDINGS = bindings("finder")

    def __init__(
        self,
        title: str,
        options: Sequence[Option],
        *,
        nothing: str,
        together: bool = False,
        more: Callable[[str], Sequence[Option]] = lambda typed: (),
    ) -> None:
        super().__init__()
        self._title = title
        self._options = list(options)
        self._nothing = nothing
        self._together = together
        self._more = more
        self._shown: list[tuple[int, Option]] = []

    def compose(self) -> ComposeResult:
        with Panel(name="finder", kind="box"):
            with Horizontal(id="find-entry"):
                yield Lines("find-prompt")
                yield Input(id="find", compact=True)
            yield Choices("find-list")

    def on_mount(self) -> None:
        actions = [a for a in of("finder") if self._together or a.id != "finder.together"]
        self._panel("finder").label(self._title, self.hoptui.legend(actions))
        self._lines("find-prompt").show([(Span("find", "dim"),)])
        self.query_one(Input).focus()
        self._search("")

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._search(event.value)

    def _search(self, typed: str) -> None:
        """List the best matches, all in their own order where nothing is typed."""
        self._shown = matches(self._options, typed)
        self._shown += [(len(self._options) + i, option) for i, option in enumerate(self._more(typed))]
        self._list("find-list").index = 0
        self.redraw()

    def draw(self, frame: Frame) -> None:
        if not frame.lists:
            return
        choices = self._list("find-list")
        rows = [_row(option, chosen=i == choices.index) for i, (_, option) in enumerate(self._shown)]
        if not rows:
            rows = [(Span("nothing is called that" if self._options else self._nothing, "dim"),)]
        choices.show_rows(rows, len(self._shown))

    def _end(self, *, together: bool) -> None:
        if self._shown:
            self.dismiss(Choice(*self._shown[self._list("find-list").index], together))

    # keys --------------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self._together if action == "together" else True

    def action_move(self, by: int) -> None:
        self._list("find-list").move_to(self._list("find-list").index + by)

    def action_page(self, direction: int) -> None:
        self._list("find-list").action_page(direction)

    def action_take(self) -> None:
        self._end(together=False)

    def action_together(self) -> None:
        self._end(together=True)

    def on_picked(self, event: Picked) -> None:
        event.stop()
        self._end(together=False)


def matches(options: Sequence[Option], typed: str) -> list[tuple[int, Option]]:
    """The options that have all letters of each typed word in their order, the best first, with their indices.

    Those in which every typed word begins a word come before those that have it inside of one; letters that are
    scattered count only where nothing else is found.
    """
    typed_words = typed.casefold().split()
    words = [Matcher(word) for word in typed_words]
    scored: list[tuple[int, float, int]] = []
    for i, option in enumerate(options):
        scores = [word.match(option.text) for word in words]
        if all(scores):
            closeness = min((_closeness(word, option.text.casefold()) for word in typed_words), default=0)
            scored.append((-closeness, -sum(scores), i))
    scored.sort()
    better = [one for one in scored if one[0] < 0]
    return [(i, options[i]) for *_, i in (better or scored)[:MOST]]


def _closeness(word: str, there: str) -> int:
    """2 where a word of a text begins so, 1 where it stands inside of one, 0 where its letters are scattered."""
    return 2 if re.search(rf"(?<![^\W_]){re.escape(word)}", there) else int(word in there)


def _row(option: Option, *, chosen: bool) -> Line:
    return Span("› " if chosen else "  ", "key"), Span(option.text), GAP, Span(option.note, "dim")


WIDTH, FRAME = 72, 6  # cells of the box, and of its border and padding


class Confirm(LiveBox[bool]):
    """Ends with True on `y` alone; everything else is a no. The consequence may have several lines."""

    BINDINGS = bindings("confirm")

    def __init__(self, title: str, question: str, consequence: str) -> None:
        super().__init__()
        self._title = title
        self.question = question
        self._consequence = consequence

    def compose(self) -> ComposeResult:
        yield Panel(Lines("question"), name="confirm", kind="box")

    def on_mount(self) -> None:
        self._panel("confirm").label(self._title)
        self.draw(EVERYTHING)

    def draw(self, frame: Frame) -> None:
        """Nothing in it changes but the width there is."""
        yes, no = (self.hoptui.keyed(action) for action in of("confirm"))
        keys: Line = (
            Span(key_text(yes.keys), "key"), Span(" yes   ", "dim"), Span(key_text(no.keys), "key"), Span(" no", "dim"),
        )  # fmt: skip
        width = max(8, min(WIDTH, self.app.size.width * 96 // 100) - FRAME)
        asked = [(Span(line, "strong"),) for line in textwrap.wrap(self.question, width)]
        told = [line for one in self._consequence.splitlines() for line in textwrap.wrap(one, width)]
        lines = [*asked, *((Span(line, "dim"),) for line in told), (), keys]
        set_height(self._lines("question"), len(lines))
        self._lines("question").show(lines)

    def action_yes(self) -> None:
        self.dismiss(True)

    def action_no(self) -> None:
        self.dismiss(False)
