"""Questions before what cannot be taken back or costs more than a step: asked once, in the words of its consequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hoptui.domain.knobs import KnobState
from hoptui.presentation import numbers
from hoptui.tui.components import consequences
from hoptui.tui.dialogs import Confirm
from hoptui.tui.run_control import advised

if TYPE_CHECKING:
    from hoptui.tui.app_protocol import AppProtocol

STOPPED = "It ends at its next boundary. It cannot be taken back."


def about_change(
    app: AppProtocol, title: str, question: str, knobs: list[KnobState], then: Callable[[], object]
) -> None:
    """Do `then` once the person has agreed to change these knobs; at once where none of them needs a question."""
    asked = [knob for knob in knobs if consequences.must_ask(knob.spec)]
    if not asked:
        then()
        return
    _ask(app, title, question, "\n".join(consequences.consequences(asked)), then)


def to_stop(app: AppProtocol, run: str) -> None:
    """Stop a run after a question that names it."""
    found = app.view(run).run
    if found is None:
        return
    name = numbers.clean(found.name, 40)
    question = f"Stop {name} (pid {found.pid})?"

    def stop() -> None:
        app.tell(app.steering.stop(app.view(run), found.epoch).refused)

    _ask(app, f"Stop {name}", question, STOPPED, stop)


def to_undo(app: AppProtocol, run: str) -> None:
    """Set the last change back; after a question where that costs more than a step."""
    view = app.view(run)
    record, problem = app.steering.undoable(view)
    knob = view.knob(record.knob) if record else None
    if record is None or knob is None:
        app.tell(problem)
        return

    def undo() -> None:
        app.tell(app.steering.undo(app.view(run), record).refused)

    name = numbers.clean(record.knob, 40)
    change = f"{numbers.value(knob.value, knob.spec)} → {numbers.value(record.before, knob.spec)}"
    about_change(app, f"Undo {name}", f"Set {name} back, {change}?", [knob], undo)


def to_take_advice(app: AppProtocol, run: str) -> None:
    """Make the first change that the diagnosis advises; after a question where that costs more than a step. Where only the
    direction is known, the person types the value."""
    found = advised(app.view(run))
    if found is None:
        return
    advice, knob = found
    if advice.value is None:
        app.edit_knob(run, knob.spec.name)
        return

    def send() -> None:
        app.tell(app.steering.advise(app.view(run), advice, knob).refused)

    name = numbers.clean(knob.spec.name, 40)
    change = f"{numbers.value(knob.value, knob.spec)} → {numbers.value(advice.value, knob.spec)}"
    about_change(app, f"Set {name}", f"Set {name} {change}?", [knob], send)


def _ask(app: AppProtocol, title: str, question: str, consequence: str, then: Callable[[], object]) -> None:
    def answered(yes: bool | None) -> None:
        if yes:
            then()

    app.push_screen(Confirm(title, question, consequence), answered)
