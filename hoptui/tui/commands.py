"""The command palette: every action that works now, every knob, every run and every metric by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from hoptui.tui.actions import of
from hoptui.tui.panels import learning, runs
from hoptui.viewer import format as text

if TYPE_CHECKING:
    from hoptui.tui.app import HoptuiApp


class Entry(NamedTuple):
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

    def entries(self) -> Iterator[Entry]:
        """What can be done now."""
        from hoptui.tui.screens.gpus import GpusScreen
        from hoptui.tui.screens.run import RunScreen

        app, screen = cast("HoptuiApp", self.app), self.screen
        if isinstance(screen, RunScreen):
            for action in of("run"):
                if screen.works(action):
                    yield Entry(_title(action.id), action.help, partial(screen.run_action, action.action))
            view = screen.view()
            for knob in view.run.knobs if view.run and app.steering.may(view, "set") else ():
                name, value = text.clean(knob.spec.name), text.value(knob.value, knob.spec)
                edit = partial(app.edit_knob, str(screen.run_id), knob.spec.name)
                yield Entry(f"knob: edit {name}", f"now {value}", edit)
            for metric in learning.metrics(view):
                yield Entry(
                    f"chart: show {text.clean(metric)}",
                    "in the learning chart",
                    partial(screen.choose, metric),
                )
        if isinstance(screen, GpusScreen):
            for action in of("gpus"):
                yield Entry(_title(action.id), action.help, partial(screen.run_action, action.action))
        view = app.view(None)
        for gpu in () if isinstance(screen, GpusScreen) else view.gpus():
            name = f"GPU: show {gpu.index} {text.clean(gpu.name, 40)}"
            yield Entry(name, "every reading with its meaning", partial(app.open_gpus, gpu.uuid))
        for run in runs.ordered(view):
            yield Entry(
                f"run: open {text.clean(run.name)}", f"{run.run}, pid {run.pid}", partial(app.open_run, run)
            )
        for action in app.general():
            if action.id not in ("app.commands", "app.leave_now"):
                yield Entry(_title(action.id), action.help, partial(app.run_action, action.action))


def _title(action_id: str) -> str:
    return action_id.replace(".", ": ", 1)
