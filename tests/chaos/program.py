"""Which acts a chaos run has, and the share of time of each."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos import acts, resources, volume


@dataclass(frozen=True)
class Part:
    """An act and its share of the time."""

    run: acts.Act
    share: float


ACTS = {
    "processes": Part(acts.processes, 8.0),
    "unchanged": Part(acts.unchanged, 1.0),
    "disk": Part(resources.disk, 2.0),
    "limits": Part(resources.limits, 1.0),
    "pids": Part(resources.pids, 0.5),
    "clock": Part(resources.clock, 1.5),
    "fast": Part(volume.fast, 1.5),
    "large": Part(volume.large, 1.0),
}
"""By name, in order."""
