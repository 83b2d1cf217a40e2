"""How far apart the values of a metric usually are, and when its newest value is no longer current. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import sub

FORGET = 5
"""A value that was omitted for this many usual spacings is not current."""
NEIGHBOURS = 8
"""The number of spacings that define what is usual."""
FEWEST = 3
"""Stamps that define a spacing."""


def usual(times: Sequence[int]) -> int:
    """Return the median spacing of at least two stamps."""
    spacings: list[int] = sorted(map(sub, islice(times, 1, None), times))
    return spacings[(len(spacings) - 1) // 2]


def outdated(times: Sequence[int], late: int) -> bool:
    """Return whether a value is no longer current `late` ns after its stamp.

    `times` are the newest stamps of the metric, oldest first. Few of them define no spacing.
    """
    return late > 0 and len(times) >= FEWEST and late > FORGET * usual(times)
