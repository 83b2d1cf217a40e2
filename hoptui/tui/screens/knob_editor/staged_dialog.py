"""The staged changes of a run: looked over, sent together, and followed until each has come to its end."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult

from hoptui.presentation import numbers
from hoptui.tui import confirmations
from hoptui.tui.actions import bindings, of
from hoptui.tui.frame_clock import Frame
from hoptui.tui.messages import Picked
from hoptui.tui.screen_base import LiveBox, set_height
from hoptui.tui.screens.knob_editor import staged_content as panel
from hoptui.tui.screens.knob_editor.content import overtaken
from hoptui.tui.snapshot import View
from hoptui.tui.staged_changes import Staged
from hoptui.tui.styled_text import Line, Span
from hoptui.tui.widgets.list_view import Choices
from hoptui.tui.widgets.panel import Panel
from hoptui.tui.widgets.text_block import Lines

AROUND = 8  # lines of the box besides the list, and of what stays visible of the screen below


class StagedBox(LiveBox[None]):
    """What is staged of one run; once sent, the same rows tell what became of each."""

    BINDINGS = bindings("staged")

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run
        self._gone: list[Staged] = []  # sent from here
        self.sent: dict[str, str] = {}  # knob -> command
        self._refused = ""  # why nothing was sent

    def compose(self) -> ComposeResult:
        yield Panel(Choices("staged-list"), Lines("staged-summary"), name="staged", kind="box")

    def on_mount(self) -> None:
        self._fit(len(self._rows()))
        self._list("staged-list").focus()

    def draw(self, frame: Frame) -> None:
        view, rows, choices = self._view(), self._rows(), self._list("staged-list")
        self._fit(len(rows))
        lines = panel.rows(view, rows, self.sent, choices.size.width, choices.index)
        choices.show_rows(lines, len(rows), faded=view.stale)
        self._lines("staged-summary").show(self._summary(view, rows))
        works = [a for a in of("staged") if self.check_action(a.action, ())]
        self._panel("staged").label("Staged changes", self.hoptui.legend(works))

    def _summary(self, view: View, rows: Sequence[Staged]) -> list[Line]:
        """Two lines under the list: what became of all, why nothing was sent, or what sending them means."""
        if self.sent:
            records = [view.store.commands[one] for one in self.sent.values() if one in view.store.commands]
            return [(), panel.summary(records, len(self.sent))]
        if self._refused:
            again = view.hint("staged.send", "again sends all")
            return [(Span(f"⚠ not sent: {self._refused}", "warn"),), (Span(again, "dim"),)]
        return [(), panel.advice(view, rows) if rows else (Span("nothing is staged", "dim"),)]

    # keys --------------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action not in ("send", "remove", "edit") or bool(not self.sent and self._rows())

    def action_send(self) -> None:
        """Send all, after one question where any of them costs more than a step."""
        view = self._view()
        refused = self.hoptui.steering.refusal(view, "set")
        if refused:
            self.hoptui.tell(refused)
            return
        self._refused = self._overtaken(view)
        if self._refused:
            self.draw(Frame())
            return
        pairs = [(one, knob) for one in self._rows() if (knob := view.knob(one.spec.name)) is not None]
        changes = ", ".join(
            f"{numbers.clean(one.spec.name, 40)} → {numbers.value(one.value, one.spec)}" for one, _ in pairs
        )
        title = f"Set {numbers.counted(len(pairs), 'knob')}"
        confirmations.about_change(
            self.hoptui, title, f"Set {changes}?", [knob for _, knob in pairs], self._send
        )

    def action_remove(self) -> None:
        """Take the chosen change out again."""
        self._refused = ""
        self.hoptui.staging.remove(self._run, self._chosen.spec.name)
        if not self._rows():
            self.dismiss(None)

    def action_edit(self) -> None:
        """Type another value for the chosen change."""
        self._refused = ""
        self.hoptui.edit_knob(self._run, self._chosen.spec.name)

    def on_picked(self, event: Picked) -> None:
        """Enter, which the list has taken: so it comes after the keys that were pressed before it, however fast."""
        event.stop()
        if not event.clicked and self.check_action("send", ()):
            self.action_send()

    # sending -----------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send them in one go: they reach the run within a moment of each other, and each tells its own story."""
        view = self._view()
        rows = self._rows()
        if self.sent:
            return
        refused = self.hoptui.steering.refusal(view, "set")
        if refused or any(one.overtaken(view.run) for one in rows):  # between the question and the answer
            self.action_send()
            return
        for one in rows:
            knob = view.knob(one.spec.name)
            if knob is not None:
                sent = self.hoptui.steering.set(view, knob, one.value, knob.version)
                self.sent[one.spec.name] = sent.command
        self._gone = list(rows)
        self.hoptui.staging.clear(self._run)
        self.draw(Frame())

    def _overtaken(self, view: View) -> str:
        """Why nothing is sent now: a knob was changed meanwhile, "" if none was. The next try accepts that."""
        found = [(one, theirs) for one in self._rows() if (theirs := one.overtaken(view.run)) is not None]
        if view.run is None or not found:
            return ""
        for _, theirs in found:
            self.hoptui.staging.keep(self._run, theirs, view.run.epoch)
        one, theirs = found[0]
        name = numbers.clean(one.spec.name, 20)
        return f"{name} {overtaken(theirs)}" if len(found) == 1 else f"{len(found)} knobs changed meanwhile"

    def _fit(self, rows: int) -> None:
        """Give the list as many lines as it has rows, as far as there is room."""
        set_height(self._list("staged-list"), max(1, min(rows, self.app.size.height - AROUND)))

    def _rows(self) -> Sequence[Staged]:
        return self._gone or self.hoptui.staging.of(self._run)

    @property
    def _chosen(self) -> Staged:
        rows = self._rows()
        return rows[min(self._list("staged-list").index, len(rows) - 1)]

    def _view(self) -> View:
        return self.hoptui.view(self._run)
