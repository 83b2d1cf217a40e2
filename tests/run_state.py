"""The inside of a run, for tests that look at what it would send or give it commands without a daemon."""

from __future__ import annotations

import hoptui
from hoptui.sdk.metric_values import QueuedRow, TimedRow, complete
from hoptui.sdk.shared_state import SharedState


def run_state(run: hoptui.Run) -> SharedState:
    """Return the state that the run's two threads share."""
    return run._core.state


def queued_rows(state: SharedState) -> list[TimedRow]:
    """Return the rows that wait to be sent, as they will be sent."""
    return [complete(row) for row in state.rows]


def queued(t: int, step: int, values: dict[str, float]) -> QueuedRow:
    """Return a row as the training thread would leave it."""
    return t, step, values, None, {}
