"""The GPU of a rank, and whether its clock is lower than those of the other ranks. No I/O."""

from __future__ import annotations

import math
import statistics

from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.diagnosis.window import mean_of
from hoptui.domain.columns import Columns
from hoptui.domain.devices import IDLE, REASONS, GpuInfo
from hoptui.domain.stragglers import RankDevice

MOST_ROWS = 2048
CLOCKS_SET = 0x02
"""Clocks that somebody has set are lower on purpose, and all the time."""
LEAST_THROTTLED = 0.05
"""Share of the readings from which a reason is named."""


def rank_device(node: Node, run: TrackedRun, rank: int, since: int) -> RankDevice:
    """Return where a rank of this node runs, with the readings of its GPU after the stamp `since`."""
    own = _gpu_of(node, run, rank)
    if own is None:
        return RankDevice(node.host)
    others = {gpu.uuid: gpu for each in run.known_ranks if (gpu := _gpu_of(node, run, each)) is not None}
    others.pop(own.uuid, None)
    clocks = [clock for uuid in others if (clock := _clock(_rows(node, uuid, since))) is not None]
    rows = _rows(node, own.uuid, since)
    return RankDevice(
        node.host,
        own.index,
        _clock(rows),
        statistics.median(clocks) if clocks else None,
        _throttled(rows),
    )


def _gpu_of(node: Node, run: TrackedRun, rank: int) -> GpuInfo | None:
    """Return the GPU of a rank: the only one that it claims, or else the only one with its process."""
    if rank not in run.known_ranks:  # it has left
        return None
    pids = {run.rank: run.state.pid} | {each.rank: each.pid for each in run.state.ranks}
    claimed = set(run.resolved_rank(rank, node.gpus).gpus)
    works_on = {each.gpu for each in node.processes if each.run == run.id and each.pid == pids.get(rank)}
    for uuids in (claimed, works_on):
        if len(uuids) == 1:
            return next((gpu for gpu in node.gpus if gpu.uuid in uuids), None)
    return None


def _rows(node: Node, uuid: str, since: int) -> Columns | None:
    ring = node.rings.get(f"gpu/{uuid}")
    return ring.since(since, MOST_ROWS)[0] if ring is not None else None


def _clock(rows: Columns | None) -> float | None:
    found = mean_of(rows, "sm_clock_mhz")
    return float(round(found)) if math.isfinite(found) else None


def _throttled(rows: Columns | None) -> dict[str, float] | None:
    """Return the shares of the readings with a reason to lower the clocks, None without readings."""
    column = rows.column("throttle") if rows is not None and "throttle" in rows.names else ()
    masks = [int(mask) for mask in column if math.isfinite(mask)]
    if not masks:
        return None
    shares = {
        reason.name: round(sum(bool(mask & reason.bit) for mask in masks) / len(masks), 2)
        for reason in REASONS
        if reason.bit not in (IDLE, CLOCKS_SET)
    }
    return {name: share for name, share in shares.items() if share >= LEAST_THROTTLED}
