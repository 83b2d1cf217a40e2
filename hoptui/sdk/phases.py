"""Where an iteration's time goes: nested phases on the host clock, and seconds that were measured by other means."""

from __future__ import annotations

import time
from types import TracebackType


class Phases:
    """The phases of the iteration in progress. `current` is the path of the innermost one, e.g. `rollout/env`."""

    def __init__(self) -> None:
        self.current = ""
        self.since = time.monotonic()
        self._seconds: dict[str, float] = {}

    def add(self, path: str, seconds: float) -> None:
        """Add time to a phase of this iteration."""
        self._seconds[path] = self._seconds.get(path, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Seconds by phase path since the last call, and begin anew."""
        taken, self._seconds = self._seconds, {}
        return taken


class Phase:
    """`with run.phase("rollout"):`; leaving it adds the time, also when the body raises."""

    __slots__ = ("_name", "_outer", "_phases", "_start")

    def __init__(self, phases: Phases, name: str) -> None:
        self._phases = phases
        self._name = name

    def __enter__(self) -> None:
        phases = self._phases
        self._outer = phases.current
        phases.current = f"{self._outer}/{self._name}" if self._outer else self._name
        self._start = phases.since = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        phases = self._phases
        now = time.monotonic()
        phases.add(phases.current, now - self._start)
        phases.current = self._outer
        phases.since = now
