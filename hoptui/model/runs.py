"""A run by its name or id, and the time it has left at its real pace: the same for the command line and the
dashboard. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hoptui.presentation.numbers import clean
from hoptui.protocol.messages import CommandRecord, NodeState, RunState, Vital


class NoSuchRun(ValueError):  # noqa: N818 - says what is the case
    """No run has this name or id; the text is one sentence."""


class Ambiguous(ValueError):  # noqa: N818
    """Several runs have this name or begin of an id; the text names them."""


def find_run(node: NodeState, vitals: Mapping[str, Vital], text: str) -> RunState:
    """The run with this id, name, or beginning of an id; of several with one name, the only one that still
    lives.

    Raises:
        NoSuchRun: none has it; the names that are there are listed.
        Ambiguous: several have it; their ids and pids are listed.
    """
    for run in node.runs:
        if run.run == text:
            return run
    found = [run for run in node.runs if run.name == text]
    if not found and text:
        found = [run for run in node.runs if run.run.startswith(text)]
    if not found:
        raise NoSuchRun(f"no run {clean(text, 60)!r} on this node{_there(node, vitals)}")
    living = [run for run in found if lives(run, vitals)]
    if len(living) == 1:
        return living[0]
    if len(found) == 1:
        return found[0]
    which = living or found
    listed = ", ".join(f"{run.run} (pid {run.pid})" for run in which)
    kind = "live runs" if living else "runs that have exited"
    raise Ambiguous(f"{clean(text, 60)!r} is {len(which)} {kind}: {listed}; say which by its id")


def lives(run: RunState, vitals: Mapping[str, Vital]) -> bool:
    """Whether a run has not exited, as far as is known."""
    vital = vitals.get(run.run)
    return not run.exit_reason and (vital is None or vital.state != "exited")


def _there(node: NodeState, vitals: Mapping[str, Vital]) -> str:
    names = dict.fromkeys(clean(run.name, 40) for run in node.runs if lives(run, vitals))
    if not names:
        return ""
    shown = list(names)[:5]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"; there {'is' if len(names) == 1 else 'are'} {', '.join(shown)}{more}"


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
