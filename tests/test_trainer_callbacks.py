"""The time in callbacks of transformers' Trainer, with a handler that stands for its `CallbackHandler`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hoptui.integrations.trainer_callbacks import AFTER_STEP, BEFORE_STEP, EventTimer


class Handler:
    """Calls functions at each event."""

    def __init__(self, *callbacks: Callable[[str], None]) -> None:
        self.callbacks = list(callbacks)

    def call_event(self, event: str, control: object = None) -> object:
        for callback in self.callbacks:
            callback(event)
        return control


class Phases:
    """A run that notes when its phases begin and end."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def phase(self, name: str) -> Any:
        return SimpleNamespace(
            __enter__=lambda: self.noted.append(f"{name} begins"),
            __exit__=lambda *_: self.noted.append(f"{name} ends"),
        )


def timer_of(*callbacks: Callable[[str], None]) -> tuple[Phases, Handler, EventTimer]:
    run, handler = Phases(), Handler(*callbacks)
    timer = EventTimer(run)  # type: ignore[arg-type]
    timer.start(handler)
    return run, handler, timer


def test_each_event_is_the_phase_callbacks_and_returns_what_it_returned() -> None:
    run, handler, _ = timer_of(lambda event: run.noted.append(event))
    assert handler.call_event("on_log", control := object()) is control
    assert run.noted == ["callbacks begins", "on_log", "callbacks ends"]


def test_the_optimizer_steps_between_the_callbacks_of_two_events() -> None:
    run, handler, _ = timer_of(lambda event: run.noted.append(event))
    handler.call_event(BEFORE_STEP)
    run.noted.append("step")
    handler.call_event(AFTER_STEP)
    steps = ["optimizer begins", "step", "optimizer ends"]
    before = ["callbacks begins", BEFORE_STEP, "callbacks ends"]
    assert run.noted == [*before, *steps, "callbacks begins", AFTER_STEP, "callbacks ends"]


def test_a_boundary_inside_of_an_event_is_not_part_of_it() -> None:
    def end_iteration(event: str) -> None:
        with timer.aside():
            run.noted.append("boundary")

    run, handler, timer = timer_of(end_iteration)
    handler.call_event("on_step_end")
    assert run.noted == [
        "callbacks begins",
        "callbacks ends",
        "boundary",
        "callbacks begins",
        "callbacks ends",
    ]
    run.noted.clear()
    end_iteration("outside of an event")
    assert run.noted == ["boundary"]


def test_an_event_that_a_callback_causes_is_part_of_it() -> None:
    def evaluate(event: str) -> None:
        run.noted.append(event)
        if event == "on_step_end":
            handler.call_event("on_evaluate")

    run, handler, _ = timer_of(evaluate)
    handler.call_event("on_step_end")
    assert run.noted == ["callbacks begins", "on_step_end", "on_evaluate", "callbacks ends"]


def test_an_exception_of_a_callback_passes_and_ends_the_phase() -> None:
    def fail(event: str) -> None:
        raise KeyError(event)

    run, handler, _ = timer_of(fail)
    with pytest.raises(KeyError, match=BEFORE_STEP):
        handler.call_event(BEFORE_STEP)
    assert run.noted == ["callbacks begins", "callbacks ends"]


def test_the_handler_is_as_it_was_afterwards() -> None:
    run, handler, timer = timer_of()
    timer.stop()
    timer.stop()
    handler.call_event("on_log")
    assert not run.noted
    assert "call_event" not in vars(handler)


def test_what_others_have_put_into_the_handler_stays() -> None:
    _, handler, timer = timer_of()
    mine = handler.call_event

    def theirs(event: str, control: object = None) -> object:
        return mine(event, control)

    handler.call_event = theirs  # type: ignore[method-assign]
    timer.stop()
    assert vars(handler)["call_event"] is theirs


def test_a_handler_without_events_is_left_alone() -> None:
    run = Phases()
    EventTimer(run).start(object())  # type: ignore[arg-type]
    assert not run.noted
