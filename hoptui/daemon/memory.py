"""Memory of the GPUs of live runs, and of the node, that will soon be full."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.facts import fact
from hoptui.domain.memory_growth import LEAST_GROWTH, seconds_left
from hoptui.node.cgroups import LimitedMemory, limited_memory

SECOND = 1_000_000_000
EVERY_S = 5.0
KEPT_S = 480.0
FIRST_S = 120.0
"""Allocators grow at the start of a process."""
SOON_S, LATER_S = 3600.0, 5400.0
"""Memory that is full earlier is reported. It must then last for longer, or not grow, for the end of it."""
CALM_LOOKS = 24
"""So many looks in a row, two minutes."""
JOB = "job"
"""The source of the memory of the control group of a run: that of its job or its container."""
USED, TOTAL = "memory_used_bytes", "memory_total_bytes"


@dataclass
class _Series:
    """The readings of a memory since a process of a run began. `peak` is the highest before the kept ones."""

    nonce: str
    since: float
    readings: deque[tuple[float, float]] = field(default_factory=deque)
    peak: float = 0.0
    told: bool = False
    calm: int = 0


class MemoryForecast:
    """Judges the memory of the live runs of a node. Call `tend` about once per second.

    Args:
        limit_of: returns the memory of the control group of a process, as `limited_memory` does.
    """

    def __init__(self, node: Node, limit_of: Callable[[int], LimitedMemory | None] = limited_memory) -> None:
        self._node = node
        self._limit_of = limit_of
        self._series: dict[tuple[str, str], _Series] = {}
        self._due = 0.0

    def tend(self) -> None:
        """Judge the memory of every run if it is due."""
        now = self._node.clock.t() / SECOND
        if now < self._due:
            return
        self._due = now + EVERY_S
        live = self._node.registry.live()
        ids = {run.id for run in live}
        self._series = {key: found for key, found in self._series.items() if key[0] in ids}
        for run in live:
            self._node.faults.attempt(f"looking at the memory of {run.id}", self._look, run, now)

    def _look(self, run: TrackedRun, now: float) -> None:
        totals = {f"gpu/{gpu.uuid}": gpu.memory_total_bytes for gpu in self._node.gpus}
        for source in ("host", *(f"gpu/{uuid}" for uuid in run.state.gpus)):
            ring = self._node.rings.get(source)
            row = ring.last() if ring is not None else None
            if row is None or row.last_t / SECOND < now - 2 * EVERY_S:
                continue
            values = row.last()
            total = totals.get(source) or values.get(TOTAL, 0.0)
            if USED in values and total:
                self._add(run, source, now, values[USED], total)
        if (limited := self._limit_of(run.state.pid)) is not None:
            self._add(run, JOB, now, limited.used_bytes, limited.limit_bytes)

    def _add(self, run: TrackedRun, source: str, now: float, used: float, total: float) -> None:
        series = self._series.get((run.id, source))
        if series is None or series.nonce != run.nonce:
            series = self._series[run.id, source] = _Series(run.nonce, now)
        if now - series.since < FIRST_S:
            return
        readings = series.readings
        readings.append((now, used))
        while readings[0][0] < now - KEPT_S:
            series.peak = max(series.peak, readings.popleft()[1])
        left = seconds_left([t for t, _ in readings], [value for _, value in readings], total)
        if left is not None and left <= SOON_S and used > series.peak + LEAST_GROWTH * total:
            series.calm = 0
            if not series.told:
                series.told = True
                self._report(run, source, left, used, total)
        elif series.told and (left is None or left > LATER_S):
            series.calm += 1
            if series.calm >= CALM_LOOKS:
                series.told, series.calm = False, 0
                what = fact("memory.steady", of=self._name(source))
                self._node.event("memory", what, run=run.id, step=run.step, source=source)

    def _report(self, run: TrackedRun, source: str, left_s: float, used: float, total: float) -> None:
        what = fact(
            "memory.soon_full",
            of=self._name(source),
            minutes=round(left_s / 60),
            used_bytes=round(used),
            total_bytes=round(total),
        )
        self._node.event("memory", what, run=run.id, step=run.step, level="warning", source=source)

    def _name(self, source: str) -> str:
        if source == JOB:
            return "the job"
        index = next((gpu.index for gpu in self._node.gpus if source == f"gpu/{gpu.uuid}"), None)
        return "the node" if index is None else f"GPU {index}"
