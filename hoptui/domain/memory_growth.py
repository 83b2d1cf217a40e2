"""Memory that grows steadily: when it will be full."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = 8
"""Parts of equal length into which the readings are divided."""
LEAST_S = 240.0
"""Readings of a shorter time say nothing."""
LEAST_GROWTH = 0.005
"""The growth, as a share of all memory."""
LARGEST_STEP = 0.4
"""The share of the growth that one block may have: a step is no steady growth."""
STEADY = 0.95
"""The least coefficient of determination of a straight line through the blocks."""


def seconds_left(times_s: Sequence[float], used: Sequence[float], total: float) -> float | None:
    """Return in how many seconds the memory is full, None if it does not grow steadily.

    Args:
        times_s: When the readings were taken, in seconds, rising.
        used: The readings, in the unit of `total`.
        total: All memory.
    """
    if len(times_s) < 2 * BLOCKS or times_s[-1] - times_s[0] < LEAST_S or total <= 0:
        return None
    blocks = _blocks(times_s, used)
    if len(blocks) < BLOCKS:
        return None
    steps = [after - before for before, after in pairwise(blocks)]
    growth = blocks[-1] - blocks[0]
    if min(steps) <= 0 or growth < LEAST_GROWTH * total or max(steps) > LARGEST_STEP * growth:
        return None
    if blocks[-1] < max(used[: len(used) // 2]):
        return None  # it was as high before
    numbers = range(BLOCKS)
    if statistics.correlation(numbers, blocks) ** 2 < STEADY:
        return None
    slope = statistics.linear_regression(numbers, blocks).slope / ((times_s[-1] - times_s[0]) / BLOCKS)
    return max(0.0, (total - used[-1]) / slope)


def _blocks(times_s: Sequence[float], used: Sequence[float]) -> list[float]:
    """Return the median of each part that has readings."""
    began, length = times_s[0], (times_s[-1] - times_s[0]) / BLOCKS
    parts: list[list[float]] = [[] for _ in range(BLOCKS)]
    for t, value in zip(times_s, used, strict=True):
        parts[min(BLOCKS - 1, int((t - began) / length))].append(value)
    return [statistics.median(part) for part in parts if part]
