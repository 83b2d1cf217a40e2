"""How long a run has still to go."""

from __future__ import annotations

from hoptui.model import eta
from hoptui.tui.view import SECOND, View


def left_s(view: View) -> float | None:
    """Seconds until the last iteration ends; None where the run does not say how many there are, or its pace is unknown, and
    while nothing new is heard of it: nobody knows then how far it is."""
    run, vital = view.run, view.vital
    if run is None or vital is None or not run.total or view.stale:
        return None
    return eta.left_s(run, vital, _pace_s(view) or vital.iteration_s)


def _pace_s(view: View) -> float | None:
    steps = view.store.steps(view.source)
    if steps is None or view.run is None:
        return None
    begun = view.now - int((view.wall - view.run.started_wall) * SECOND)
    start = eta.since(begun, steps.last_t, view.commands())
    found = steps.window(start, steps.last_t, eta.POINTS)
    return eta.pace_s(found.t, found.high)
