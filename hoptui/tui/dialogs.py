"""Dialogs that lie over any screen: a question, a search, the confirmation of a command, the help page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.fuzzy import Matcher
from textual.widgets import Input

from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobState
from hoptui.presentation import numbers, sentences
from hoptui.tui.actions import bindings, key_text, of
from hoptui.tui.app_protocol import EVERYTHING, Frame, Picked
from hoptui.tui.components import help_page, knobs
from hoptui.tui.components.help_page import HelpPage
from hoptui.tui.run_control import advised
from hoptui.tui.screen_base import LiveBox, TextBox, set_height
from hoptui.tui.styled_text import GAP, Line, Span
from hoptui.tui.widgets import Choices, Lines, Panel

if TYPE_CHECKING:
    from hoptui.tui.app_protocol import AppProtocol

MOST = 200  # of the best matches are listed


class Option(NamedTuple):
    """Something to find: `text` is what is searched and shown, `note` stands flush right."""

    text: str
    note: str = ""


class Choice(NamedTuple):
    """The chosen option, its index, and whether to add it to the chart that exists already."""

    place: int
    option: Option
    together: bool


class Finder(LiveBox[Choice]):
    """A search among options. It ends with a `Choice`, or None.

    `more` makes options from the typed text and is called at each change; their indices follow those of
    `options`. `together` offers the key that adds the option to what exists already. `nothing` is the text
    for no match.
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

    # keys -------------------------------------------------------------------------------------------------

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


class FilterBox(LiveBox[None]):
    """Types the filter of a list, which follows every letter: `changed` gets what is typed, and may return
    what is wrong with it.

    `typed` is the filter so far, and the one that the list has again if the new one is dropped. `forms` is
    an example.
    """

    BINDINGS = bindings("filter")

    def __init__(self, typed: str, forms: str, changed: Callable[[str], str | None]) -> None:
        super().__init__(veil=False)
        self._before = typed
        self._forms = forms
        self._changed = changed

    def compose(self) -> ComposeResult:
        with Panel(name="filter", kind="box"):
            with Horizontal(id="filter-entry"):
                yield Input(self._before, id="filter-text", compact=True, select_on_focus=False)
            yield Lines("filter-help")

    def on_mount(self) -> None:
        self.query_one(Panel).label("Filter", self.hoptui.legend(of("filter")))
        self._help("")
        self.query_one(Input).focus()

    def draw(self, frame: Frame) -> None:
        """Nothing in it changes by itself; the list below is drawn by the app."""

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._help(self._changed(event.value))

    def _help(self, wrong: str | None) -> None:
        line = Span(wrong, "warn") if wrong else Span(self._forms, "dim")
        self.query_one("#filter-help", Lines).show([(line,)])

    def action_keep(self) -> None:
        self.dismiss(None)

    def action_drop(self) -> None:
        self._changed(self._before)
        self.dismiss(None)


def matches(options: Sequence[Option], typed: str) -> list[tuple[int, Option]]:
    """The options that contain all letters of each typed word in order, the best first, with their indices.

    Options in which each typed word starts a word come first, then those that contain it. Scattered letters
    count only if nothing else matches.
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
    """2 if the typed word starts a word of the text, 1 if the text contains it, 0 if its letters are
    scattered.
    """
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
            Span(key_text(yes.keys), "key"), Span(" yes   ", "dim"),
            Span(key_text(no.keys), "key"), Span(" no", "dim"),
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


STOPPED = "It ends after this iteration. It cannot be taken back."


def about_change(
    app: AppProtocol, title: str, question: str, changed: list[KnobState], then: Callable[[], object]
) -> None:
    """Call `then` once the user agrees to change these knobs, or at once if none of them needs a question."""
    asked = [knob for knob in changed if knobs.must_ask(knob.spec)]
    if not asked:
        then()
        return
    _ask(app, title, question, "\n".join(knobs.consequences(asked)), then)


def to_stop(app: AppProtocol, run: str) -> None:
    """Stop a run after a question that names it."""
    found = app.view(run).run
    if found is None:
        return
    if reason := found.declined.get("stop"):
        app.tell(sentences.sentence(fact("declined", verb="stop", reason=reason)))
        return
    name = numbers.clean(found.name, 40)
    question = f"Stop {name} (pid {found.pid})?"

    def stop() -> None:
        app.tell(app.steering.stop(app.view(run), found.epoch).refused)

    _ask(app, f"Stop {name}", question, STOPPED, stop)


def to_undo(app: AppProtocol, run: str) -> None:
    """Set the last change back; after a question where that costs more than a step."""
    view = app.view(run)
    record, problem = app.steering.undoable(view)
    knob = view.knob(record.knob) if record else None
    if record is None or knob is None:
        app.tell(problem)
        return

    def undo() -> None:
        app.tell(app.steering.undo(app.view(run), record).refused)

    name = numbers.clean(record.knob, 40)
    change = f"{numbers.value(knob.value, knob.spec)} → {numbers.value(record.before, knob.spec)}"
    about_change(app, f"Undo {name}", f"Set {name} back, {change}?", [knob], undo)


def to_take_advice(app: AppProtocol, run: str) -> None:
    """Make the first change that the diagnosis advises, after a question if it costs more than a step.

    If only the direction is known, open the editor, where the user types the value.
    """
    found = advised(app.view(run))
    if found is None:
        return
    advice, knob = found
    if advice.value is None:
        app.edit_knob(run, knob.spec.name)
        return

    def send() -> None:
        app.tell(app.steering.advise(app.view(run), advice, knob).refused)

    name = numbers.clean(knob.spec.name, 40)
    change = f"{numbers.value(knob.value, knob.spec)} → {numbers.value(advice.value, knob.spec)}"
    about_change(app, f"Set {name}", f"Set {name} {change}?", [knob], send)


def _ask(app: AppProtocol, title: str, question: str, consequence: str, then: Callable[[], object]) -> None:
    def answered(yes: bool | None) -> None:
        if yes:
            then()

    app.push_screen(Confirm(title, question, consequence), answered)


class Help(TextBox):
    """Shows a page that was made when it was opened: keys do not change while it is read."""

    BINDINGS = bindings("help", "text")

    def __init__(self, page: HelpPage) -> None:
        super().__init__()
        self._page = page
        self._width = 0  # that the page is wrapped to

    def compose(self) -> ComposeResult:
        yield Panel(
            VerticalScroll(Lines("help-lines"), id="help-scroll", can_focus=False), name="help", kind="box"
        )

    def on_mount(self) -> None:
        view = self.hoptui.view(None)
        keys = (
            view.hint("text.down", "down"),
            view.hint("text.page_down", "more"),
            view.hint("help.close", "closes"),
        )
        self.query_one(Panel).label("Help", "   ".join(filter(None, keys)))
        self.redraw()

    def draw(self, frame: Frame) -> None:
        """Wrap the page to the width that there is."""
        shown = self.query_one(Lines)
        if shown.size.width != self._width:
            self._width = shown.size.width
            lines = help_page.lines(self._page, self._width)
            set_height(shown, len(lines))
            shown.show(lines)
