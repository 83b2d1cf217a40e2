"""How much to ask of a daemon at the other end of a line: all there is, or what a thin one carries. No I/O.

A viewer has one Fetch on its way at a time, so no line is ever overrun; but on a thin one each answer is
under way for long, and what it shows is as old as that. So a thin line is asked less often, for fewer sources
and for a coarser past: it then carries at most some 30 KB a second.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

from hoptui.domain import pacing

LATE_S = 0.5
"""An answer that was longer under way than this, twice in a row, came over a line that is asked for too
much."""
RECOVER_S = 30.0
"""After so long without one more is asked for again; after twice that the next time, so that a line at its
limit does not flutter."""
HUNGRY_RATE, MODEST_RATE = 600e3, 60e3
"""Bytes a second, of answers about the past, from which on a line carries everything, or most."""
LEAST_BYTES = 2048
"""What is smaller tells more of the distance than of the rate."""


class Appetite(NamedTuple):
    """What is asked for: seconds between two Fetches, unless rows were held back; rows of a source, and
    values in them, at most; buckets of a Query at most, and bytes of its answer, behind which all else waits;
    Queries at once; whether all sources are followed or only the most telling."""

    frame_s: float
    rows: int
    values: int
    points: int
    past_bytes: int
    at_once: int
    every_source: bool


HUNGRY = Appetite(
    frame_s=pacing.FETCH_S,
    rows=2000,
    values=1 << 20,
    points=512,
    past_bytes=1 << 20,
    at_once=4,
    every_source=True,
)
MODEST = Appetite(
    frame_s=pacing.FETCH_MODEST_S,
    rows=500,
    values=1 << 14,
    points=256,
    past_bytes=64_000,
    at_once=1,
    every_source=True,
)
THRIFTY = Appetite(
    frame_s=pacing.FETCH_THRIFTY_S,
    rows=60,
    values=1000,
    points=64,
    past_bytes=24_000,
    at_once=1,
    every_source=False,
)


def on_the_line(frames: Iterable[bytes]) -> int:
    """The bytes that a message took of a line: ssh compresses it. GPUs that do nothing are a tenth of what
    metrics that move are, and a line judged by the one would be stopped by the other for many seconds."""
    return len(zlib.compress(b"".join(frames), 1))


class Flow:
    """Tell it of every answer. A line begins with little, until it has carried some; there is none to a
    daemon of this node."""

    def __init__(self, *, remote: bool = False) -> None:
        self.appetite = THRIFTY if remote else HUNGRY
        self.slow = False
        self._remote = remote
        self._late = 0
        self._late_at = 0.0
        self._recover_s = RECOVER_S

    def carried(self, size: int, seconds: float, now: float) -> None:
        """An answer about the past, of so many bytes on the line, was there so long after it was asked for
        and after the one before it."""
        if self._remote and size >= LEAST_BYTES:
            rate = size / max(seconds, 1e-3)
            self._take(HUNGRY if rate >= HUNGRY_RATE else MODEST if rate >= MODEST_RATE else THRIFTY, now)

    def answered(self, under_way_s: float, now: float) -> None:
        """A Delta came that was so long under way, by the node's own stamp in it."""
        if not self._remote:
            return
        self._late = self._late + 1 if under_way_s > LATE_S else 0
        if self._late:
            self._late_at = now
        if self._late > 1 and self.appetite is not THRIFTY:
            self._take(THRIFTY, now)
            self._recover_s *= 2
        elif self._late > 1:
            self.slow = True
        elif self.slow and now - self._late_at >= self._recover_s:
            self._take(MODEST, now)

    def _take(self, appetite: Appetite, now: float) -> None:
        self.appetite = appetite
        self.slow = appetite is THRIFTY
        self._late = 0
        self._late_at = now
