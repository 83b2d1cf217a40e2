"""Decides which events are alerts: each once until it is good again, and not too many in an hour. No I/O."""

from __future__ import annotations

from collections import deque

import msgspec

from hoptui.domain.alert_settings import AlertSettings
from hoptui.domain.alerts import GOOD, SUPPRESSED, TRIGGERS, kind_of
from hoptui.domain.facts import Fact

HOUR_S = 3600.0
MOST_OPEN = 2000
"""Alerts that wait to be good again. The oldest are forgotten."""


class OpenAlert(msgspec.Struct):
    """An alert that has fired and is not good again. `about` is a run or a source, `subjects` what is bad."""

    kind: str
    about: str
    subjects: list[str] = []


class FiredAlerts(msgspec.Struct):
    """What a later daemon must know. `fired` and `notice` are in seconds since 1970."""

    open: list[OpenAlert] = []
    fired: list[float] = []
    notice: float = 0.0


class AlertBook:
    """The alerts of a node. `settings` may be replaced at any time. `changed` counts changes of `state`."""

    def __init__(self) -> None:
        self.settings = AlertSettings()
        self.changed = 0
        self._open: dict[tuple[str, str], OpenAlert] = {}
        self._fired: deque[float] = deque(maxlen=1000)
        self._notice = 0.0

    def judge(self, what: Fact, about: str, wall: float) -> str:
        """Take an event in. Return the kind of alert that fires now, "" for none.

        Args:
            about: the run, or the source of an event of the node.
            wall: seconds since 1970.

        Returns:
            `SUPPRESSED` if this is the first one above the limit of an hour.
        """
        for kind in GOOD.get(what.code, ()):
            self._good(kind, about, what)
        kind = kind_of(what)
        if kind == "crashed" and kind not in self.settings.on:
            kind = "ended"  # who asks for each end gets this one too
        if kind not in self.settings.on or not self._first(kind, about, what):
            return ""
        return self._limited(kind, wall)

    def is_open(self, kind: str, about: str) -> bool:
        """Whether an alert has fired and is not good again."""
        return (kind, about) in self._open

    def subjects(self, kind: str, about: str) -> tuple[str, ...]:
        """Return what is bad for an alert that has fired."""
        found = self._open.get((kind, about))
        return tuple(found.subjects) if found is not None else ()

    @property
    def state(self) -> FiredAlerts:
        return FiredAlerts(list(self._open.values()), list(self._fired), self._notice)

    def restore(self, state: FiredAlerts, wall: float) -> None:
        """Take over from an earlier daemon. Times in the future, of a clock that was wrong, do not count."""
        self._open = {(each.kind, each.about): each for each in state.open[-MOST_OPEN:]}
        self._fired.extend(t for t in state.fired if t <= wall)
        self._notice = state.notice if state.notice <= wall else 0.0

    def _good(self, kind: str, about: str, what: Fact) -> None:
        found = self._open.get((kind, about))
        if found is None:
            return
        self.changed += 1
        found.subjects = [each for each in found.subjects if each != _subject(kind, what)]
        if not found.subjects or not _subject(kind, what):
            del self._open[kind, about]

    def _first(self, kind: str, about: str, what: Fact) -> bool:
        found = self._open.get((kind, about))
        subject = _subject(kind, what)
        if found is not None and subject in found.subjects:
            return False
        self.changed += 1
        if found is not None:
            found.subjects.append(subject)
            return False
        while len(self._open) >= MOST_OPEN:
            del self._open[next(iter(self._open))]
        self._open[kind, about] = OpenAlert(kind, about, [subject])
        return True

    def _limited(self, kind: str, wall: float) -> str:
        while self._fired and self._fired[0] <= wall - HOUR_S:
            self._fired.popleft()
        self.changed += 1
        if len(self._fired) < self.settings.most_per_hour:
            self._fired.append(wall)
            return kind
        if self._notice > wall - HOUR_S:
            return ""
        self._notice = wall
        return SUPPRESSED


def _subject(kind: str, what: Fact) -> str:
    """Return what an event concerns, "" if the kind has no subjects."""
    field = next((each.subject for each in TRIGGERS.values() if each.kind == kind), "")
    value = what.fields.get(field, "") if field else ""
    return value if isinstance(value, str) else ""
