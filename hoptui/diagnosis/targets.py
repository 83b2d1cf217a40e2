"""Whether the GPUs of a run meet a target: means over whole iterations that only trained. No clock, no I/O.

A mean, because training alternates between phases: a median names the longer phase only, and one high
sample in half a minute says little.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hoptui.diagnosis.window import MOST_ASIDE
from hoptui.domain.columns import Columns
from hoptui.domain.devices import GpuInfo
from hoptui.domain.targets import Standing, Target
from hoptui.domain.throughput import ASIDE_COLUMNS, took

SECOND = 1_000_000_000
JUDGED_S = 30.0
"""The least training time behind a judgement."""
BACK_NS = 900 * SECOND
"""Iterations that ended longer ago are not looked at."""
BLOCK_NS = SECOND
"""Shorter iterations are joined to blocks of this length."""
COVERED_NS = 2_500_000_000
"""A reading stands for the time since the one before it, at most this long."""
KNOWN = 0.5
"""A reading that is known for a smaller share of the time is unknown."""
WARM_UP, WARM_UP_NS = 5, 10 * SECOND
"""Iterations at the start of a process that do not count: compilation, caches. Of long iterations only those
that end within this time, and at least one."""

Stretch = tuple[int, int]
"""Start and end, monotonic ns."""


class TrainingTime:
    """When a process of a run trained: whole iterations, without those that mostly evaluated or saved.

    Pauses and setup lie between iterations and are in none. `begun` is a stamp before the first of them.
    """

    def __init__(self, begun: int) -> None:
        self._begun = begun
        self._warm = 0  # iterations that were left out at the start
        self._counts = False
        self._blocks: deque[Stretch] = deque()
        self.seen_t = begun

    def add(self, rows: Columns) -> None:
        """Add new rows of the run, oldest first."""
        times = rows.times()
        if not len(times):
            return
        self.seen_t = times[-1]
        if "iteration_s" not in rows.names:
            return
        aside = [rows.column(name) for name in ASIDE_COLUMNS if name in rows.names]
        for i, (t, seconds) in enumerate(zip(times, rows.column("iteration_s"), strict=True)):
            if not took(seconds) or self._warming(t):
                continue
            if sum(max(0.0, column[i]) for column in aside if column[i] > 0) <= MOST_ASIDE * seconds:
                self._extend(t - int(seconds * SECOND), t)
        while self._blocks and self._blocks[0][1] < self.seen_t - BACK_NS:
            self._blocks.popleft()

    def newest(self, seconds: float = JUDGED_S) -> list[Stretch]:
        """Return the newest stretches, oldest first, that have so many seconds; empty if there are fewer."""
        found: list[Stretch] = []
        missing = int(seconds * SECOND)
        for start, end in reversed(self._blocks):
            found.append((start, end))
            missing -= end - start
            if missing <= 0:
                return found[::-1]
        return []

    def _warming(self, t: int) -> bool:
        if self._counts:
            return False
        self._warm += 1
        self._counts = self._warm >= WARM_UP or t - self._begun > WARM_UP_NS
        return True

    def _extend(self, start: int, end: int) -> None:
        start = max(start, self._begun)
        if self._blocks:
            first, last = self._blocks[-1]
            start = max(start, last)
            if last - first < BLOCK_NS and start - last < BLOCK_NS // 20:
                self._blocks[-1] = (first, end)
                return
        if end > start:
            self._blocks.append((start, end))


class Judgement(NamedTuple):
    """How a target stands. `mean` and `gpu` (UUID) are of the GPU that is furthest on the wrong side."""

    standing: Standing
    mean: float | None = None
    gpu: str = ""


def judge(
    target: Target, stretches: Sequence[Stretch], gpus: Sequence[GpuInfo], rows: Mapping[str, Columns | None]
) -> Judgement:
    """Judge a target by the worst GPU of a run.

    One GPU that is known to miss it is enough for a miss. Otherwise all must be known.

    Args:
        stretches: the training time that counts, oldest first.
        gpus: those of the run.
        rows: their readings by UUID, from before the first stretch on.
    """
    means = {gpu.uuid: _mean(target, stretches, gpu, rows.get(gpu.uuid)) for gpu in gpus}
    known = {uuid: mean for uuid, mean in means.items() if mean is not None}
    if not known:
        return Judgement("unknown")
    worst = (min if target.side == "least" else max)(known, key=lambda uuid: known[uuid])
    mean = known[worst]
    missed = mean < target.value if target.side == "least" else mean > target.value
    if not missed and len(known) < len(means):
        return Judgement("unknown")
    return Judgement("missed" if missed else "met", mean, worst)


def whole_of(gpu: GpuInfo, reading: str) -> float | None:
    """Return what a share of this reading is a share of, None if it is unknown or there is nothing."""
    match reading:
        case "memory_used_bytes":
            return gpu.memory_total_bytes or None
        case "power_w" | "power_average_w":
            return gpu.power_limit_w or None
        case "sm_clock_mhz":
            return gpu.sm_clock_max_mhz or None
    return None


def _mean(target: Target, stretches: Sequence[Stretch], gpu: GpuInfo, rows: Columns | None) -> float | None:
    if rows is None or target.reading not in rows.names or gpu.problem is not None:
        return None
    scale = 1.0
    if target.share:
        whole = whole_of(gpu, target.reading)
        if whole is None:
            return None
        scale = 1 / whole
    total = weight = 0.0
    before: int | None = None
    at = 0
    for t, value in zip(rows.times(), rows.column(target.reading), strict=True):
        if not math.isfinite(value):
            continue
        start = t - COVERED_NS if before is None else max(before, t - COVERED_NS)
        before = t
        while at < len(stretches) and stretches[at][1] <= start:
            at += 1
        inside = 0
        for first, last in stretches[at:]:
            if first >= t:
                break
            inside += min(t, last) - max(start, first)
        if 2 * inside < t - start:  # mostly of something else
            continue
        total += value * inside
        weight += inside
    if weight < KNOWN * sum(end - start for start, end in stretches):
        return None
    return total / weight * scale
