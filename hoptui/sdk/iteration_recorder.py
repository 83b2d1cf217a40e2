"""The rows of a run: one row per iteration, with its metrics, its duration, its phases and its rates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hoptui.sdk.shared_state import SharedState

MICROSECONDS = 6
"""Decimals of a duration. Further ones are noise, and a recording cannot compress noise."""
COUNTS = ("env_steps", "tokens", "samples")
"""Metrics that count the work of one iteration. Each gives a rate, `<name>_per_s`."""


class IterationRecorder:
    """Collects the metrics of the iteration in progress and queues its row for the link thread.

    `began` is when the iteration in progress began in monotonic seconds, 0.0 before the first boundary.
    """

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._row: dict[str, float] | None = None
        self._last_t = 0
        self.began = 0.0

    def log(self, values: Mapping[str, Any] | None, metrics: Mapping[str, Any]) -> None:
        """Add metrics to the row of this iteration. Outside of a loop, queue them as a row."""
        state = self._state
        if not state.alive:
            return
        try:
            if values:
                metrics = {**values, **metrics} if metrics else values
            if state.rank:
                metrics = {name: metrics[name] for name in COUNTS if name in metrics}
            row = self._row
            if row is not None:
                row.update(state.converter.convert(self._last_t, state.step, metrics))
            else:
                t = self._stamp()
                self._append(t, state.converter.convert(t, state.step, metrics))
        except Exception as error:  # an error of hoptui must not reach the loop
            self._row = None
            state.give_up(error)

    def begin(self) -> None:
        """Start an iteration. Phases between two iterations belong to neither."""
        state = self._state
        state.phases.take()
        self._row = {} if state.alive and not state.stopping else None
        state.progress = self.began = time.monotonic()

    def finish(self) -> None:
        """Queue the row of the iteration in progress, if there is one."""
        row = self._row
        if row is None:
            return
        self._row = None
        state = self._state
        try:
            seconds = time.monotonic() - self.began
            row["iteration_s"] = round(seconds, MICROSECONDS)
            for path, spent in state.phases.take().items():
                row[f"phase/{path}"] = round(spent, MICROSECONDS)
            if seconds > 0:
                for name in COUNTS:
                    if name in row:
                        rate = row[name] / seconds
                        row[f"{name}_per_s"] = round(rate, 3) if rate >= 1 else rate
            if state.alive:
                self._append(self._stamp(), row)
        except Exception as error:  # an error of hoptui must not reach the loop
            state.give_up(error)

    def discard(self) -> None:
        """Drop the row of an iteration that will not take place."""
        self._row = None

    def flush(self) -> None:
        """Queue the rows whose values have arrived from a GPU."""
        for _, step, row in self._state.converter.late_rows():
            self._queue(self._stamp(), step, row)

    def _append(self, t: int, row: dict[str, float]) -> None:
        state = self._state
        if state.converter.in_flight:
            for _, step, late in state.converter.late_rows():
                self._queue(t, step, late)
                t = self._stamp()
        state.rows.append((t, state.step, row))
        state.rows_added += 1
        link = state.link
        if link is not None and link.idle:
            link.idle = False
            link.wake()

    def _queue(self, t: int, step: int, row: dict[str, float]) -> None:
        self._state.rows.append((t, step, row))
        self._state.rows_added += 1

    def _stamp(self) -> int:
        """Return monotonic nanoseconds that rise with every row."""
        self._last_t = max(time.monotonic_ns(), self._last_t + 1)
        return self._last_t
