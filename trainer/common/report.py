"""What a person or a script is told on standard output."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

Ending = Literal["finished", "passed", "stopped"]
"""Why a run ended: its iterations are done, it reached what was asked for, somebody stopped it."""


class Console:
    """Lines for people: one an iteration, at most one a second."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._last = clock()

    def begin(self, lines: Iterable[str]) -> None:
        """Introduce the run and the conventions of its figures; the first second begins here."""
        for line in lines:
            self._write(line)
        self._last = self._clock()

    def due(self) -> float:
        """Seconds since the line before if it is time for one, else 0. Only then are figures read: that waits for a GPU."""
        seconds = self._clock() - self._last
        return seconds if seconds >= 1.0 else 0.0

    def line(self, parts: Iterable[str]) -> None:
        """Tell of a finished iteration; empty parts are left out."""
        self._write(" · ".join(part for part in parts if part))
        self._last = self._clock()

    def say(self, text: str) -> None:
        """A line out of turn."""
        self._write(text)


def result_json(figures: Mapping[str, object]) -> str:
    """One line of JSON; what is not known, or not finite, is null."""
    return json.dumps({name: _known(value) for name, value in figures.items()})


def _known(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def amount(count: float) -> str:
    """A large number in few digits: 950, 12.3K, 4.56M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(count) >= limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count:.3g}"


def percent(fraction: float | None) -> str:
    """A fraction for people; empty if it is not known."""
    return "" if fraction is None else f"{fraction:.1%}"
