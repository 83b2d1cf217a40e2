"""The box that asks within what limits the tuner may work, and starts it."""

from __future__ import annotations

import textwrap

from textual.app import ComposeResult

from hoptui.domain.tuning import Limits
from hoptui.presentation import numbers
from hoptui.tui import asking
from hoptui.tui.actions import bindings, of
from hoptui.tui.frame import Frame
from hoptui.tui.limiting import Draft
from hoptui.tui.lines import Line, Span
from hoptui.tui.messages import Picked
from hoptui.tui.screens.box import LiveBox
from hoptui.tui.screens.live import set_height
from hoptui.tui.widgets.choices import Choices
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.panel import Panel

AROUND = 8  # lines of the box besides the list, and of what stays visible of the screen below
NAME = 28


class LimitsBox(LiveBox[None]):
    """A form of one line a limit, which begins with `limits`. It closes once the tuner was asked to start."""

    BINDINGS = bindings("limits")

    def __init__(self, run: str, limits: Limits) -> None:
        super().__init__()
        self._run = run
        self._begin = limits
        self.draft = Draft(limits, (), ())

    def compose(self) -> ComposeResult:
        yield Panel(Choices("limit-list"), Lines("limit-help"), name="limits", kind="box")

    def on_mount(self) -> None:
        view = self.hoptui.view(self._run)
        knobs = view.run.knobs if view.run is not None else ()
        self.draft = Draft(self._begin, knobs, [gpu.power_limit_w for gpu in view.gpus()])
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

    # keys --------------------------------------------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        self.draft.turn(self._list("limit-list").index, by)
        self.redraw()

    def action_start(self) -> None:
        """Start it; after a question where it may change what the run learns."""
        may = [] if self.draft.limits.dry else self.draft.allowed()
        names = " and ".join(numbers.clean(knob.spec.name, 40) for knob in may)
        asking.about_change(self.hoptui, "Start the tuner", f"Let the tuner set {names}?", may, self._start)

    def on_picked(self, event: Picked) -> None:
        """Enter, which the list has taken: so it comes after the keys that were pressed before it, however fast."""
        event.stop()
        if not event.clicked:
            self.action_start()

    def _start(self) -> None:
        view, steering = self.hoptui.view(self._run), self.hoptui.steering
        refused = steering.tune(view, "start", self.hoptui.clock(), limits=self.draft.limits)
        self.hoptui.tell(refused)
        if not refused:
            self.dismiss(None)
