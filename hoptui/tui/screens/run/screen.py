"""The run screen: is it training, how fast, what holds it back, what did the last change do."""

from __future__ import annotations

import math

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import Click
from textual.geometry import Size
from textual.reactive import reactive

from hoptui.domain.knobs import KnobState
from hoptui.model.runs import failed
from hoptui.presentation.time_ticks import SPANS
from hoptui.protocol.messages import Verb
from hoptui.tui import dialogs
from hoptui.tui.actions import Action, bindings
from hoptui.tui.app_protocol import Frame, Moved, Picked
from hoptui.tui.charts.line_chart import LineChart
from hoptui.tui.components import events, header, knobs, phases, runs, tuner
from hoptui.tui.run_control import advised
from hoptui.tui.screen_base import LiveScreen, set_height
from hoptui.tui.screens.run import content
from hoptui.tui.screens.run.panels import (
    HardwarePanel,
    LearningPanel,
    PhasesPanel,
    ThroughputPanel,
    TimeSpan,
    TunerPanel,
)
from hoptui.tui.snapshot import View
from hoptui.tui.widgets import BORDER, Choices, KeyBar, Lines, Panel

VERBS: dict[str, Verb] = {
    "pause": "pause",
    "checkpoint": "checkpoint",
    "stop": "stop",
    "edit_knob": "set",
    "undo": "set",
    "staged": "set",
    "advice": "set",
}
DEFAULT_SPAN_S = 300.0
LEAST_BOX = 3  # lines below which a box of knobs has none to show
REFIT_S = 1.0  # for so long after a new size a frozen screen is drawn too: else its panels would stay empty
HIGH = 38  # lines of a terminal that has room for lines of code below the phases
ROOMY = 50  # lines of a terminal that has room for phases over time beside everything else
VAST = (220, 50)  # cells and lines of a terminal that has room for three columns


class RunScreen(LiveScreen):
    """One run. `run` is its id once it is known, `name` what the person asked for until then."""

    BINDINGS = bindings("run")
    frozen: reactive[bool] = reactive(False, init=False)
    alone: reactive[str] = reactive("", init=False)

    def __init__(self, name: str, run: str | None = None) -> None:
        super().__init__(classes="-all")
        self.asked = name
        self.run_id = run
        self.metric = ""
        self.longest_s = DEFAULT_SPAN_S
        self._knob_shown = False  # beside the key numbers
        # When what is frozen was given another size, in seconds of the app's clock:
        self._fits_at = -math.inf

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Lines("progress")
        yield Lines("verdict")
        with Vertical(id="body"):
            with Horizontal(id="charts"):
                yield ThroughputPanel()
                yield LearningPanel()
            yield Panel(Lines("summary"), name="compact")
            with Horizontal(id="middle"):
                with Vertical(id="left"):
                    yield HardwarePanel()
                    yield PhasesPanel()
                with Vertical(id="right"):
                    yield Panel(Choices("knob-list"), Lines("knob-detail"), name="knobs")
                    yield TunerPanel()
            yield Panel(Lines("event-lines"), name="events")
        yield Lines("numbers")
        yield KeyBar()

    def on_mount(self) -> None:
        self._list("knob-list").focus()
        self.metric = self.hoptui.preferences.metric
        self.alone = self.hoptui.alone_panels.get(self.run_id or "", "")
        super().on_mount()

    def on_resize(self) -> None:
        self.update_classes(self.size_classes(self.size))
        self._fit()

    def size_classes(self, size: Size) -> dict[str, bool]:
        vast = size.width >= VAST[0] and size.height >= VAST[1]
        own = {"-high": size.height >= HIGH, "-roomy": size.height >= ROOMY, "-vast": vast}
        return super().size_classes(size) | own

    def _fit(self) -> None:
        """Have what is frozen drawn for its new size."""
        if self.frozen:
            self._fits_at = self.hoptui.clock()

    # drawing ----------------------------------------------------------------------------------------------

    @property
    def mode(self) -> str:
        """`tiny`, `compact` or `full`, by the size of the terminal; one panel alone fits a small one too."""
        width, height = self.size
        if width < 60 or height < 16:
            return "tiny"
        return "full" if self.alone or (width >= 100 and height >= 32) else "compact"

    def view(self) -> View:
        return self.hoptui.view(self.run_id)

    def draw(self, frame: Frame) -> None:
        view = self.view()
        if frame.numbers:
            self._draw_header(view)
        if self.mode == "tiny":
            self._draw_key_numbers(view)
        elif not self.frozen or self.hoptui.clock() - self._fits_at < REFIT_S:
            if frame.numbers:
                self._draw_numbers(view)
            if frame.charts and self.mode == "full":
                self._draw_charts(view)
            if frame.lists:
                self._draw_lists(view)
        if frame.lists:
            self._draw_keys(view)

    def _draw_key_numbers(self, view: View) -> None:
        """The numbers, and in the lines that they leave the knobs from the chosen one on."""
        metric, lines = content.chosen_metric(view, self.metric), self._lines("numbers")
        width, height = lines.size
        shown = content.key_numbers(view, metric, self.asked, width)
        first = self._list("knob-list").index
        staged = self.hoptui.staging.of(self.run_id or "")
        declared = knobs.rows(view, width, first, staged)[first:] if view.run and view.run.knobs else []
        self._knob_shown = bool(declared) and len(shown) < height
        lines.show([*shown, *declared], faded=view.stale)

    def _draw_header(self, view: View) -> None:
        width = self.size.width
        self._lines("identity").show([header.identity(view, self.asked, width, frozen=self.frozen)])
        self._lines("progress").show([header.progress(view, width)])

    def _draw_numbers(self, view: View) -> None:
        metric, old = content.chosen_metric(view, self.metric), view.metrics_stale
        if self.mode == "compact":
            lines = self._lines("summary")
            stretch, plain = self._stretch(view), self.hoptui.ascii
            shown = content.compact_summary(
                view, metric, lines.size.width, stretch.span_s, end=stretch.end, plain=plain
            )
            room = self.query_one("#body").size.height - len(shown) - BORDER
            if room == LEAST_BOX - 1:  # the last line, of the host, is worth less than a knob
                shown, room = shown[:-1], LEAST_BOX
            set_height(self._panel("compact"), len(shown) + BORDER)
            self.set_class(room < LEAST_BOX, "-cramped")
            lines.show(shown, faded=old)
            self._label("compact", "Run", runs.metrics_age(view))
            return
        self.query_one(ThroughputPanel).tell(view, runs.metrics_age(view))
        self.query_one(LearningPanel).tell(view, metric)
        self.query_one(HardwarePanel).tell(view)

    def _draw_charts(self, view: View) -> None:
        stretch = self._stretch(view)
        self.query_one(ThroughputPanel).draw(view, stretch)
        self.query_one(LearningPanel).draw(view, stretch, content.chosen_metric(view, self.metric))
        self.query_one(HardwarePanel).draw(view, stretch)

    def _draw_lists(self, view: View) -> None:
        split = phases.measured(view)
        if self.run_id is not None:
            self.hoptui.client.fetch_lines(self.run_id)
            if view.run is not None and view.replay is None and failed(view.run):
                self.hoptui.client.fetch_output(self.run_id, view.run.rank)
        self._lines("verdict").show(
            [runs.diagnosis_line(view, split, self.size.width - 2)], faded=view.metrics_stale
        )
        choices, detail, happened = (
            self._list("knob-list"),
            self._lines("knob-detail"),
            self._lines("event-lines"),
        )
        count = len(view.run.knobs) if view.run else 0
        staging, run = self.hoptui.staging, self.run_id or ""
        rows = knobs.rows(view, choices.size.width, choices.index, staging.of(run))
        choices.show_rows(rows, count, faded=view.stale)
        if self.focused is None and choices.focusable:  # it was hidden, and what is hidden loses the keys
            choices.focus()
        chosen = self.chosen_knob(view)
        mine = staging.find(run, chosen.spec.name) if chosen else None
        room = self._panel("knobs").content_size.height
        most = knobs.detail_height(room, count) if room else knobs.DETAIL
        set_height(detail, most)
        told = knobs.detail(view, chosen, detail.size.width, mine, most=most) if chosen else []
        detail.show(told, faded=view.stale)
        happened.show(events.lines(view, max(1, happened.size.height), happened.size.width))
        self.set_class(tuner.to_be_seen(view), "-tuned")
        beside = tuner.brief(view) if self.mode == "compact" else ""
        title = ("Knobs", choices.part or (str(count) if count else ""), beside)
        edits = view.hint("list.pick", "edits") if self.check_action("edit_knob", ()) else ""
        self._label("knobs", " · ".join(filter(None, title)), edits)
        self._label("events", "Events")
        if self.mode == "full":
            self.query_one(TunerPanel).tell(view)
            self.query_one(PhasesPanel).draw(view, split, self._stretch(view))

    def _draw_keys(self, view: View) -> None:
        actions, found = self.key_actions("run"), advised(view)
        paused = view.vital is not None and view.vital.state == "paused"
        names = {
            "run.pause": "go on" if paused else "pause",
            "view.freeze": "thaw" if self.frozen else "freeze",
            "knob.staged": f"send {len(self.hoptui.staging.of(self.run_id or ''))} staged",
            "knob.advice": tuner.advice(*found) if found is not None else "",
        }
        actions = [a._replace(label=names.get(a.id, a.label)) for a in actions]
        back = {"view.freeze": self.frozen, "run.pause": paused}
        actions.sort(key=lambda a: not back.get(a.id, False))  # ways back stay in sight
        self.query_one(KeyBar).show_actions(actions)

    def _stretch(self, view: View) -> TimeSpan:
        return TimeSpan.of(view, self.longest_s)

    # state ------------------------------------------------------------------------------------------------

    def chosen_knob(self, view: View) -> KnobState | None:
        """The knob under the cursor."""
        declared = view.run.knobs if view.run else ()
        index = self._list("knob-list").index
        return declared[index] if index < len(declared) else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "next_panel":
            return self.mode == "compact"
        if action == "job":
            view = self.view()
            return view.run is not None and view.run.world > 1 and view.job is not None
        if action in ("details", "where", "output"):
            return self.run_id is not None
        if action == "gpus":
            return bool(self.hoptui.view(None).gpus())
        if action.startswith("alone"):
            back = parameters == ("",) or action == "alone('')"  # from a key, from the key bar
            return self.mode != "tiny" and (bool(self.alone) or not back)
        if action.startswith("next_run"):
            return self.hoptui.has_other_run(self.run_id)
        if action in VERBS:
            view = self.view()
            if action == "edit_knob" and not self._has_knob(view):
                return False
            return self.hoptui.steering.may(view, VERBS[action])
        return True

    def _has_knob(self, view: View) -> bool:
        """Whether there is a knob to edit; in a tiny terminal it has to be shown."""
        return bool(view.run and view.run.knobs) and (self._knob_shown or self.mode != "tiny")

    def works(self, action: Action) -> bool:
        if action.id == "knob.staged" and not self.hoptui.staging.of(self.run_id or ""):
            return False
        if action.id == "knob.advice" and advised(self.view()) is None:
            return False
        return super().works(action) and (action.id != "knob.undo" or self.hoptui.can_undo(self.view()))

    # keys -------------------------------------------------------------------------------------------------

    def action_edit_knob(self) -> None:
        chosen = self.chosen_knob(self.view())
        if chosen is not None and self.run_id is not None:
            self.hoptui.edit_knob(self.run_id, chosen.spec.name)

    def action_undo(self) -> None:
        dialogs.to_undo(self.hoptui, self.run_id or "")
        self.redraw()

    def action_advice(self) -> None:
        dialogs.to_take_advice(self.hoptui, self.run_id or "")
        self.redraw()

    def action_staged(self) -> None:
        if self.run_id is not None:
            self.hoptui.open_staged_changes(self.run_id)

    def action_pause(self) -> None:
        self.hoptui.tell(self.hoptui.steering.pause_or_resume(self.view(), self.hoptui.clock()).refused)
        self.redraw()

    def action_checkpoint(self) -> None:
        self.hoptui.tell(self.hoptui.steering.checkpoint(self.view()).refused)
        self.redraw()

    def action_stop(self) -> None:
        dialogs.to_stop(self.hoptui, self.run_id or "")

    def watch_alone(self, before: str, now: str) -> None:
        self.remove_class(f"-alone-{before}").set_class(bool(now), f"-alone-{now}")
        self.set_class(not now, "-all")
        self._fit()
        self.call_after_refresh(self.redraw)  # when every panel has its new size

    def action_alone(self, panel: str) -> None:
        self.alone = "" if self.alone == panel else panel
        if self.run_id is not None:
            self.hoptui.alone_panels[self.run_id] = self.alone

    def action_freeze(self) -> None:
        self.frozen = not self.frozen
        self.redraw()

    def action_overview(self) -> None:
        self.hoptui.open_overview()

    def action_details(self) -> None:
        from hoptui.tui.screens.run.details import DetailsBox

        if self.run_id is not None:
            self.hoptui.push_screen(DetailsBox(self.run_id))

    def action_where(self) -> None:
        if self.run_id is not None:
            self.hoptui.open_where(self.run_id)

    def action_output(self) -> None:
        if self.run_id is not None:
            self.hoptui.open_output(self.run_id)

    def action_job(self) -> None:
        if self.run_id is not None:
            self.hoptui.open_job(self.run_id)

    def action_gpus(self) -> None:
        shown = self.view().gpus() or self.hoptui.view(None).gpus()
        if shown:
            self.hoptui.open_gpus(shown[0].uuid, self.run_id)

    def action_next_run(self, step: int) -> None:
        self.hoptui.open_next_run(self.run_id, step)

    def action_next_metric(self) -> None:
        view = self.view()
        names = runs.learning_metrics(view)
        if names:
            at = names.index(content.chosen_metric(view, self.metric))
            self.choose(names[(at + 1) % len(names)])

    def choose(self, metric: str) -> None:
        """Show a metric in the learning chart, and in that of the next run."""
        self.metric = metric
        self.hoptui.tell(self.hoptui.preferences.choose_metric(metric))
        self.redraw()

    def action_shorter(self) -> None:
        self.longest_s = max(
            (s for s in SPANS if s < self._stretch(self.view()).span_s), default=self.longest_s
        )
        self.redraw()

    def action_longer(self) -> None:
        self.longest_s = min((s for s in SPANS if s > self.longest_s), default=self.longest_s)
        self.redraw()

    def action_next_panel(self) -> None:
        self.toggle_class("-events")
        self.redraw()

    def on_click(self, event: Click) -> None:
        """A click on a chart opens the charts."""
        if isinstance(event.widget, LineChart):
            self.hoptui.open_charts(self.run_id, find=False)

    def on_moved(self, event: Moved) -> None:
        event.stop()
        self._draw_lists(self.view())

    def on_picked(self, event: Picked) -> None:
        event.stop()
        if self.check_action("edit_knob", ()):
            self.action_edit_knob()

    def _label(self, panel: str, title: str, subtitle: str = "") -> None:
        self._panel(panel).label(title, subtitle)
