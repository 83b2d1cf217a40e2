"""The command palette: every action that works now, every knob, every run and every metric by its name."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from textual import work
from textual.await_complete import AwaitComplete
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.css.query import NoMatches
from textual.screen import Screen

from hoptui.presentation import numbers
from hoptui.tui.actions import ACTIONS, Action
from hoptui.tui.components import run_summary, runs
from hoptui.tui.preferences import HIDEABLE

if TYPE_CHECKING:
    from hoptui.tui.app_protocol import AppProtocol


_LAST = ("list", "everywhere")
_OTHERWISE = (
    "app.commands",
    "app.leave_now",
    "app.help_now",
)  # the palette itself, and second keys of others


class PaletteBox(CommandPalette):
    """The command palette in the frame of all dialogs.

    It closes once. At the second click of a double click beside it, Textual's palette would close the screen
    below, or crash the app.
    """

    def on_mount(self) -> None:
        self.query_one("#--input").border_title = "Commands"

    def _action_command_list(self, action: str) -> None:
        """Do nothing if the terminal has no room for one line of the list: Textual's palette would crash the
        app.
        """
        if self.query_one(CommandList).scrollable_content_region:
            super()._action_command_list(action)

    @work(exclusive=True, group=CommandPalette._GATHER_COMMANDS_GROUP)
    async def _gather_commands(self, search_value: str) -> None:
        """The list may be gone before it is filled, if the app ends while the palette opens: Textual's would
        crash the app.
        """
        with contextlib.suppress(NoMatches):
            await inspect.unwrap(CommandPalette._gather_commands)(self, search_value)

    def dismiss(self, result: None = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_active else AwaitComplete()


class PaletteEntry(NamedTuple):
    """A line of the palette, `noun: verb`."""

    title: str
    help: str
    run: Callable[[], object]


class Palette(Provider):
    """Computed from the state of the screen it was opened on."""

    async def discover(self) -> Hits:
        for entry in self.entries():
            yield DiscoveryHit(entry.title, entry.run, help=entry.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for entry in self.entries():
            score = matcher.match(entry.title)
            if score > 0:
                yield Hit(score, matcher.highlight(entry.title), entry.run, help=entry.help)

    def entries(self) -> Iterator[PaletteEntry]:
        """What can be done now."""
        from hoptui.tui.screens.gpu.screen import GpusScreen
        from hoptui.tui.screens.run.screen import RunScreen

        app, screen = cast("AppProtocol", self.app), self.screen
        yield from self._actions(lambda action: action.scope not in _LAST)
        if isinstance(screen, RunScreen):
            view = screen.view()
            for knob in view.run.knobs if view.run and app.steering.may(view, "set") else ():
                name, value = numbers.clean(knob.spec.name), numbers.value(knob.value, knob.spec)
                edit = partial(app.edit_knob, str(screen.run_id), knob.spec.name)
                yield PaletteEntry(f"knob: edit {name}", f"now {value}", edit)
            for metric in run_summary.learning_metrics(view):
                yield PaletteEntry(
                    f"chart: show {numbers.clean(metric)}",
                    "in the learning chart",
                    partial(screen.choose, metric),
                )
        yield from _panels(app, screen)
        view = app.view(None)
        for gpu in () if isinstance(screen, GpusScreen) else view.gpus():
            name = f"GPU: show {gpu.index} {numbers.clean(gpu.name, 40)}"
            yield PaletteEntry(name, "every reading with its meaning", partial(app.open_gpus, gpu.uuid))
        for run in runs.ordered(view):
            yield PaletteEntry(
                f"run: open {numbers.clean(run.name)}",
                f"{run.run}, pid {run.pid}",
                partial(app.open_run, run),
            )
        yield from self._actions(lambda action: action.scope in _LAST and action.id not in _OTHERWISE)

    def _actions(self, wanted: Callable[[Action], bool]) -> Iterator[PaletteEntry]:
        """The actions whose keys worked on the screen when the palette was opened over it, each once."""
        active = {found.binding.id: found for found in cast("AppProtocol", self.app).worked.values()}
        for action in ACTIONS:
            found = active.get(action.id)
            if found is None or not wanted(action):
                continue
            run = partial(self.app.run_action, found.binding.action, found.node)
            yield PaletteEntry(_title(action.id), action.help, run)


def _panels(app: AppProtocol, screen: Screen[Any]) -> Iterator[PaletteEntry]:
    """Panels of the screen to hide or to show again, where there is room for all of them."""
    if not (screen.has_class("-wide") and screen.has_class("-tall")):
        return
    scope = {"RunScreen": "run", "OverviewScreen": "overview"}.get(type(screen).__name__, "")
    for panel in (panel for panel in HIDEABLE if panel.id.partition(".")[0] == scope):
        verb = "show" if panel.id in app.preferences.hidden else "hide"
        yield PaletteEntry(f"panel: {verb} {panel.label}", "remembered", partial(app.hide_or_show, panel.id))


def _title(action_id: str) -> str:
    return action_id.replace(".", ": ", 1).replace("_", " ")
