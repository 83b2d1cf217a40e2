"""The inside of a run, for tests that look at what it would send or give it commands without a daemon."""

from __future__ import annotations

import hoptui
from hoptui.sdk.shared_state import SharedState


def run_state(run: hoptui.Run) -> SharedState:
    """Return the state that the run's two threads share."""
    return run._core.state
