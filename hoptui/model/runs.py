"""Lookup of a run by name or id, and its remaining time at the measured pace. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hoptui.presentation.numbers import clean
from hoptui.protocol.messages import CommandRecord, NodeState, RunState, Vital


class NoSuchRun(ValueError):  # noqa: N818 - says what is the case
    """No run has this name or id. The text is one sentence."""


class Ambiguous(ValueError):  # noqa: N818
    """Several runs have this name or prefix of an id. The text names them."""


def find_run(node: NodeState, vitals: Mapping[str, Vital], text: str) -> RunState:
    """Return the run with this id, name, or prefix of an id.

    Of several with one name, it is the only one that still lives.

    Raises:
        NoSuchRun: none matches; the text lists the existing names.
        Ambiguous: several match; the text lists their ids and pids.
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


@dataclass
class StartingRun:
    """A run whose process has been started: its pid, and whether it has ended. `state` is None until the run
    has connected.
    """

    pid: int
    ended: Callable[[], bool]
    state: RunState | None = None

    def find(self, node: NodeState) -> RunState | None:
        """Return the run, and keep it, once the node knows it."""
        living = (run for run in node.runs if run.pid == self.pid and not run.exit_reason)
        self.state = self.state or next(living, None)
        return self.state


def failed(run: RunState) -> bool:
    """Return whether a run has ended otherwise than by itself or by a command."""
    return run.exit_reason not in ("", "finished", "stopped")


def lives(run: RunState, vitals: Mapping[str, Vital]) -> bool:
    """Return whether a run has not exited, as far as known."""
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
RECENT_S = 60.0  # as recent as the typical time of an iteration: a mean over longer would be of another pace
LEAST = 10  # least number of iterations for a pace
POINTS = 16  # the pace covers the end of the first of them to the end of the last


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
    """Return the seconds until the last iteration ends, None if their number or the pace is unknown.

    Args:
        read: returns about `POINTS` iterations that ended after a stamp, up to the newest.
        begun: the stamp at which this process of the run began.
        last_t: the stamp of the newest row.
    """
    if not run.total or (vital.logs_only and vital.iteration_s is None):
        return None
    ends = read(_since(begun, last_t, commands))
    pace = (_pace_s(*ends) if ends is not None else None) or vital.iteration_s
    return max(0, run.total - vital.step) * pace if pace is not None else None


def recent_s(
    commands: Iterable[CommandRecord], read: Callable[[int], Ends | None], *, begun: int, last_t: int
) -> float | None:
    """Return the mean seconds from one iteration to the next in the last minute; None for too few.

    It is more than the usual time of an iteration where many short ones follow a long one, as the updates
    of a policy follow a rollout. For the arguments see `left_s`.
    """
    ends = read(_since(begun, last_t, commands, RECENT_S))
    return _pace_s(*ends) if ends is not None else None


def _since(begun: int, last_t: int, commands: Iterable[CommandRecord], within_s: float = WITHIN_S) -> int:
    """Return the stamp from which the pace counts.

    It covers the last minutes of this process, after the last command got its final stage. So a knob's new
    value shows at once, and a pause does not count.
    """
    settled = (record.settled for record in commands if record.settled)
    return max(begun, last_t - int(within_s * SECOND), *settled, 0)


def _pace_s(t: Sequence[int], steps: Sequence[float]) -> float | None:
    """Return the seconds per iteration, including pauses between them such as evaluations; None for too few.

    A median of iteration times would exclude those.
    """
    known = [(at, step) for at, step in zip(t, steps, strict=True) if step == step and step >= 0]
    if len(known) < 2:
        return None
    (began, first), (ended, last) = known[0], known[-1]
    return (ended - began) / SECOND / (last - first) if last - first >= LEAST else None
