"""How long the targets of a run were missed, from the events of its recording. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hoptui.domain.targets import Target, TargetState, key
from hoptui.model.recorded.point_in_time import BEGUN, target_of
from hoptui.protocol.messages import Event


class TargetTime(NamedTuple):
    """A target, how it stood last, how often and for how many seconds it was missed.

    Time without a process of the run does not count. `removed`: a user has removed it.
    """

    state: TargetState
    misses: int = 0
    missed_s: float = 0.0
    removed: bool = False

    @property
    def target(self) -> Target:
        return self.state.target


def target_times(events: Iterable[Event], states: Iterable[TargetState], end: int) -> tuple[TargetTime, ...]:
    """Return every target that the run ever had, in the order in which they were set.

    Args:
        events: the run's, oldest first.
        states: its targets at the end of the recording.
        end: the stamp of that end.
    """
    found: dict[Target, TargetTime] = {}
    since: dict[Target, int] = {}  # of those that are missed now

    def stop(target: Target, t: int) -> None:
        if (began := since.pop(target, None)) is not None:
            found[target] = found[target]._replace(missed_s=found[target].missed_s + (t - began) / 1e9)

    for event in events:
        if event.kind == "exited":
            for target in list(since):
                stop(target, event.t)
        elif event.kind in BEGUN:
            since |= {target: event.t for target, one in found.items() if _missed(one)}
        state = target_of(event) if event.kind == "target" else None
        if state is None:
            continue
        target = state.target
        known = found.get(target, TargetTime(state))
        stop(target, event.t)
        known = found.get(target, known)
        match event.code:
            case "target.set":
                replaced = [t for t in found if key(t) == key(target) and t != target]
                for other in replaced:
                    stop(other, event.t)
                    found[other] = found[other]._replace(removed=True)
                found[target] = known._replace(state=state, removed=False)
            case "target.missed":
                since[target] = event.t
                found[target] = known._replace(state=state, misses=known.misses + 1)
            case "target.met":
                found[target] = known._replace(state=state)
            case "target.removed":
                found[target] = known._replace(removed=True)
    for target in list(since):
        stop(target, end)
    last = {state.target: state for state in states}
    return tuple(one._replace(state=last.get(target, one.state)) for target, one in found.items())


def _missed(one: TargetTime) -> bool:
    return one.state.standing == "missed" and not one.removed
