"""The tuner screen: state, trials and knobs of the tuner of a run; it is started and stopped here."""

from __future__ import annotations

import textwrap

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.containers import Horizontal

from hoptui.domain.tuning import Limits
from hoptui.presentation import job_head, numbers
from hoptui.tui import dialogs
from hoptui.tui.actions import Action, bindings, of
from hoptui.tui.app_protocol import Frame, Picked
from hoptui.tui.components import tuner
from hoptui.tui.components.tuner import TrialRow
from hoptui.tui.run_control import advised
from hoptui.tui.screen_base import LiveBox, RunPage, set_height
from hoptui.tui.screens.tuner import content
from hoptui.tui.screens.tuner.content import LimitsDraft
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span
from hoptui.tui.widgets import BORDER, Choices, KeyBar, Lines, Panel

AROUND = 8  # lines of the box besides the list, and of what stays visible of the screen below
NAME = 28


class LimitsBox(LiveBox[None]):
    """A form of one line a limit, which begins with `limits`. It closes once the tuner was asked to start."""

    BINDINGS = bindings("limits")

    def __init__(self, run: str, limits: Limits) -> None:
        super().__init__()
        self._run = run
        self._begin = limits
        self.draft = LimitsDraft(limits, (), ())

    def compose(self) -> ComposeResult:
        yield Panel(Choices("limit-list"), Lines("limit-help"), name="limits", kind="box")

    def on_mount(self) -> None:
        view = self.hoptui.view(self._run)
        knobs = view.run.knobs if view.run is not None else ()
        self.draft = LimitsDraft(self._begin, knobs, [gpu.power_limit_w for gpu in view.gpus()])
        self._panel("limits").label("Start the tuner", self.hoptui.legend(of("limits")))
        self._list("limit-list").focus()
        self.redraw()

    def draw(self, frame: Frame) -> None:
        choices, told = self._list("limit-list"), self._lines("limit-help")
        found = self.draft.lines()
        helps = [textwrap.wrap(limit.help, max(20, told.size.width)) for limit in found]
        set_height(told, 1 + max(map(len, helps)))  # the same for all, so that the box stays where it is
        set_height(choices, max(1, min(len(found), self.app.size.height - AROUND - max(map(len, helps)))))
        rows: list[Line] = []
        for index, limit in enumerate(found):
            chosen = index == choices.index
            ink = "strong" if chosen else ""
            lead = Span("› " if chosen else "  ", "key")
            rows.append((lead, Span(limit.name, ink, NAME), Span(limit.value, ink)))
        choices.show_rows(rows, len(found))
        told.show([(), *((Span(line, "dim"),) for line in helps[choices.index])])

    # keys -------------------------------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        self.draft.turn(self._list("limit-list").index, by)
        self.redraw()

    def action_start(self) -> None:
        """Start it; after a question where it may change what the run learns."""
        may = [] if self.draft.limits.dry else self.draft.allowed()
        names = " and ".join(numbers.clean(knob.spec.name, 40) for knob in may)
        dialogs.about_change(self.hoptui, "Start the tuner", f"Let the tuner set {names}?", may, self._start)

    def on_picked(self, event: Picked) -> None:
        """Enter, passed on by the list: so it follows the keys that were pressed before it, however fast."""
        event.stop()
        if not event.clicked:
            self.action_start()

    def _start(self) -> None:
        view, steering = self.hoptui.view(self._run), self.hoptui.steering
        refused = steering.tune(view, "start", self.hoptui.clock(), limits=self.draft.limits)
        self.hoptui.tell(refused)
        if not refused:
            self.dismiss(None)


LEAST_LISTS = 6  # lines that the lists keep of a low terminal, borders and heads included
BARS = 2  # lines of the header and the key bar
DETAIL = 5  # lines of the chosen trial, where there is room for them
LEAST_FOR_DETAIL = 14  # lines of the list's panel


class TunerScreen(RunPage):
    """The tuner of the run with the id `run`: its state, the trials, the knobs."""

    BINDINGS = bindings("tuner")

    page = "tuner"
    run_id: str

    def __init__(self, run: str) -> None:
        super().__init__(run)

    def compose(self) -> ComposeResult:
        yield Lines("identity")
        yield Panel(Lines("tuner-facts"), name="tuner")
        with Horizontal(id="tuner-lists"):
            yield Panel(Lines("trial-head"), Choices("trial-list"), Lines("trial-detail"), name="trials")
            yield Panel(Choices("tuned-list"), name="tuned")
        yield KeyBar()

    def on_mount(self) -> None:
        knobs_first = not tuner.trials(self.view())
        self.set_class(knobs_first, "-knobs")
        self._list("tuned-list" if knobs_first else "trial-list").focus()
        super().on_mount()

    # drawing ----------------------------------------------------------------------------------------------

    def draw_lists(self, view: View) -> None:
        self._draw_facts(view)
        self._draw_trials(view)
        self._draw_knobs(view)

    def _draw_facts(self, view: View) -> None:
        """As many lines as the lists leave. The first lines are the most important."""
        lines = self._lines("tuner-facts")
        if not lines.size.width:
            return
        told = tuner.facts(view, lines.size.width)
        room = self.size.height - BARS - BORDER - LEAST_LISTS - len(self.query("TimeBar, #host-bar"))
        set_height(self._panel("tuner"), max(1, min(len(told), room)) + BORDER)
        lines.show(told, faded=tuner.old(view))
        self._panel("tuner").label(f"Tuner{tuner.from_head(view)}")

    def _draw_trials(self, view: View) -> None:
        choices, shown = self._list("trial-list"), tuner.trials(view)
        choices.keep([one.wall for one in shown], from_top=True)
        width = choices.size.width
        cells = tuner.trial_columns(view, shown, width)
        focused = choices.has_focus
        rows = [
            tuner.trial_row(view, one, cells, width, chosen=focused and i == choices.index)
            for i, one in enumerate(shown)
        ]
        nothing: Line = (Span("nothing was tried" if view.exited else "no trial has ended yet", "dim"),)
        choices.show_rows(rows, len(rows), marked=focused, faded=view.node_stale)
        self._lines("trial-head").show([tuner.trial_head(cells) if rows else nothing])
        self._draw_detail(view, shown)
        title = "Trials" if tuner.state_of(view) is not None else "What the tuner set"
        parts = (title, choices.part or (str(len(rows)) if rows else ""), job_head.as_of(view.vital))
        self._panel("trials").label(" · ".join(filter(None, parts)), self._other("knobs"))

    def _draw_detail(self, view: View, shown: list[TrialRow]) -> None:
        """The trial under the cursor, where the list does not need the room."""
        detail = self._lines("trial-detail")
        roomy = bool(shown) and self._panel("trials").size.height >= LEAST_FOR_DETAIL
        set_height(detail, DETAIL if roomy else 0)
        detail.show(
            tuner.trial_detail(view, shown[self._list("trial-list").index], detail.size.width)
            if roomy
            else []
        )

    def _draw_knobs(self, view: View) -> None:
        choices, knobs = self._list("tuned-list"), content.ordered(view)
        choices.keep([knob.spec.name for knob in knobs], from_top=True)
        cursor = choices.index if choices.has_focus else -1
        rows = content.rows(view, knobs, cursor, choices.size.width)
        choices.show_rows(rows, len(knobs), marked=choices.has_focus, faded=view.node_stale)
        parts = ("Knobs", choices.part or (str(len(knobs)) if knobs else ""), job_head.as_of(view.vital))
        self._panel("tuned").label(" · ".join(filter(None, parts)), self._other("trials"))

    def _other(self, name: str) -> str:
        """How to get at the list that there is no room for."""
        return self.view().hint("tuner.other", name) if self._one_list else ""

    def keys(self, view: View) -> list[Action]:
        found, state = advised(view), tuner.state_of(view)
        names = {"tuner.advice": tuner.advice(*found)} if found is not None else {}
        chosen = self._under_cursor
        if state is not None and chosen in state.frozen:
            names["tuner.freeze"] = "release knob"
        return [a._replace(label=names.get(a.id, a.label)) for a in self.key_actions("tuner")]

    @property
    def _one_list(self) -> bool:
        return not (self.has_class("-wide") and self.has_class("-tall"))

    # keys -------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action not in ("start", "stop", "freeze", "advice"):
            return True
        view = self.view()
        if not self.hoptui.steering.may(view, "set"):
            return False
        state = tuner.state_of(view)
        match action:
            case "start":
                idle = not tuner.at_work(state) or (state is not None and state.limits.dry)
                return idle and view.run is not None and bool(view.run.knobs)
            case "stop":
                return tuner.at_work(state)
            case "freeze":
                return tuner.at_work(state) and bool(self._under_cursor)
        return advised(view) is not None

    def action_start(self) -> None:
        """Ask for the limits, starting with the last ones. A real run follows a dry run, unless another dry
        run is chosen.
        """
        state = tuner.state_of(self.view())
        limits = replace(state.limits, dry=False) if state is not None else Limits()
        self.app.push_screen(LimitsBox(self.run_id, limits))

    def action_stop(self) -> None:
        self.hoptui.tell(self.hoptui.steering.tune(self.view(), "stop", self.hoptui.clock()))

    def action_freeze(self) -> None:
        """Have the tuner leave the knob under the cursor alone, or not any more."""
        view = self.view()
        state, name = tuner.state_of(view), self._under_cursor
        if state is not None and name:
            self.hoptui.tell(
                self.hoptui.steering.tune(
                    view, "release" if name in state.frozen else "freeze", self.hoptui.clock(), knob=name
                )
            )

    def action_advice(self) -> None:
        dialogs.to_take_advice(self.hoptui, self.run_id)

    def action_other(self) -> None:
        to_knobs = self._list("trial-list").has_focus
        self.set_class(to_knobs, "-knobs")
        self._list("tuned-list" if to_knobs else "trial-list").focus()
        self.redraw()

    def on_descendant_focus(self) -> None:
        """A click, too, goes from one list to the other."""
        self.set_class(self._list("tuned-list").has_focus, "-knobs")
        self.redraw()

    def on_picked(self, event: Picked) -> None:
        """Enter on a knob edits it, as on the run screen."""
        event.stop()
        view = self.view()
        if self._list("tuned-list").has_focus and self.hoptui.steering.may(view, "set"):
            self.hoptui.edit_knob(self.run_id, self._under_cursor)

    @property
    def _under_cursor(self) -> str:
        """The name of the chosen knob, empty while the keys go to the trials."""
        choices = self._list("tuned-list")
        return str(choices.chosen or "") if choices.has_focus else ""
