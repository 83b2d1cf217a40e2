"""What a trace of a run records."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TRACED = 1000
"""Iterations of one trace; the same as in `hoptui profile`."""
WAIT = 10
"""Iterations before a trace from the command line: in the first ones shapes are compiled."""
WARMUP = 1


@dataclass(frozen=True, kw_only=True)
class TracePlan:
    """What a trace records: `steps` iterations after `wait` and `warmup` others.

    In the warm-up the profiler runs and drops what it sees, because its own start distorts the first
    iterations. `stacks` are source lines of operations, `shapes` those of their inputs, `memory` each
    allocation.
    """

    steps: int
    wait: int = 0
    warmup: int = WARMUP
    stacks: bool = False
    shapes: bool = False
    memory: bool = False

    @property
    def lead(self) -> int:
        """Iterations before the first one that is recorded."""
        return self.wait + self.warmup
