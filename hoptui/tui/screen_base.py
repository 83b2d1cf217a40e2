"""What is drawn by the frame clock from a view of the store: full screens here, boxes over them in `box`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from textual._styles_cache import StylesCache
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.events import ScreenResume
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.widget import Widget

from hoptui.tui.actions import Action, of
from hoptui.tui.app_protocol import EVERYTHING, Frame, Moved
from hoptui.tui.components import header
from hoptui.tui.snapshot import View
from hoptui.tui.widgets import Choices, KeyBar, Lines, Panel

if TYPE_CHECKING:
    from hoptui.tui.app_protocol import AppProtocol


class Live(Widget):
    """The last base class of a screen: the app calls `draw` at the pace of the frame clock once it has
    `begun`.

    Each new size calls it too.
    """

    begun = True
    _redrawing = False

    @property
    def hoptui(self) -> AppProtocol:
        return cast("AppProtocol", self.app)

    def draw(self, frame: Frame) -> None:
        """Bring the parts that are due up to date."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw everything, once, when the sizes of the widgets are known."""
        if not self._redrawing:
            self._redrawing = True
            self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        self._redrawing = False
        self.hoptui.news.forget()
        # It may be on its way out, and loses its widgets one by one.
        with self.app.batch_update(), suppress(NoMatches):
            self.draw(EVERYTHING)

    def on_resize(self) -> None:
        self.redraw()

    def on_screen_resume(self, event: ScreenResume) -> None:
        self.redraw()

    def on_unmount(self) -> None:
        """Release what was drawn here.

        A cache of Textual keeps the lines of the last thousand widgets, which is 30 MB after some hours of
        use.
        """
        StylesCache.get_inner_outer.cache_clear()

    def _lines(self, name: str) -> Lines:
        return self.query_one(f"#{name}", Lines)

    def _list(self, name: str) -> Choices:
        return self.query_one(f"#{name}", Choices)

    def _panel(self, name: str) -> Panel:
        return self.query_one(f"#{name}", Panel)


class LiveScreen(Screen[None], Live):
    """A full screen, drawn also while a dialog covers it.

    `begun`: its widgets have their sizes. Until then it is neither drawn by the frame clock nor painted.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (100, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (16, "-low"), (32, "-tall")]

    begun = False

    async def _compose(self) -> None:
        """Set the classes of its size before it has widgets: a later change styles all of them again."""
        self.update_classes(self.size_classes(self.app.size))
        await super()._compose()

    def size_classes(self, size: Size) -> dict[str, bool]:
        """The classes that depend on the size, and whether it has them at this one."""
        found: dict[str, bool] = {}
        for length, breakpoints in (
            (size.width, self.HORIZONTAL_BREAKPOINTS),
            (size.height, self.VERTICAL_BREAKPOINTS),
        ):
            _, reached = max(each for each in breakpoints if each[0] <= length)
            found |= {name: name == reached for _, name in breakpoints}
        return found

    def _screen_resized(self, size: Size) -> None:
        """Skip a layout for the size that it has: Textual makes three such layouts of a new screen."""
        if size != self.outer_size:
            super()._screen_resized(size)

    def begin(self) -> None:
        """Its widgets have sizes: to be called before it is drawn for the first time."""
        if not self.begun:
            self.begun = True
            self._repaint_required = False  # asked for by being mounted: it would be painted twice

    def _redraw(self) -> None:
        self.begin()
        super()._redraw()

    def _compositor_refresh(self) -> None:
        """Skip the first paint: Textual would paint a new screen empty, and again with its content."""
        if self.begun:
            self._pass_through()
            super()._compositor_refresh()
        else:
            self._dirty_widgets.clear()  # their regions are kept by the compositor

    def _pass_through(self) -> None:
        """Show changes of this screen through all dialogs that cover it.

        Textual informs only the topmost of them; the others would paint their old lines again.
        """
        stack, changed = self.app._background_screens, self._compositor._dirty_regions
        if changed and self in stack:
            for box in stack[stack.index(self) + 1 :]:
                box._set_dirty(*changed)

    def on_mount(self) -> None:
        self.hoptui.furnish(self)
        self.redraw()

    def on_screen_suspend(self) -> None:
        self._draw_veiled()

    def on_screen_resume(self, event: ScreenResume) -> None:
        if not self.stack_updates:  # never shown before: each widget got its styles when it was added
            event.refresh_styles = False
        self._draw_veiled()

    def _draw_veiled(self) -> None:
        """A box has come over it, or has gone: see `widgets.lines.DIM`."""
        if not self.hoptui.mixes:
            for lines in self.query(Lines):
                lines.refresh()

    def view(self) -> View:
        """The node, and the run if the screen is of one, at this moment."""
        return self.hoptui.view(None)

    def works(self, action: Action) -> bool:
        """Whether an action's key does something now."""
        return self.check_action(action.action, ()) is True

    def key_actions(self, *scopes: str) -> list[Action]:
        """The actions for the key bar."""
        found = [a for a in of(*scopes) if a.label]  # type: ignore[arg-type]
        return [a for a in found if self.works(a)]


class RunPage(LiveScreen):
    """A screen on the run with the id `run`, or on all runs without one: a header, lists and a key bar.

    Another screen opens it. `page` is its name in the header.
    """

    page = ""

    def __init__(self, run: str | None) -> None:
        super().__init__()
        self.run_id = run

    def view(self) -> View:
        return self.hoptui.view(self.run_id)

    def draw(self, frame: Frame) -> None:
        view = self.view()
        if frame.numbers:
            self._lines("identity").show([header.of_run(view, self.run_id or "", self.page)])
        if frame.lists:
            self.draw_lists(view)
            self.query_one(KeyBar).show_actions(self.keys(view))

    def draw_lists(self, view: View) -> None:
        """Bring what is between the header and the key bar up to date."""
        raise NotImplementedError

    def keys(self, view: View) -> list[Action]:
        """Return what the key bar shows."""
        raise NotImplementedError

    def action_back(self) -> None:
        self.dismiss()

    def on_moved(self, event: Moved) -> None:
        """The cursor of a list stands elsewhere. Textual calls this after the handler of a subclass."""
        event.stop()
        self.redraw()


def set_height(widget: Widget, height: int) -> None:
    """Change a height only if the number of lines has changed: each change makes a new layout."""
    now = widget.styles.height
    if now is None or now.value != height:
        widget.styles.height = height


Answer = TypeVar("Answer")


class LiveBox(ModalScreen[Answer], Live):
    """Drawn while it is on top. A `veil` dims what lies below."""

    def __init__(self, *, veil: bool = True) -> None:
        super().__init__(classes="veil" if veil else None)

    def action_close(self) -> None:
        self.dismiss(None)

    def on_moved(self, event: Moved) -> None:
        """The cursor of its list stands elsewhere."""
        event.stop()
        self.redraw()


class TextBox(LiveBox[None]):
    """A dialog with a text in a `VerticalScroll` that takes no focus, and the keys of a pager:
    `bindings("text")`.
    """

    def action_scroll(self, lines: int) -> None:
        self._scroll.scroll_relative(y=lines, animate=False)

    def action_page(self, direction: int) -> None:
        self._scroll.scroll_relative(y=direction * max(1, self._scroll.size.height - 1), animate=False)

    def action_scroll_to(self, share: int) -> None:
        """The beginning (0) or the end (1)."""
        self._scroll.scroll_to(y=share * self._scroll.max_scroll_y, animate=False)

    @property
    def _scroll(self) -> VerticalScroll:
        return self.query_one(VerticalScroll)
