"""The summary of a run's ranks on this node, from what the daemon has of them. No I/O."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable

from hoptui.daemon.rank_devices import gpu_of
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.diagnosis.window import mean_of
from hoptui.domain.activities import Activity
from hoptui.domain.columns import Columns
from hoptui.domain.devices import IDLE, REASONS
from hoptui.domain.facts import Fact
from hoptui.domain.jobs import NodeSummary, RankCondition, RankGpu, RankSummary
from hoptui.domain.progress import ITERATION
from hoptui.domain.stack_groups import WAITS
from hoptui.domain.throughput import took
from hoptui.protocol.job_records import MOST_ALARMS, MOST_RANKS, rounded
from hoptui.protocol.messages import HUNG, Pulse

SECOND = 1_000_000_000
SAMPLED_S = 20.0
"""The time over which stack samples count."""
LEAST_SAMPLES = 20
READ_S = 2.0
"""The time over which readings of GPUs and the host count: they come once a second."""
RECENT = 15
"""Iterations whose median is the time of an iteration."""
LONGEST_LINE = 120


def summary_of(node: Node, run: TrackedRun, number: int) -> NodeSummary:
    """Return what this node says of its part of a run."""
    now = node.clock.t()
    activities = run.stacks.activities(now - int(SAMPLED_S * SECOND))
    ranks = sorted(run.known_ranks)[:MOST_RANKS] if not run.exited else [run.rank]
    host = _readings(node, "host", now)
    return NodeSummary(
        host=node.host[:LONGEST_LINE],
        run=run.id,
        epoch=run.state.epoch,
        number=number,
        wall=round(node.clock.wall(), 3),
        ranks=tuple(_rank(node, run, rank, activities.get(rank, Counter())) for rank in ranks),
        cpu=_share(_mean(host, "cpu_percent")),
        memory=_quotient(_mean(host, "memory_used_bytes"), _mean(host, "memory_total_bytes")),
        sent_bytes_s=rounded(_mean(host, "net_sent_bytes_per_s")),
        received_bytes_s=rounded(_mean(host, "net_received_bytes_per_s")),
        alarms=tuple(_alarms(node, run))[:MOST_ALARMS],
    )


def _rank(node: Node, run: TrackedRun, rank: int, found: Counter[Activity]) -> RankSummary:
    now = node.clock.t() / SECOND
    lead = rank == run.rank
    condition, pulse, pulse_at = _lead(run, now) if lead else _member(run, rank, now)
    source = f"run/{run.id}" if lead else f"rank/{run.id}/{rank}"
    line = _line(found)
    total = found.total()
    enough = total >= LEAST_SAMPLES
    waits = sum(count for activity, count in found.items() if activity.kind in WAITS)
    return RankSummary(
        rank=rank,
        condition=condition,
        step=run.step if lead else pulse.step if pulse is not None else None,
        iteration_s=rounded(_iteration_s(node, source)),
        waiting=rounded(waits / total) if enough else None,
        samples=total,
        progress_age_s=None if pulse is None else rounded(pulse.progress_age_s + max(0.0, now - pulse_at)),
        line=f"{line.place.file.rpartition('/')[2]}:{line.place.line} {line.place.function}"[:LONGEST_LINE]
        if line is not None
        else "",
        kind=line.kind if line is not None else "",
        line_share=rounded(found[line] / total) if line is not None and enough else None,
        throughput=rounded(run.throughput()) if lead else None,
        mfu=_share(_finite(run.metrics.get("mfu"))) if lead else None,
        gpu=_gpu(node, run, rank),
    )


def _lead(run: TrackedRun, now: float) -> tuple[RankCondition, Pulse | None, float]:
    state, because = run.judge(now)
    pulse, at = run.newest_pulse
    if state == "exited":
        return "ended", pulse, at
    if because is not None and because.code == HUNG:
        return "hung", pulse, at
    if state == "unresponsive":
        return "unknown", pulse, at
    return ("paused" if state == "paused" else "live"), pulse, at


def _member(run: TrackedRun, rank: int, now: float) -> tuple[RankCondition, Pulse | None, float]:
    member = run.members[rank]
    if rank in run.dead:
        return "ended", member.pulse, member.pulse_at
    if member.pulse is None or run.silent_s(rank, now) is not None:
        return "unknown", member.pulse, member.pulse_at
    condition = _lead(run, now)[0]  # all ranks pause, and stand, together
    return (condition if condition in ("paused", "hung") else "live"), member.pulse, member.pulse_at


def _iteration_s(node: Node, source: str) -> float | None:
    ring = node.rings.get(source)
    if ring is None:
        return None
    seconds = list(filter(took, ring.excerpt((ITERATION,), most=RECENT).column(ITERATION))) if ring else []
    return statistics.median(seconds) if seconds else None


def _line(found: Counter[Activity]) -> Activity | None:
    """Return what a rank does most often, apart from waiting for others."""
    works = Counter({activity: count for activity, count in found.items() if activity.kind not in WAITS})
    return works.most_common(1)[0][0] if works else None


def _gpu(node: Node, run: TrackedRun, rank: int) -> RankGpu | None:
    gpu = gpu_of(node, run, rank)
    if gpu is None:
        return None
    rows = _readings(node, f"gpu/{gpu.uuid}", node.clock.t())
    sent, received = _mean(rows, "nvlink_tx_bytes_per_s"), _mean(rows, "nvlink_rx_bytes_per_s")
    return RankGpu(
        uuid=gpu.uuid[:LONGEST_LINE],
        index=gpu.index,
        utilization=_share(_mean(rows, "busy")),
        power_w=rounded(_mean(rows, "power_w")),
        memory_used=rounded(_mean(rows, "memory_used_bytes")),
        memory_total=_finite(gpu.memory_total_bytes),
        clock_mhz=rounded(_mean(rows, "sm_clock_mhz")),
        throttled=_throttled(rows),
        nvlink_bytes_s=None if sent is None or received is None else rounded(sent + received),
    )


def _throttled(rows: Columns | None) -> str | None:
    column = rows.column("throttle") if rows is not None and "throttle" in rows.names else ()
    masks = [int(mask) for mask in column if math.isfinite(mask)]
    if not masks:
        return None
    return next((reason.name for reason in REASONS if reason.bit != IDLE and masks[-1] & reason.bit), "")


def _alarms(node: Node, run: TrackedRun) -> Iterable[Fact]:
    """Yield the reports that still hold."""
    if run.straggler is not None:
        yield run.straggler
    if run.stalled is not None:
        yield run.stalled
    for gpu in node.gpus:
        if gpu.problem is not None and gpu.uuid in run.state.gpus:
            yield gpu.problem


def _readings(node: Node, source: str, now: int) -> Columns | None:
    ring = node.rings.get(source)
    return ring.since(now - int(READ_S * SECOND), 64)[0] if ring is not None else None


def _mean(rows: Columns | None, name: str) -> float | None:
    return _finite(mean_of(rows, name))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _share(percent: float | None) -> float | None:
    return None if percent is None else rounded(percent / 100)


def _quotient(part: float | None, whole: float | None) -> float | None:
    return rounded(part / whole) if part is not None and whole else None
