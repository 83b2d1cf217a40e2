"""What the tuner is shown of a run, put together from what the node knows. No I/O; what is old or missing is
unknown."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from hoptui.daemon.state.change_effects import ASIDE, throughput
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.columns import Columns
from hoptui.domain.devices import IDLE, REASONS
from hoptui.protocol.messages import CommandRecord
from hoptui.tuner.observation import MemoryReading, Observation

POINTS = 512
"""Rows of the run that are looked at, the newest."""
RECORDS = 64
"""Commands that are looked at: the newest of anybody's, and as many of the tuner's own, however many came
after them."""
BACK_NS = 3_000_000_000
"""Readings so young are `now`: longer than from one look to the next, so that no peak of memory is missed."""
BACK_ROWS = 32
READINGS = (
    "cpu_percent",
    "memory_used_bytes",
    "memory_total_bytes",
    "memory_rss_bytes",
    "power_w",
    "throttle",
)
"""What is looked at of a GPU, the host or a run's processes."""
RETRIES = ("alloc_retries", "num_alloc_retries")
"""What runs call torch's count of allocations that had to free the cache first."""


def observe(node: Node, run: TrackedRun) -> Observation:
    """A run as it is now."""
    t = node.clock.t()
    ring, metric = node.rings.get(f"run/{run.id}"), node.throughput_of(run)
    gpus = [part for uuid in run.state.gpus if (part := _recent(node, f"gpu/{uuid}", t)) is not None]
    host = _recent(node, "host", t)
    busy = _mean(host, "cpu_percent")
    vital = run.vital(t / 1e9)
    return Observation(
        t=t,
        epoch=run.state.epoch,
        state=vital.state,
        step=vital.step,
        knobs=run.state.knobs,
        metric=metric,
        points=throughput(ring.excerpt((metric, *ASIDE), most=POINTS), metric)
        if ring is not None and metric
        else (),
        records=_newest(node.book.of(run.id)),
        memories=_of_gpus(node, run, gpus) if run.state.gpus else _of_host(node, run, host, t),
        alloc_retries=next((run.metrics[name] for name in RETRIES if name in run.metrics), None),
        power_w=max((w for part in gpus if (w := _mean(part, "power_w")) is not None), default=None),
        drawn_w=_drawn(run, gpus),
        diagnosis=run.state.diagnosis,
        host_busy=None if busy is None else busy / 100,
        others_busy=_others_busy(node, run, busy, t),
        throttled=_throttled(gpus),
    )


def _newest(records: Sequence[CommandRecord]) -> tuple[CommandRecord, ...]:
    own = [record for record in records if record.origin.kind == "tuner"][-RECORDS:]
    chosen = {record.id for record in (*own, *records[-RECORDS:])}
    return tuple(record for record in records if record.id in chosen)


def _drawn(run: TrackedRun, gpus: Collection[Columns]) -> float | None:
    """Watts of all GPUs that take part: with fewer than the run has ranks, some are on other nodes."""
    watts = [w for part in gpus if (w := _mean(part, "power_w")) is not None]
    there = watts and len(watts) == len(run.state.gpus) >= run.state.world
    return sum(watts) if there else None


def _of_gpus(node: Node, run: TrackedRun, gpus: Iterable[Columns]) -> tuple[MemoryReading, ...]:
    """Of each GPU. None at all unless all of them are known: the one that is not might have no room first."""
    found = tuple(memory for part in gpus if (memory := _of_gpu(node, run, part)) is not None)
    return found if len(found) == len(run.state.gpus) else ()


def _of_gpu(node: Node, run: TrackedRun, rows: Columns) -> MemoryReading | None:
    most, total = _most(rows, "memory_used_bytes"), _most(rows, "memory_total_bytes")
    if most is None or not total:
        return None
    uuid = rows.source.partition("/")[2]
    there = [process for process in node.processes if process.gpu == uuid]
    apart = any(p.run == run.id for p in there) and all(p.memory_used_bytes is not None for p in there)
    others = sum(p.memory_used_bytes or 0 for p in there if p.run != run.id) if apart else 0
    return MemoryReading(used=max(0, int(most) - others), others=others, total=int(total), gpu=uuid)


def _of_host(node: Node, run: TrackedRun, host: Columns | None, t: int) -> tuple[MemoryReading, ...]:
    """Of the host, for a run that has no GPU: one whose GPUs are not known is not taken for such."""
    if node.gpus and not run.said:
        return ()
    own = _most(_recent(node, f"process/{run.id}", t), "memory_rss_bytes")
    used, total = _most(host, "memory_used_bytes"), _most(host, "memory_total_bytes")
    if own is None or used is None or not total:
        return ()
    return (MemoryReading(used=int(own), others=max(0, int(used - own)), total=int(total)),)


def _others_busy(node: Node, run: TrackedRun, host: float | None, t: int) -> float | None:
    """The share of the host's CPUs that other processes have at work; unknown for a run of several, of which
    one is read."""
    own, cpus = _mean(_recent(node, f"process/{run.id}", t), "cpu_percent"), node.hardware.cpus
    if host is None or own is None or not cpus or run.state.world > 1:
        return None
    return max(0.0, (host - own / cpus) / 100)


def _throttled(gpus: Iterable[Columns]) -> str:
    masks = [int(mask) for part in gpus if (mask := part.last().get("throttle")) is not None]
    words = [r.word for r in REASONS if r.bit != IDLE and any(mask & r.bit for mask in masks)]
    return ", ".join(words)


def _recent(node: Node, source: str, t: int) -> Columns | None:
    ring = node.rings.get(source)
    rows = ring.excerpt(READINGS, after=t - BACK_NS, most=BACK_ROWS) if ring is not None else None
    return rows if rows is not None and len(rows) else None


def _values(rows: Columns | None, name: str) -> list[float]:
    if rows is None or name not in rows.names:
        return []
    return [value for value in rows.column(name) if not math.isnan(value)]


def _most(rows: Columns | None, name: str) -> float | None:
    return max(_values(rows, name), default=None)


def _mean(rows: Columns | None, name: str) -> float | None:
    values = _values(rows, name)
    return sum(values) / len(values) if values else None
