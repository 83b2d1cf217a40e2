"""Progress of the tokens of a corpus: one line that changes on a terminal, or a line in a log now and
then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

QUIET_S = 2.0
"""A step that takes less is not reported."""
TERMINAL_S, LOG_S = 0.2, 15.0
"""Seconds between two reports."""
CLEAR = "\r\x1b[K"


class PreparationProgress:
    """Called often with what is done and the part of it that is done.

    Args:
        say: writes a line.
        terminal: where one line is written again and again instead; None in a log.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        terminal: TextIO | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._terminal, self._clock = say, terminal, clock
        self._what, self._began, self._next = "", 0.0, 0.0
        self._shown = False

    def __call__(self, what: str, done: float) -> None:
        now = self._clock()
        if what != self._what:
            self._what, self._began, self._next = what, now, now + QUIET_S
        if now < self._next:
            return
        self._next = now + (LOG_S if self._terminal is None else TERMINAL_S)
        text = what
        if done > 0:
            text = f"{what}: {done:.0%}, about {(now - self._began) * (1 - done) / done:,.0f} s left"
        if self._terminal is None:
            self._say(text)
        else:
            self._terminal.write(CLEAR + text)
            self._terminal.flush()
            self._shown = True

    def close(self) -> None:
        """Remove the line that changes."""
        if self._terminal is not None and self._shown:
            self._terminal.write(CLEAR)
            self._terminal.flush()
