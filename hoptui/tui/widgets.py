"""The widgets of hoptui, on Textual's line API: a block of lines, a panel, a list and the key bar.

A widget draws what it is given and refreshes only what changed. It never reads the store.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Literal, Self, cast

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.style import Style as ContentStyle
from textual.widget import Widget

from hoptui.tui.actions import Action, bindings, key_text, of
from hoptui.tui.app_protocol import Moved, Picked
from hoptui.tui.styled_text import FULL, GAP, Line, Span, as_shown, lay, width_of

if TYPE_CHECKING:
    from hoptui.tui.app_protocol import Appearance, AppProtocol

DIM = Style(dim=True, bold=False)
"""What lies under a box, where its veil cannot be mixed in: its keys do not work."""


class Lines(Widget):
    """Draws the lines it was last given, cut to its size, on the line API.

    `name` is its id. Lines are laid out when they are drawn, so a resize needs no new ones. `faded` draws
    everything in the ink of old values. `cursor` is the index of the chosen line, -1 for none.
    """

    ALLOW_SELECT = False

    def __init__(self, name: str, *, classes: str | None = None) -> None:
        super().__init__(id=name, classes=classes)
        self._lines: list[Line] = []
        self.faded = False
        self.cursor = -1
        self._style: Style | None = None

    @property
    def lines(self) -> list[Line]:
        return self._lines

    @property
    def text(self) -> str:
        """What is on screen, without style."""
        laid = (self._laid(y) for y in range(min(len(self._lines), self.size.height)))
        return "\n".join("".join(piece for piece, _ in pieces).rstrip() for pieces in laid)

    def show(self, lines: Sequence[Line], *, faded: bool = False, cursor: int = -1) -> bool:
        """Draw these lines from now on; refreshes only those that differ, and says whether any does."""
        old, restyled = self._lines, faded != self.faded
        changed = {
            i
            for i in range(max(len(lines), len(old)))
            if restyled or i >= len(old) or i >= len(lines) or old[i] != lines[i]
        }
        if cursor != self.cursor:
            changed |= {cursor, self.cursor} - {-1}
        self._lines, self.faded, self.cursor = list(lines), faded, cursor
        if changed:
            width, height = self.size
            regions = [Region(0, i, width, 1) for i in sorted(changed) if i < height]
            if regions:
                self.refresh(*regions)
        return bool(changed)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Reset the style before and after: Textual computes it from all parents of the widget, so once for
        all lines.
        """
        self._style = None
        try:
            return super().render_lines(crop)
        finally:
            self._style = None

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self._style = self._style or self.rich_style
        if y >= len(self._lines):
            return Strip([Segment(" " * width, base)], width)
        app = self._hoptui
        inks = app.inks
        if y == self.cursor:
            ground = Color.parse(app.theme_variables["ink-cursor"]).rich_color
            base += Style(bgcolor=ground, bold=ground.is_default or None)  # what has no ground is bold
        pieces = self._laid(y)
        fade = inks["veiled" if self._veiled else "stale"] if self.faded else None
        over = DIM if not app.mixes and app.screen is not self.screen else None
        return Strip([Segment(text, base + (fade or inks[ink]) + over) for text, ink in pieces], width)

    def _laid(self, y: int) -> list[tuple[str, str]]:
        app = self._hoptui
        return lay(self._lines[y], self.size.width, plain=app.ascii, colours=app.colours)

    @property
    def _veiled(self) -> bool:
        """Whether something lies over its screen that dims it."""
        top = self.app.screen
        return top is not self.screen and top.styles.background.a > 0

    @property
    def _hoptui(self) -> AppProtocol:
        return cast("AppProtocol", self.app)


BORDER, SIDES = 2, 4
"""The lines, and the cells of a line, that a panel takes for its border and blanks."""


class Panel(Vertical):
    """A bordered column of widgets. Its texts are plain: names of runs are never markup. `kind` is `panel` or
    `box`.
    """

    def __init__(self, *children: Widget, name: str, kind: str = "panel") -> None:
        super().__init__(*children, id=name, classes=kind)
        self._texts = ("", "")
        self._entries: tuple[tuple[str, str, str], ...] = ()
        self._engraved: Literal["title", "subtitle"] | None = None

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda theme: self._draw_legend())

    def on_unmount(self) -> None:
        """The subscription would keep it, and all that is in it, for as long as the app lives."""
        self.app.theme_changed_signal.unsubscribe(self)

    @property
    def title(self) -> str:
        return self._texts[0]

    def label(self, title: str, subtitle: str = "") -> None:
        """Set the texts in the border; equal ones cost nothing."""
        before, self._texts = self._texts, (title, subtitle)
        if before[0] != title:
            self._engrave("title", Content(self._shown(title)))
        if before[1] != subtitle:
            self._engrave("subtitle", Content(self._shown(subtitle)))
            self._entries = ()

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """Name the curves of a chart in the lower border, each after a stroke of its ink: (label, ink)."""
        self.glyph_legend([(FULL, label, ink) for label, ink in entries])

    def glyph_legend(self, entries: Sequence[tuple[str, str, str]]) -> None:
        """Explain glyphs in the lower border: (glyph, label, ink)."""
        if tuple(entries) != self._entries:
            self._entries = tuple(entries)
            self._engrave("subtitle", Content(self._shown(self._texts[1])))  # where there is none any more
            self._draw_legend()

    def _draw_legend(self) -> None:
        """In the colours of the theme; of a panel without a legend nothing."""
        parts = []
        for glyph, label, ink in self._entries:
            style = ContentStyle.from_rich_style(self._hoptui.inks[ink])
            parts += [
                Content.styled(f"{self._shown(glyph, ink)} ", style),
                Content(f"{self._shown(label)}   "),
            ]
        if parts:
            self._engrave("subtitle", Content.assemble(*parts).rstrip())

    def _engrave(self, which: Literal["title", "subtitle"], content: Content) -> None:
        """Put a text into the border. Textual would redraw the whole panel for it; this redraws only that
        line.
        """
        self._engraved = which
        setattr(self, f"border_{which}", content)
        self._engraved = None

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        width, height = self.outer_size
        if self._engraved is not None and height:
            edge = Region(0, 0 if self._engraved == "title" else height - 1, width, 1)
            regions = (edge.translate(-self.content_offset),)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def _shown(self, string: str, ink: str = "") -> str:
        app = self._hoptui
        return as_shown(string, ink, plain=app.ascii, colours=app.colours)

    @property
    def _hoptui(self) -> Appearance:
        return cast("Appearance", self.app)


class Choices(Lines, can_focus=True):
    """A list of rows with a cursor.

    Posts `Moved` if other rows have to be drawn, and `Picked` on Enter or a double click.
    """

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
        """Keep the cursor on its row when rows are added, removed or moved; `ids` identifies each row.

        With `from_top`, a cursor on the first row stays there until the user moves it: the first row is the
        newest.
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
        """Draw the part of `rows` around the cursor. `count` 0: they are a text, without anything to choose.

        `marked` is false while keys go elsewhere.
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


NARROW = 60  # cells


class KeyBar(Lines):
    """Shows as many of the actions as fit; the actions that work everywhere (help, leave) always.

    In a narrow terminal, the palette is left out of the latter.
    """

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
