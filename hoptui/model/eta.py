"""How long a run has still to go, at the pace that it really keeps: the same for the command line and the
dashboard. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hoptui.protocol.messages import CommandRecord, RunState, Vital

SECOND = 1_000_000_000
WITHIN_S = 600.0
LEAST = 10  # iterations that say a pace
POINTS = 16  # the pace is taken from the end of the first of them to the end of the last


Ends = tuple[Sequence[int], Sequence[float]]
"""When some iterations ended (stamps, monotonic ns), and their numbers."""


def left_s(
    run: RunState,
    vital: Vital,
    commands: Iterable[CommandRecord],
    read: Callable[[int], Ends | None],
    *,
    begun: int,
    last_t: int,
) -> float | None:
    """Seconds until the last iteration ends; None where their number or the pace is unknown.

    Args:
        read: gives about `POINTS` iterations that ended from a stamp on, up to the newest.
        begun: the stamp at which this process of the run began.
        last_t: the stamp of the newest row.
    """
    if not run.total:
        return None
    ends = read(_since(begun, last_t, commands))
    pace = (_pace_s(*ends) if ends is not None else None) or vital.iteration_s
    return max(0, run.total - vital.step) * pace if pace is not None else None


def _since(begun: int, last_t: int, commands: Iterable[CommandRecord]) -> int:
    """From which stamp on the pace counts: the last minutes of this process, and since the last command
    ended.

    So a knob's new value shows at once, and a pause does not count.
    """
    settled = (record.settled for record in commands if record.settled)
    return max(begun, last_t - int(WITHIN_S * SECOND), *settled, 0)


def _pace_s(t: Sequence[int], steps: Sequence[float]) -> float | None:
    """Seconds an iteration, with what lies between some of them, as evaluations do; None for too few.

    The median of their times would not include those.
    """
    known = [(at, step) for at, step in zip(t, steps, strict=True) if step == step and step >= 0]
    if len(known) < 2:
        return None
    (began, first), (ended, last) = known[0], known[-1]
    return (ended - began) / SECOND / (last - first) if last - first >= LEAST else None
