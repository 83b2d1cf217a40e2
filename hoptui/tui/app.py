"""The app: its screens, how they are opened, the keys that work on all of them, and the command palette."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from textual import work
from textual.await_complete import AwaitComplete
from textual.binding import ActiveBinding, BindingType
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.css.query import NoMatches
from textual.screen import Screen

from hoptui.client.client import Change, Client
from hoptui.domain.jobs import JobNode, JobState
from hoptui.model.runs import Ambiguous, NoSuchRun, find_run
from hoptui.presentation import jobs, numbers
from hoptui.protocol.messages import NodeState, RunState
from hoptui.settings import Config
from hoptui.tui.actions import ACTIONS, Action, bindings
from hoptui.tui.app_protocol import StoreChanged
from hoptui.tui.charts.grid import Board
from hoptui.tui.components import runs
from hoptui.tui.preferences import HIDEABLE, Preferences
from hoptui.tui.render_loop import DrawnApp
from hoptui.tui.run_control import Staging, left_paused
from hoptui.tui.screen_base import LiveScreen
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.snapshot import View, ViewerClient, undoable

if TYPE_CHECKING:
    from pathlib import Path

    from hoptui.tui.app_protocol import AppProtocol
    from hoptui.tui.screens.runs.content import TableState

    def _satisfies_protocol(app: HoptuiApp) -> AppProtocol:
        return app


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
            for metric in runs.learning_metrics(view):
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


FAST_HZ = 10.0


class HoptuiApp(DrawnApp):
    """The app on one node: it shows a run, or the overview without one.

    `connect` makes the client; its argument is the callback for changes of state. `config` is the
    configuration of the user. `clock` returns monotonic seconds. Without `frames`, nothing is drawn by itself
    and the caller calls `tick`: for tests.
    """

    TITLE = "hoptui"
    FURTHER_CSS = (
        "screens/overview.tcss",
        "screens/gpu/screen.tcss",
        "screens/knob_editor/screen.tcss",
        "screens/history/screen.tcss",
        "screens/runs/screen.tcss",
        "screens/tuner/screen.tcss",
        "screens/where/screen.tcss",
        "screens/output/screen.tcss",
        "screens/job/screen.tcss",
        "screens/charts/screen.tcss",
        "styles/finder.tcss",
        "styles/notes.tcss",
        "styles/filter.tcss",
        "styles/confirm.tcss",
        "styles/help.tcss",
        "screens/settings/screen.tcss",
    )
    CSS_PATH = ["styles/tokens.tcss", "screens/run/screen.tcss", *FURTHER_CSS, "styles/hidden.tcss"]
    COMMANDS = {Palette}
    BINDINGS: ClassVar[list[BindingType]] = bindings("everywhere")
    AUTO_FOCUS = None

    def __init__(
        self,
        connect: Callable[[Callable[[Change], None]], ViewerClient],
        run: str | None = None,
        *,
        config: Config | None = None,
        clock: Callable[[], float] = time.monotonic,
        frames: bool = True,
    ) -> None:
        super().__init__(Preferences(config or Config()), connect, clock, frames=frames)
        self.staging = Staging()
        self.alone_panels: dict[str, str] = {}
        self.worked: dict[str, ActiveBinding] = {}
        self._boards: dict[str | None, Board] = {}
        self._run_table: TableState | None = None
        self._asked = run

    def can_undo(self, view: View) -> bool:
        """Whether there is a change of the run to take back."""
        return undoable(view.commands()) is not None

    def furnish(self, screen: LiveScreen) -> None:
        """Give a full screen what all of them have in this app: no panels that the person has hidden."""
        for panel in HIDEABLE:
            screen.set_class(panel.id in self.preferences.hidden, panel.css_class)

    # life -------------------------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[Any]:
        if self._asked:
            return RunScreen(self._asked)
        from hoptui.tui.screens.overview import OverviewScreen

        self.read_further_styles()
        return OverviewScreen()

    def on_mount(self) -> None:  # Textual calls that of DrawnApp too, which starts the client
        if not self._asked:
            self.client.watch(None)
        self.find_asked()  # the client may have set out before, and be there

    def on_store_changed(self, event: StoreChanged) -> None:
        if event.change == "node":
            self.find_asked()

    # screens ----------------------------------------------------------------------------------------------

    def find_asked(self) -> None:
        """Find the run that the person named, as soon as there is a node to look on."""
        node = self.client.store.node
        screen = next(s for s in reversed(self.screen_stack) if isinstance(s, LiveScreen))
        if not isinstance(screen, RunScreen) or screen.run_id is not None or node is None:
            return
        found = self.asked_run(node, screen.asked)
        if found is not None:
            screen.run_id = found.run
            self.client.watch(found.run)

    def asked_run(self, node: NodeState, asked: str) -> RunState | None:
        """The run that the person named. Without it, show the overview and why."""
        try:
            return find_run(node, self.client.store.vitals, asked)
        except (NoSuchRun, Ambiguous) as error:
            self.tell(str(error), timeout=10)
            self.open_overview()
            return None

    def open_run(self, run: RunState) -> None:
        """Show a run instead of what is on screen."""
        self.client.watch(run.run)
        self._go(RunScreen(run.name, run.run))

    def has_other_run(self, here: str | None) -> bool:
        """Whether there is a run to go on to."""
        return any(run.run != here for run in runs.living(self.view(None)))

    def open_next_run(self, here: str | None, step: int) -> None:
        """Show the run after this one, or the one before."""
        listed = runs.living(self.view(None))
        other = runs.beside(listed, next((run for run in listed if run.run == here), None), step)
        if other is not None:
            self.open_run(other)

    def open_overview(self) -> None:
        """Show the node instead of what is on screen."""
        from hoptui.tui.screens.overview import OverviewScreen

        self.client.watch(None)
        self._go(OverviewScreen())

    def open_gpus(self, gpu: str, run: str | None = None) -> None:
        """Open the screen of a GPU, given by its UUID; with a run, it shows only the GPUs of that run."""
        from hoptui.tui.screens.gpu.screen import GpusScreen

        self.push_screen(GpusScreen(gpu, run))

    def _go(self, screen: LiveScreen) -> None:
        """Put a full screen on top; the first one of all stays below, because Textual cannot replace it."""
        if len(self.screen_stack) > 1:
            self.switch_screen(screen)
        else:
            self.push_screen(screen)

    def edit_knob(self, run: str, knob: str) -> None:
        """Open the editor of a knob, on the value that is staged if there is one."""
        from hoptui.tui.screens.knob_editor.screen import KnobEditor

        view, staged = self.view(run), self.staging.find(run, knob)
        found = view.knob(knob)
        if found is not None and view.run is not None:
            self.push_screen(KnobEditor(run, found, view.run.epoch, staged.value if staged else None))

    def open_staged_changes(self, run: str) -> None:
        """Show the staged changes of a run, on top of what is on screen."""
        from hoptui.tui.screens.knob_editor.screen import StagedBox

        self.push_screen(StagedBox(run))

    # keys -------------------------------------------------------------------------------------------------

    def action_leave(self) -> None:
        self.exit()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "sample_fast":
            node = self.client.store.node
            return not self.client.read_only and (self._fast or bool(node and node.gpus))
        if action == "suspend_process":
            return self._driver is not None and self._driver.can_suspend
        return super().check_action(action, parameters)

    def working(self) -> dict[str, ActiveBinding]:
        """The keys of the screen on top that have an effect now. Undo is bound even if there is nothing to
        undo.
        """
        screen, active = self.screen, self.screen.active_bindings
        if not isinstance(screen, LiveScreen):
            return active
        own = {found.binding.id for found in active.values() if found.node is screen}
        idle = {action.id for action in ACTIONS if action.id in own and not screen.works(action)}
        return {key: found for key, found in active.items() if found.binding.id not in idle}

    def action_help(self) -> None:
        """What can be done on the screen on top, and what it shows; again closes it."""
        from hoptui.tui.components import help_page
        from hoptui.tui.dialogs import Help

        if isinstance(self.screen, Help):
            self.screen.dismiss(None)
        else:
            active = ((key, one.binding.id or "") for key, one in self.working().items())
            view = self.view(None)
            self.push_screen(Help(help_page.page(active, view.keymap, read_only=view.read_only)))

    def action_command_palette(self) -> None:
        """Offer what works now: with the palette on top, hardly any key does."""
        if not isinstance(self.screen, CommandPalette):
            self.worked = self.working()
            self.push_screen(PaletteBox(id="--command-palette"))

    def action_settings(self) -> None:
        from hoptui.tui.screens.settings.screen import SettingsScreen

        if not isinstance(self.screen, SettingsScreen):
            self.push_screen(SettingsScreen())

    def action_history(self) -> None:
        """The commands given to the run on screen, on the overview those given to all."""
        from hoptui.tui.screens.history.screen import HistoryScreen

        if not isinstance(self.screen, HistoryScreen):
            self.push_screen(HistoryScreen(getattr(self.screen, "run_id", None)))

    def action_notes(self) -> None:
        """The notes on the run on screen."""
        from hoptui.tui.note_box import NoteBox

        run = getattr(self.screen, "run_id", None)
        if run is not None:
            self.push_screen(NoteBox(run))

    def action_tuner(self) -> None:
        """What the tuner does to the run on screen."""
        from hoptui.tui.screens.tuner.screen import TunerScreen

        run = getattr(self.screen, "run_id", None)
        if run is not None and not isinstance(self.screen, TunerScreen):
            self.push_screen(TunerScreen(run))

    def open_where(self, run: str) -> None:
        """Show the lines of the script that the time of a run goes to."""
        from hoptui.tui.screens.where.screen import WhereScreen

        self.push_screen(WhereScreen(run))

    def open_output(self, run: str) -> None:
        """Show what a run writes to stdout and stderr."""
        from hoptui.tui.screens.output.screen import OutputScreen

        self.push_screen(OutputScreen(run))

    def open_job(self, run: str) -> None:
        """Show a run on all of its nodes."""
        from hoptui.tui.screens.job.screen import JobScreen

        self.push_screen(JobScreen(run))

    def open_node(self, node: JobNode, job: JobState) -> None:
        """Open the dashboard of a node of a job over ssh, or say why that is not possible."""
        name = jobs.node_name(node)
        if node.index == job.here and not self.client.link.node:
            self.tell(f"{name} is the node of this dashboard", "information")
        elif self.view(None).replay is not None:
            self.tell("a replay opens no other node")
        elif not node.host:
            self.tell(f"{name} has never said its name")
        else:
            self._visit(node.host, job.run)

    @work(exclusive=True, group="visit")
    async def _visit(self, host: str, run: str) -> None:
        from hoptui.tui import node_visit

        self.tell(f"connecting to {host} over ssh", "information", timeout=3)
        if why := await node_visit.unreachable(host):
            self.tell(why, timeout=10)
            return
        argv = node_visit.command(host, run, ["--read-only"] if self.client.read_only else [])
        if node_visit.lend_terminal(self._driver, argv):
            self._draw_again()
        else:
            self.tell(f"there is no terminal for it here: hoptui attach ssh://{host}/{run}", timeout=10)

    def open_charts(self, run: str | None, *, find: bool) -> None:
        """Open the charts of a run, or of the node, as they were left; with `find`, open the search for
        series too.
        """
        from hoptui.tui.screens.charts.screen import ChartScreen

        screen = ChartScreen(run, self._boards.setdefault(run, Board()))
        self.push_screen(screen)

        def find_there() -> None:
            if self.screen is screen:  # it may have been left already
                screen.action_find()

        if find:
            screen.call_after_refresh(find_there)

    def open_comparison(self, run: str, recorded: Path | None, beside: Sequence[Path]) -> None:
        """Open the charts of a run with the recordings of others beside it.

        `recorded` is the recording of the run itself if the node does not know it; a known run is watched.
        """
        from hoptui.model.reference_run import CannotCompare, Companion
        from hoptui.tui.screens.charts.screen import ChartScreen

        state = self.client.store.run(run)
        if recorded is None and state is not None:
            self.open_run(state)
        try:
            base = Companion(recorded, self.clock()) if recorded is not None else None
        except CannotCompare as error:
            self.tell(str(error))
            return
        screen = ChartScreen(run, self._boards.setdefault(run, Board()), base)
        self.push_screen(screen)
        screen.call_after_refresh(screen.compare_all, beside)

    def action_runs(self) -> None:
        """All recorded and live runs of this node."""
        from hoptui.tui.screens.runs.content import TableState
        from hoptui.tui.screens.runs.screen import RunsScreen

        if not isinstance(self.screen, RunsScreen):
            self._run_table = self._run_table or TableState()
            self.push_screen(RunsScreen(self._run_table))

    def action_charts(self) -> None:
        self.open_charts(getattr(self.screen, "run_id", None), find=True)

    def action_sample_fast(self) -> None:
        """Ask for fast sampling, or no longer; the header shows the rate there is."""
        self._fast = not self._fast
        self._await_beat()
        self.client.sample(FAST_HZ if self._fast else 0.0)
        told = "GPUs are sampled at the usual rate"
        if self._fast:
            ends = self.view(None).hint("gpus.fast", "ends it")
            fast = f"GPUs are sampled {FAST_HZ:g} times a second while this is open"
            told = "; ".join(filter(None, (fast, ends)))
        self.tell(told, "information", timeout=3)

    def hide_or_show(self, panel: str) -> None:
        """Hide a panel of some screen, or show it again."""
        self.tell(self.preferences.hide_or_show(panel))
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                self.furnish(screen)
                screen.redraw()


def run(
    run: str | None,
    *,
    config: Config | None = None,
    client: Client | None = None,
    kind: Callable[..., HoptuiApp] = HoptuiApp,
) -> int:
    """Open the dashboard on a run, or on the overview; blocks until the user leaves. Leaving affects no run.

    Args:
        run: the name of a run or the start of its id; None opens the overview.
        client: a client that may be connected already; it is closed at the end.
        kind: makes the dashboard.

    Returns:
        The exit code: 0, or 128 + the signal that ended the dashboard.
    """
    config = config or Config()
    ours = client or Client(read_only=config.read_only)

    def connect(on_change: Callable[[Change], None]) -> Client:
        ours.on_change = on_change
        return ours

    app = kind(connect, run, config=config)
    app.alone = True
    app.run(mouse=config.mouse)
    for held in app.steering.held:
        print(left_paused(app.client.store, held))
    return app.return_code or 0
