"""When the phases of a run were, and what its GPUs read during them."""

from __future__ import annotations

import msgspec


class PhaseSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time in one phase, from `start` to `end` (monotonic ns)."""

    path: str
    start: int
    end: int


class PhaseReadings(msgspec.Struct, frozen=True, kw_only=True):
    """What the GPUs read during a phase: means by the name of the reading, over so many `samples`.

    Only samples whose window lies within the phase count.
    """

    phase: str
    samples: int
    readings: dict[str, float] = {}
