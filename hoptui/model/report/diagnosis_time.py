"""For how long a run was found to be held back by what, from the events of its recording. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hoptui.domain.tuning import heard
from hoptui.model.recorded.point_in_time import ALIVE
from hoptui.protocol.messages import Event

DIAGNOSIS = "diagnosis"
UNDIAGNOSED = ""
"""In place of a verdict: before the first one of an epoch."""


class VerdictDuration(NamedTuple):
    """A verdict, for how many seconds it held in all, and the evidence that was given when it last began."""

    verdict: str
    seconds: float
    evidence: str


class _Stretch(NamedTuple):
    start: int
    end: int
    verdict: str
    evidence: str


def held(events: Iterable[Event], first: int, end: int) -> list[VerdictDuration]:
    """The verdicts of a run that lived between two stamps, the longest first, and the time without one last.

    A verdict holds until the next one, or until the process that it was found for ends; nothing is said of
    the time in which none lived. `events` are the run's, oldest first.
    """
    seconds: dict[str, float] = {}
    evidence: dict[str, str] = {}
    for stretch in _stretches(events, first, end):
        seconds[stretch.verdict] = seconds.get(stretch.verdict, 0.0) + (stretch.end - stretch.start) / 1e9
        evidence[stretch.verdict] = stretch.evidence
    found = [
        VerdictDuration(verdict, spent, evidence[verdict]) for verdict, spent in seconds.items() if spent > 0
    ]
    return sorted(found, key=lambda one: (one.verdict == UNDIAGNOSED, -one.seconds))


def alive_s(events: Iterable[Event], first: int, end: int) -> float:
    """The seconds between two stamps in which a process of the run lived."""
    return sum((stretch.end - stretch.start) / 1e9 for stretch in _stretches(events, first, end))


def _stretches(events: Iterable[Event], first: int, end: int) -> Iterator[_Stretch]:
    """A run whose beginning was not recorded lived from the start."""
    at, verdict, evidence, lives = first, UNDIAGNOSED, "", True
    for event in events:
        if event.kind not in (*ALIVE, "exited", DIAGNOSIS) or not first <= event.t <= end:
            continue
        if lives:
            yield _Stretch(at, event.t, verdict, evidence)
        at = event.t
        match event.kind:
            case "diagnosis":
                found = heard(event.text, event.t)
                verdict, evidence = found.verdict, "; ".join(found.evidence)
            case "reconnected" if lives:
                pass
            case kind:
                verdict, evidence, lives = UNDIAGNOSED, "", kind != "exited"
    if lives:
        yield _Stretch(at, end, verdict, evidence)
