"""How long a run has still to go, at the pace that it really keeps: the same for the command line and the dashboard. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hoptui.protocol.messages import CommandRecord, RunState, Vital

SECOND = 1_000_000_000
WITHIN_S = 600.0
LEAST = 10  # iterations that say a pace
POINTS = 16  # the pace is taken from the end of the first of them to the end of the last


def since(begun: int, last_t: int, commands: Iterable[CommandRecord]) -> int:
    """From which stamp on the pace counts, up to the newest row at `last_t`: of the last minutes, of this epoch, which has `begun`
    then, and since the last command was carried out, so that a knob's new value shows at once and a pause does not count."""
    settled = (record.settled for record in commands if record.settled)
    return max(begun, last_t - int(WITHIN_S * SECOND), *settled, 0)


def pace_s(t: Sequence[int], steps: Sequence[float]) -> float | None:
    """Seconds an iteration, from the stamps of some of them and their numbers, with what lies between and in some of them only, as
    evaluations do: the median of their times would know nothing of these. None for too few."""
    known = [(at, step) for at, step in zip(t, steps, strict=True) if step == step and step >= 0]
    if len(known) < 2:
        return None
    (began, first), (ended, last) = known[0], known[-1]
    return (ended - began) / SECOND / (last - first) if last - first >= LEAST else None


def left_s(run: RunState, vital: Vital, pace: float | None) -> float | None:
    """Seconds until the last iteration ends at a `pace`; None where that, or how many there are, is not known."""
    return max(0, run.total - vital.step) * pace if run.total and pace is not None else None
