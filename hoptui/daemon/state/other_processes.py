"""What processes other than a run's use of the CPUs and GPUs, beside a measured effect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from hoptui.daemon.state.row_buffers import Rings
from hoptui.domain.devices import GpuProcess
from hoptui.domain.facts import Fact, fact
from hoptui.protocol.messages import RunState
from hoptui.tuner.outside_load import differs

BEFORE_NS, AFTER_NS = 20_000_000_000, 60_000_000_000
"""The times before and after a change of a knob that are compared: as long as most effects are measured."""
ENOUGH = 3
"""Readings that suffice, one a second."""
ROWS = 2048


def pids_of(run: RunState) -> dict[str, int]:
    """Return the process of each rank on this node, by the name of its readings: `<run>`, `<run>/<rank>`."""
    return {run.run: run.pid} | {f"{run.run}/{rank.rank}": rank.pid for rank in run.ranks}


def sources_of(run: RunState) -> list[str]:
    """Return the sources with the readings of the processes of all ranks on this node."""
    return [f"process/{name}" for name in pids_of(run)]


def others_busy(
    rings: Rings, sources: Sequence[str], cpus: int, since: int, until: int, least: int = 1
) -> float | None:
    """Return the mean share between two stamps (0 to 1) of processes that are none of `sources`.

    None if there are not the `least` readings of the host and of each of them.
    """
    host, *own = (_percents(rings, source, since, until) for source in ("host", *sources))
    if min(len(host), *map(len, own)) < least or not cpus:
        return None
    return max(0.0, (fmean(host) - sum(map(fmean, own)) / cpus) / 100)


def load_changed(
    rings: Rings, sources: Sequence[str], cpus: int, began: int, at: int, now: int
) -> Fact | None:
    """Return how it has changed by a change of a knob. None if it has not, or is unknown.

    Args:
        sources: The readings of the run's processes.
        cpus: How many the host has.
        began: The stamp at which the run paused for the change. A compiler may count as another process.
        at: The stamp at which it went on.
    """
    end = min(now, at + AFTER_NS)
    before = others_busy(rings, sources, cpus, began - BEFORE_NS, began, ENOUGH)
    after = others_busy(rings, sources, cpus, at, end, ENOUGH)
    if before is None or after is None:
        return None
    host = fmean(_percents(rings, "host", at, end)) / 100
    if not differs(before, after, host):
        return None
    return fact("effect.load_changed", before=round(before, 2), after=round(after, 2))


def working_on(gpu: str, processes: Sequence[GpuProcess], run: str, world: int) -> GpuProcess | None:
    """Return a process of another user or run that works on a GPU. None if none is known.

    One that holds memory alone does no work. In a container, processes may belong to no known run. Then as
    many as the run has ranks may be its own.

    Args:
        gpu: The UUID of the GPU.
        processes: Those on all GPUs.
        run: The id of the run.
        world: The number of its ranks.
    """
    there = [process for process in processes if process.gpu == gpu]
    unknown = [process for process in there if not process.run]
    told_apart = any(process.run == run for process in there) or len(unknown) > world
    others = [p for p in there if p.run not in ("", run)] + (unknown if told_apart else [])
    shares_known = any(process.sm_percent for process in there)
    return next((process for process in others if process.sm_percent or not shares_known), None)


def _percents(rings: Rings, source: str, since: int, until: int) -> list[float]:
    ring = rings.get(source)
    rows = ring.excerpt(("cpu_percent",), after=since, most=ROWS) if ring is not None else None
    if rows is None or "cpu_percent" not in rows.names:
        return []
    found = zip(rows.times(), rows.column("cpu_percent"), strict=True)
    return [value for t, value in found if t <= until and not math.isnan(value)]
