"""How long targets were missed."""

from __future__ import annotations

import msgspec

from hoptui.domain.targets import Target, TargetState
from hoptui.model.target_times import TargetTime, target_times
from hoptui.protocol.messages import Event

SECOND = 1_000_000_000
BUSY = Target(reading="busy", value=90.0)
LESS = Target(reading="busy", value=80.0)
COOL = Target(reading="temperature_c", value=80.0, side="most")


def event(t_s: float, code: str, target: Target = BUSY, mean: float | None = None) -> Event:
    fields = {"target": msgspec.to_builtins(target), "mean": mean, "seconds": 30.0}
    t = int(t_s * SECOND)
    return Event(seq=t, t=t, wall=0.0, kind="target", code=f"target.{code}", fields=fields, run="r")


def life(t_s: float, kind: str) -> Event:
    return Event(seq=int(t_s), t=int(t_s * SECOND), wall=0.0, kind=kind, run="r")


def times(*events: Event, states: tuple[TargetState, ...] = (), end_s: float = 100.0) -> list[TargetTime]:
    return list(target_times(events, states, int(end_s * SECOND)))


def test_time_between_a_miss_and_its_end() -> None:
    [found] = times(event(1, "set"), event(10, "missed", mean=50.0), event(30, "met", mean=95.0))
    assert (found.misses, found.missed_s, found.removed) == (1, 20.0, False)
    assert (found.state.standing, found.state.mean) == ("met", 95.0)


def test_a_miss_lasts_until_the_end_or_the_removal() -> None:
    [found] = times(event(1, "set"), event(10, "missed"))
    assert found.missed_s == 90.0
    [found] = times(event(1, "set"), event(10, "missed"), event(25, "removed"))
    assert (found.missed_s, found.removed) == (15.0, True)


def test_time_without_a_process_does_not_count() -> None:
    [found] = times(
        event(1, "set"), event(10, "missed"), life(20, "exited"), life(60, "restarted"), event(70, "met")
    )
    assert found.missed_s == 20.0


def test_another_value_replaces_a_target() -> None:
    state = TargetState(target=LESS, standing="met", mean=85.0)
    first, second, other = times(
        event(1, "set"),
        event(10, "missed"),
        event(30, "set", LESS),
        event(31, "set", COOL),
        event(40, "missed", LESS),
        event(50, "met", LESS),
        states=(state, TargetState(target=COOL, standing="met", mean=60.0)),
    )
    assert (first.target, first.missed_s, first.removed) == (BUSY, 20.0, True)
    assert (second.state, second.missed_s) == (state, 10.0)
    assert (other.misses, other.state.mean) == (0, 60.0)


def test_events_that_do_not_fit_are_left_out() -> None:
    odd = msgspec.structs.replace(event(1, "missed"), fields={"target": {"reading": 5}})
    assert times(odd, life(2, "started")) == []
