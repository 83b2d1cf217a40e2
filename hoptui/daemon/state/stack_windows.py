"""The stack samples of the last minute of every process of a run."""

from __future__ import annotations

from collections import deque

from hoptui.domain.stacks import KEPT_S, StackSamples, merged

MOST_PARTS = 64
"""Messages of one process that are kept: twice as many as it sends in that time."""
REPORT_BYTES = 64 << 10
"""Estimated size of the samples of one process in an answer."""
MOST_RANKS = 32
"""Processes of one answer: it stays below what a viewer takes."""


class StackWindows:
    """The newest samples by rank. Times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self._parts: dict[int, deque[StackSamples]] = {}

    def add(self, rank: int, samples: StackSamples) -> None:
        """Add the samples of a process, and forget those that are too old."""
        parts = self._parts.setdefault(rank, deque(maxlen=MOST_PARTS))
        parts.append(samples)
        while parts[0].ended < samples.ended - KEPT_S * 1e9:
            parts.popleft()

    def since(self, t: int) -> dict[int, StackSamples]:
        """Return the samples of each process that ended after `t`. A process without any is left out."""
        recent = {rank: [part for part in parts if part.ended > t] for rank, parts in self._parts.items()}
        return {rank: merged(parts, REPORT_BYTES) for rank, parts in sorted(recent.items()) if parts}
