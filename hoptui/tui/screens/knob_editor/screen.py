"""The knob editor and the list of staged changes, both over the screen of the run."""

from __future__ import annotations

import re
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input

from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.model.command_history import as_typed
from hoptui.presentation import numbers
from hoptui.protocol.messages import FINAL, CommandRecord
from hoptui.tui import dialogs
from hoptui.tui.actions import Action, bindings, of
from hoptui.tui.app_protocol import EVERYTHING, Frame, Picked
from hoptui.tui.run_control import Seen, Staged
from hoptui.tui.screen_base import LiveBox, set_height
from hoptui.tui.screens.knob_editor import content
from hoptui.tui.screens.knob_editor import content as panel
from hoptui.tui.screens.knob_editor.content import KnobDraft, overtaken
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span
from hoptui.tui.widgets import Choices, Lines, Panel

WIDTH, FRAME = 78, 6  # cells of the box, and of its border and padding
REST = 8  # lines of the box besides the description of the knob and of the commands
TRAIL = 3  # lines for the outcome
NUMBER_KINDS = ("int", "float")
NUMBERS = frozenset("0123456789.+-_eE \u202f\u2009")


class ValueInput(Input):
    """Where a number is typed only its characters are typed: letters that no number has may be keys."""

    def __init__(self, draft: KnobDraft) -> None:
        self._number = draft.spec.kind in NUMBER_KINDS
        typed = f"[{re.escape(''.join(NUMBERS))}]*" if self._number else None
        super().__init__(draft.typed, id="value", compact=True, select_on_focus=True, restrict=typed)

    def check_consume_key(self, key: str, character: str | None) -> bool:
        if self._number and character not in NUMBERS:
            return False
        return super().check_consume_key(key, character)


class KnobEditor(LiveBox[None]):
    """Edits one knob of one run. Stays open after sending, so that the person sees what became of it.

    A value that is `staged` is what it begins with.
    """

    BINDINGS = bindings("editor")

    def __init__(self, run: str, knob: KnobState, epoch: int, staged: KnobValue | None = None) -> None:
        super().__init__()
        self._run = run
        self._last = knob
        self.draft = KnobDraft(knob, epoch)
        if staged is not None:
            self.draft.type(as_typed(staged))
        self.sent = ""
        self._overtaken = False  # the knob has changed, and nothing was refused for it yet
        self._refused = False  # the newest change was refused because of that: the next one is not
        self._problem = ""

    def compose(self) -> ComposeResult:
        with Panel(name="editor", kind="box"):
            yield Lines("about")
            with Horizontal(id="entry"):
                yield Lines("prompt")
                yield ValueInput(self.draft)
            yield Lines("verdict")
            yield Lines("trail")

    def on_mount(self) -> None:
        keys = self.hoptui.legend(a for a in of("editor") if self._is_offered(a))
        self.query_one(Panel).label(numbers.clean(self.draft.spec.name, 40), keys)
        self._lines("prompt").show([(Span("new value", "dim"),)])
        self.query_one(Input).focus()
        self.draw(EVERYTHING)

    def draw(self, frame: Frame) -> None:
        """Bring the knob and the trail up to date."""
        view = self._view()
        knob = self._knob(view)
        self._look_for_others(view, knob)
        about, trail = self._about(view, knob)
        set_height(self._lines("about"), len(about))
        set_height(self._lines("trail"), trail)
        self._lines("about").show(about, faded=view.stale)
        self._lines("verdict").show(self._verdict(view, knob))
        self._lines("trail").show(content.trail(self._record(view), knob))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.draft.type(event.value)
        self._problem, self._refused = "", False
        self.draw(EVERYTHING)

    def _verdict(self, view: View, knob: KnobState) -> list[Line]:
        """Whether what is typed can be sent, or what is in the way."""
        other = view.pending(self.draft.spec.name)
        held = content.waiting(other, knob) if other is not None and other.id != self.sent else ""
        if (self._overtaken or self._refused) and not self._problem:
            return content.refused(view, knob, self.draft.value, again=self._refused)
        told: list[Line] = [(Span(f"⚠ {self._problem}", "warn"),)]
        found = told if self._problem else content.verdict(self.draft, knob, self._width)
        return [*found[:1], (Span(f"⚠ {held}", "warn"),)] if held else found

    def _about(self, view: View, knob: KnobState) -> tuple[list[Line], int]:
        """Choose the lines for the description and for the outcome of a command.

        If room is short, the lines under the input are reserved only once something was sent.
        """
        room, value = max(1, self.app.size.height * 96 // 100 - REST), self.draft.value
        whole = content.about(view, knob, value, self._width, room)
        if self.sent or len(whole) + TRAIL <= room:
            return content.about(view, knob, value, self._width, max(1, room - TRAIL)), TRAIL
        return whole, 0

    @property
    def _width(self) -> int:
        """Cells of a line in the box."""
        return max(8, min(WIDTH, self.app.size.width * 96 // 100) - FRAME)

    def _is_offered(self, action: Action) -> bool:
        """Whether its key is named in the box: of the two that stage, the one that works for this knob."""
        wanted = "stage_number" if self.draft.spec.kind in NUMBER_KINDS else "stage"
        return not action.action.startswith("stage") or action.action == wanted

    # keys -------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A letter is no key where letters are typed."""
        return action != "stage_number" or self.draft.spec.kind in NUMBER_KINDS

    def action_step(self, direction: int) -> None:
        """One step of the scale up or down."""
        self.draft.step(direction, self._knob(self._view()).value)
        self._type(self.draft.typed)

    def action_leap(self, direction: int) -> None:
        """About ten times as far."""
        self.draft.step(direction, self._knob(self._view()).value, leap=True)
        self._type(self.draft.typed)

    def action_send(self) -> None:
        """Send the value, after a question where it costs more than a step; with nothing to change, close."""
        if self._stands():
            knob = self._last
            name, value = numbers.clean(self.draft.spec.name, 40), self.draft.value
            change = f"{numbers.value(knob.value, knob.spec)} → {numbers.value(value, knob.spec)}"
            dialogs.about_change(self.hoptui, f"Set {name}", f"Set {name} {change}?", [knob], self._send)

    def action_stage(self) -> None:
        """Keep the value to be sent together with others, and close."""
        if self._stands() and self.draft.value is not None:
            self.hoptui.staging.add(self._run, self._last, self.draft.value, self.draft.seen)
            self.dismiss(None)

    action_stage_number = action_stage

    # sending ----------------------------------------------------------------------------------------------

    def _stands(self) -> bool:
        """Whether there is a value that can be sent now. An obstacle is shown, leads to a question, or ends
        the editing.
        """
        view = self._view()
        knob = self._knob(view)
        self._look_for_others(view, knob)
        record = self._record(view)
        if self.draft.value is None:
            return False
        if self.draft.value == knob.value:
            self.dismiss(None)
        elif self._overtaken:
            self.draft.seen = Seen.of(knob, self._epoch(view))
            self._overtaken, self._refused = False, True
        elif refused := self.hoptui.steering.refusal(view, "set"):
            self._problem = refused
        elif record is not None and record.stage not in FINAL and record.wanted == self.draft.value:
            self._problem = "that is on its way already"
        else:
            return True
        self.draw(EVERYTHING)
        return False

    def _send(self) -> None:
        """Send it unless something has come between the question and the answer."""
        if self.is_mounted and self._stands() and self.draft.value is not None:
            expected = self.draft.seen.version
            sent = self.hoptui.steering.set(self._view(), self._last, self.draft.value, expected)
            self.sent, self._problem = sent.command or self.sent, sent.refused
            self._refused = False
            self.draw(EVERYTHING)

    def _look_for_others(self, view: View, knob: KnobState) -> None:
        """Notice a change of the edited knob by another user's command."""
        now = Seen.of(knob, self._epoch(view))
        if now == self.draft.seen:
            return
        record = self._record(view)
        if record is not None and record.stage not in FINAL:
            return  # a restarted run declares the new value before it reports the command as applied
        own = record is not None and (record.version, record.effective) == (knob.version, knob.value)
        if own or not self.draft.seen.overtaken(knob, now.epoch):
            self.draft.seen = now
            return
        self._overtaken, self._refused = True, False

    def _type(self, typed: str) -> None:
        self.query_one(Input).value = typed
        self.query_one(Input).cursor_position = len(typed)

    def _record(self, view: View) -> CommandRecord | None:
        return view.command(self.sent)

    def _knob(self, view: View) -> KnobState:
        """The knob as it is now; as it was last, should the run no longer have it."""
        self._last = view.knob(self.draft.spec.name) or self._last
        return self._last

    def _epoch(self, view: View) -> int:
        """The run's epoch; the last one known, should the run be gone."""
        return view.run.epoch if view.run else self.draft.seen.epoch

    def _view(self) -> View:
        return self.hoptui.view(self._run)


AROUND = 8  # lines of the box besides the list, and of what stays visible of the screen below


class StagedBox(LiveBox[None]):
    """The staged changes of one run. Once sent, the same rows show the outcome of each."""

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
        lines = panel.staged_rows(view, rows, self.sent, choices.size.width, choices.index)
        choices.show_rows(lines, len(rows), faded=view.stale)
        self._lines("staged-summary").show(self._summary(view, rows))
        works = [a for a in of("staged") if self.check_action(a.action, ())]
        self._panel("staged").label("Staged changes", self.hoptui.legend(works))

    def _summary(self, view: View, rows: Sequence[Staged]) -> list[Line]:
        """Two lines under the list: what became of all, why nothing was sent, or what sending them means."""
        if self.sent:
            records = [view.store.commands[one] for one in self.sent.values() if one in view.store.commands]
            return [(), panel.staged_summary(records, len(self.sent))]
        if self._refused:
            again = view.hint("staged.send", "again sends all")
            return [(Span(f"⚠ not sent: {self._refused}", "warn"),), (Span(again, "dim"),)]
        return [(), panel.staged_advice(view, rows) if rows else (Span("nothing is staged", "dim"),)]

    # keys -------------------------------------------------------------------------------------------------

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
        dialogs.about_change(self.hoptui, title, f"Set {changes}?", [knob for _, knob in pairs], self._send)

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
        """Enter, passed on by the list: so it follows the keys that were pressed before it, however fast."""
        event.stop()
        if not event.clicked and self.check_action("send", ()):
            self.action_send()

    # sending ----------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send the changes at once: they reach the run within a moment of each other, and each shows its own
        outcome.
        """
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
        """Why nothing is sent now: a knob has changed since; "" if none has. The next attempt accepts the new
        value.
        """
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
