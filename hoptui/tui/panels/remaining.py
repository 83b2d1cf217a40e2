"""How long a run has still to go, at the pace that it really keeps."""

from __future__ import annotations

from hoptui.tui.view import SECOND, View

WITHIN_S = 600.0
LEAST = 10  # iterations that say a pace
POINTS = 16  # the pace is taken from the end of the first of them to the end of the last


def left_s(view: View) -> float | None:
    """Seconds until the last iteration ends; None where the run does not say how many there are, or its pace is unknown, and
    while nothing new is heard of it: nobody knows then how far it is."""
    run, vital = view.run, view.vital
    if run is None or vital is None or not run.total or view.stale:
        return None
    pace = _pace_s(view) or vital.iteration_s
    return max(0, run.total - vital.step) * pace if pace is not None else None


def _pace_s(view: View) -> float | None:
    """Seconds an iteration of the last minutes, with what lies between and in some of them only, as evaluations do: the median of
    their times would know nothing of these. It begins anew with each command that was carried out, so that a knob's new value
    shows at once and a pause does not count."""
    steps = view.store.steps(view.source)
    if steps is None or view.run is None:
        return None
    settled = (record.settled for record in view.commands() if record.settled)
    begun = view.now - int((view.wall - view.run.started_wall) * SECOND)
    since = max(begun, steps.last_t - int(WITHIN_S * SECOND), *settled, 0)
    found = steps.window(since, steps.last_t, POINTS)
    known = [(t, step) for t, step in zip(found.t, found.high, strict=True) if step == step]
    if len(known) < 2:
        return None
    (began, first), (ended, last) = known[0], known[-1]
    return (ended - began) / SECOND / (last - first) if last - first >= LEAST else None
