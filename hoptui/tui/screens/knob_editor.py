"""The knob editor: what a change would mean, the value, and the life of the command that was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.screen import ModalScreen
from textual.widgets import Input

from hoptui.tui.actions import bindings, key_text, of
from hoptui.tui.editing import Draft
from hoptui.tui.frame import EVERYTHING, Frame
from hoptui.tui.lines import Span
from hoptui.tui.panels import editor
from hoptui.tui.view import View
from hoptui.tui.widgets.lines import Lines
from hoptui.tui.widgets.panel import Panel
from hoptui.viewer import format as text
from hoptui.wire.knobs import KnobState
from hoptui.wire.messages import FINAL, CommandRecord

if TYPE_CHECKING:
    from hoptui.tui.app import HoptuiApp


class KnobEditor(ModalScreen[None]):
    """Edits one knob of one run. Stays open after sending, so that the person sees what became of it."""

    BINDINGS = bindings("editor")

    def __init__(self, run: str, knob: KnobState) -> None:
        super().__init__(classes="veil")
        self._run = run
        self._last = knob
        self.draft = Draft(knob)
        self.sent = ""
        self._conflict = ""
        self._problem = ""

    def compose(self) -> ComposeResult:
        with Panel(name="editor", kind="box"):
            yield Lines("about")
            with Horizontal(id="entry"):
                yield Lines("prompt")
                yield Input(self.draft.typed, id="value", compact=True, select_on_focus=True)
            yield Lines("verdict")
            yield Lines("trail")

    def on_mount(self) -> None:
        keys = "  ".join(f"{key_text(a.keys)} {a.label}" for a in of("editor"))
        self.query_one(Panel).label(text.clean(self.draft.spec.name, 40), keys)
        self.query_one("#prompt", Lines).show([(Span("new value", "dim"),)])
        about = editor.about(self._view(), self._last)
        self.query_one("#about", Lines).styles.height = len(about) + 1
        self.query_one(Input).focus()
        self.draw(EVERYTHING)

    def draw(self, frame: Frame) -> None:
        """Bring the knob and the trail up to date."""
        view = self._view()
        knob = self._knob(view)
        self._look_for_others(view, knob)
        self.query_one("#about", Lines).show(editor.about(view, knob), faded=view.stale)
        warning = self._conflict or self._problem
        verdict = (Span(f"⚠ {warning}", "warn"),) if warning else editor.verdict(self.draft, knob)
        self.query_one("#verdict", Lines).show([verdict])
        self.query_one("#trail", Lines).show(editor.trail(self._record(view), knob))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.draft.type(event.value)
        self._problem = ""
        self.draw(EVERYTHING)

    def action_step(self, direction: int) -> None:
        """One step of the scale up or down."""
        self.draft.step(direction, self._knob(self._view()).value)
        self.query_one(Input).value = self.draft.typed
        self.query_one(Input).cursor_position = len(self.draft.typed)

    def action_send(self) -> None:
        """Send the value; with nothing to change, close."""
        view = self._view()
        knob = self._knob(view)
        was_told = self._conflict
        self._look_for_others(view, knob)
        if self._conflict:
            if was_told == self._conflict:  # it was on screen: the next Enter is an answer to it
                self._conflict = ""
                self.draft.seen = knob.version
        elif self.draft.value is not None and self.draft.value == knob.value:
            self.dismiss(None)
            return
        elif not self._hoptui.steering.may(view, "set"):
            self._problem = "nothing was sent: the run has ended or the link to the daemon is down"
        elif self.draft.value is not None:
            self.sent = self._hoptui.steering.set(view, knob, self.draft.value, self.draft.seen)
        self.draw(EVERYTHING)

    def action_close(self) -> None:
        self.dismiss(None)

    def _look_for_others(self, view: View, knob: KnobState) -> None:
        """Warn when the knob changed under the editor by somebody else's command."""
        if knob.version == self.draft.seen:
            return
        record = self._record(view)
        if record is not None and record.stage not in FINAL:
            return  # it may be this editor's own command: the node and the outcome come in either order
        if record is not None and record.version == knob.version:
            self.draft.seen = knob.version
            return
        by = f" by {text.clean(knob.by, 40)}" if knob.by else ""
        now = text.value(knob.value, knob.spec)
        self._conflict = f"changed{by} meanwhile: {now} is in effect. Enter twice to change that"

    def _record(self, view: View) -> CommandRecord | None:
        return view.store.commands.get(self.sent)

    def _knob(self, view: View) -> KnobState:
        """The knob as it is now; as it was last, should the run no longer have it."""
        self._last = view.knob(self.draft.spec.name) or self._last
        return self._last

    def _view(self) -> View:
        return self._hoptui.view(self._run)

    @property
    def _hoptui(self) -> HoptuiApp:
        return cast("HoptuiApp", self.app)
