"""The ranks of a run on this node, as a job of one node. No I/O."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from hoptui.daemon.rank_devices import rank_device
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.devices import REASONS
from hoptui.domain.facts import Fact
from hoptui.domain.jobs import JobNode, JobState, NodeSummary, RankCondition, RankGpu, RankSummary
from hoptui.domain.progress import ITERATION
from hoptui.domain.stack_groups import WAITS
from hoptui.domain.throughput import took
from hoptui.protocol.messages import HUNG

SECOND = 1_000_000_000
SAMPLES_S = 30.0
"""How far back stack samples count."""
LEAST_SAMPLES = 50
"""With fewer stack samples the share of waiting is unknown."""
MOST_ITERATIONS = 31
FRESH_S = 15.0
"""Older readings of a GPU or the host are unknown."""
NVLINK = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")


def local_job(node: Node, run: TrackedRun) -> JobState:
    """Return a run as far as this node knows it: with its ranks here."""
    now = node.clock.t()
    samples = run.stacks.activities(now - int(SAMPLES_S * SECOND))
    waiting = {
        rank: sum(count for what, count in counts.items() if what.kind in WAITS) / counts.total()
        for rank, counts in samples.items()
        if counts.total() >= LEAST_SAMPLES
    }
    ranks = tuple(_rank(node, run, rank, waiting.get(rank)) for rank in sorted((0, *run.members)))
    host = _fresh(node, "host")
    memory, cpu = host.get("memory_used_bytes"), host.get("cpu_percent")
    total = host.get("memory_total_bytes")
    summary = NodeSummary(
        host=node.host,
        run=run.id,
        epoch=run.state.epoch,
        number=0,
        wall=node.clock.wall(),
        ranks=ranks,
        cpu=None if cpu is None else cpu / 100,
        memory=memory / total if memory is not None and total else None,
        sent_bytes_s=host.get("net_sent_bytes_per_s"),
        received_bytes_s=host.get("net_received_bytes_per_s"),
        alarms=tuple(_alarms(node, run)),
    )
    here = JobNode(index=0, condition="live", age_s=0.0, summary=summary)
    return JobState(run=run.id, epoch=run.state.epoch, world=run.state.world, nodes=(here,), here=0)


def _alarms(node: Node, run: TrackedRun) -> Iterator[Fact]:
    """Yield what is reported of a run, or of its GPUs, and still holds."""
    if run.stalled is not None and run.stalled.code == HUNG:
        yield run.stalled
    if run.straggler is not None:
        yield run.straggler
    yield from (gpu.problem for gpu in node.gpus if gpu.uuid in run.state.gpus and gpu.problem is not None)


def _rank(node: Node, run: TrackedRun, rank: int, waiting: float | None) -> RankSummary:
    now = node.clock.t() / SECOND
    condition = _condition(run, rank, now)
    gpu = _gpu(node, run, rank)
    if rank == 0:
        vital = run.vital(now)
        return RankSummary(
            rank=0,
            condition=condition,
            step=vital.step,
            iteration_s=vital.iteration_s,
            waiting=waiting,
            progress_age_s=vital.progress_age_s,
            gpu=gpu,
        )
    ring = node.rings.get(f"rank/{run.id}/{rank}")
    rows = ring.excerpt((ITERATION,), most=MOST_ITERATIONS) if ring is not None else None
    if rows is None or not len(rows):
        return RankSummary(rank=rank, condition=condition, waiting=waiting, gpu=gpu)
    seconds = list(filter(took, rows.column(ITERATION))) if ITERATION in rows.names else []
    return RankSummary(
        rank=rank,
        condition=condition,
        step=rows.steps()[-1] + 1,
        iteration_s=statistics.median(seconds) if seconds else None,
        waiting=waiting,
        progress_age_s=max(0.0, now - rows.last_t / SECOND),
        gpu=gpu,
    )


def _condition(run: TrackedRun, rank: int, now: float) -> RankCondition:
    state, why = run.judge(now)
    if why is not None and why.code == HUNG:
        return "hung"
    if run.silent_s(rank, now) is not None:
        return "unknown"
    return state if state in ("live", "paused") else "unknown"


def _gpu(node: Node, run: TrackedRun, rank: int) -> RankGpu | None:
    """Return the GPU of a rank with its newest readings, None if it is not known which one that is."""
    index = rank_device(node, run, rank, node.clock.t()).gpu
    found = [gpu for gpu in node.gpus if gpu.index == index and gpu.uuid in run.state.gpus]
    if index is None or len(found) != 1:
        return None
    [gpu] = found
    row = _fresh(node, f"gpu/{gpu.uuid}")
    busy, links = row.get("busy"), [row[name] for name in NVLINK if name in row]
    return RankGpu(
        uuid=gpu.uuid,
        index=index,
        utilization=None if busy is None else busy / 100,
        power_w=row.get("power_w"),
        memory_used=row.get("memory_used_bytes"),
        memory_total=row.get("memory_total_bytes", gpu.memory_total_bytes),
        clock_mhz=row.get("sm_clock_mhz"),
        throttled=_throttled(row.get("throttle")),
        nvlink_bytes_s=sum(links) if len(links) == len(NVLINK) else None,
    )


def _throttled(bits: float | None) -> str | None:
    """Return the worst reason why the clocks give way, "" for none. Clocks that somebody set are none."""
    if bits is None:
        return None
    return next((each.name for each in REASONS if each.event and int(bits) & each.bit), "")


def _fresh(node: Node, source: str) -> dict[str, float]:
    """Return the newest known readings of a source, empty if they are old."""
    ring = node.rings.get(source)
    row = ring.last() if ring is not None else None
    if row is None or row.last_t < node.clock.t() - FRESH_S * SECOND:
        return {}
    return {name: value for name, value in row.last().items() if math.isfinite(value)}
