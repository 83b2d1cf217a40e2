"""The time in callbacks of transformers' `Trainer`, whatever their order. Its handler knows each event."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hoptui

BEFORE_STEP, AFTER_STEP = "on_pre_optimizer_step", "on_optimizer_step"
"""The events before and after a step of the optimizer."""


class EventTimer:
    """Times the callbacks of a trainer as the phase `callbacks`, and the step between two of their events as
    the phase `optimizer`, from `start` to `stop`.

    A phase around an event is around `callbacks` too: evaluation has `eval/callbacks`.
    """

    def __init__(self, run: hoptui.Run) -> None:
        self._callbacks, self._optimizer = run.phase("callbacks"), run.phase("optimizer")
        self._handler: Any = None
        self._timed: Any = None
        self._depth = 0
        self._stepping = False

    def start(self, handler: Any) -> None:
        """Time the events of a `CallbackHandler`. The event in progress is not timed."""
        call_event = getattr(handler, "call_event", None)
        if call_event is None:
            return

        @functools.wraps(call_event)
        def timed(event: str, *args: Any, **kwargs: Any) -> Any:
            if event == AFTER_STEP:
                self._end_step()
            with self._event():
                found = call_event(event, *args, **kwargs)
            if event == BEFORE_STEP:
                self._begin_step()
            return found

        handler.call_event = timed
        self._handler, self._timed = handler, timed

    def stop(self) -> None:
        """Leave the handler as it was."""
        if self._handler is not None and vars(self._handler).get("call_event") is self._timed:
            del self._handler.call_event  # the method of the class shows again
        self._handler = self._timed = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do not time what is inside, such as the boundary between two iterations."""
        timed = self._depth > 0
        if timed:
            self._callbacks.__exit__(None, None, None)
        try:
            yield
        finally:
            if timed:
                self._callbacks.__enter__()

    @contextmanager
    def _event(self) -> Iterator[None]:
        """Time an event. One that a callback causes is part of that callback."""
        self._depth += 1
        if self._depth == 1:
            self._callbacks.__enter__()
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._callbacks.__exit__(None, None, None)

    def _begin_step(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._optimizer.__enter__()

    def _end_step(self) -> None:
        if self._stepping:
            self._stepping = False
            self._optimizer.__exit__(None, None, None)
