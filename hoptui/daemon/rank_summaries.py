"""The ranks of a run on this node: what the node says of them, and a job of this node alone. No I/O."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence, Set

from msgspec import structs

from hoptui.daemon.rank_devices import rank_device
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.activities import Activity, summed
from hoptui.domain.devices import REASONS
from hoptui.domain.facts import Fact
from hoptui.domain.jobs import (
    SAMPLES_S,
    JobNode,
    JobState,
    NodeSummary,
    RankCondition,
    RankGpu,
    RankSummary,
)
from hoptui.domain.progress import ITERATION
from hoptui.domain.slow_ranks import dispersion
from hoptui.domain.stack_groups import WAITS
from hoptui.domain.stragglers import LEAST_SAMPLES, is_backward
from hoptui.domain.throughput import took
from hoptui.protocol.job_records import MOST_ALARMS, MOST_RANKS, rounded
from hoptui.protocol.messages import HUNG

SECOND = 1_000_000_000
LONGEST = 120
"""Characters of a name or a line."""
MOST_ITERATIONS = 31
MOST_TIMED, LEAST_TIMED = 256, 5
"""Iterations whose phases are added up, at most and at least."""
PHASE = "phase/"
"""What the metrics of phases begin with."""
FRESH_S = 15.0
"""Older readings of a GPU or the host are unknown."""
NVLINK = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")


def local_job(node: Node, run: TrackedRun) -> JobState:
    """Return a run as far as this node knows it: with its ranks here."""
    here = JobNode(index=0, condition="live", age_s=0.0, summary=node_summary(node, run, 0))
    return JobState(run=run.id, epoch=run.state.epoch, world=run.state.world, nodes=(here,), here=0)


def node_summary(node: Node, run: TrackedRun, number: int) -> NodeSummary:
    """Return what this node says of its part of a run. `number` counts its summaries."""
    since = node.clock.t() - int(SAMPLES_S * SECOND)
    samples = run.stacks.activity_parts(since)
    waiting = run.stacks.waiting_phases(0)  # of all samples that are kept
    ranks = sorted(run.known_ranks)[:MOST_RANKS]
    host = _fresh(node, "host")
    memory, cpu = host.get("memory_used_bytes"), host.get("cpu_percent")
    total = host.get("memory_total_bytes")
    return NodeSummary(
        host=node.host[:LONGEST],
        run=run.id,
        epoch=run.state.epoch,
        number=number,
        wall=round(node.clock.wall(), 3),
        ranks=tuple(
            _timed(node, run, _rank(node, run, rank, samples.get(rank, [])), waiting, since) for rank in ranks
        ),
        cpu=None if cpu is None else rounded(cpu / 100),
        memory=rounded(memory / total) if memory is not None and total else None,
        sent_bytes_s=rounded(host.get("net_sent_bytes_per_s")),
        received_bytes_s=rounded(host.get("net_received_bytes_per_s")),
        alarms=tuple(_alarms(node, run))[:MOST_ALARMS],
    )


def _alarms(node: Node, run: TrackedRun) -> Iterator[Fact]:
    """Yield what is reported of a run, or of its GPUs, and still holds."""
    if run.stalled is not None and run.stalled.code == HUNG:
        yield run.stalled
    if run.straggler is not None:
        yield run.straggler
    yield from (gpu.problem for gpu in node.gpus if gpu.uuid in run.state.gpus and gpu.problem is not None)


def _rank(node: Node, run: TrackedRun, rank: int, parts: Sequence[Counter[Activity]]) -> RankSummary:
    samples = summed(parts)
    now, total = node.clock.t() / SECOND, samples.total()
    waits = _waits(samples)
    backward = sum(count for what, count in samples.items() if what.kind in WAITS or is_backward(what))
    enough = total >= LEAST_SAMPLES
    found = RankSummary(
        rank=rank,
        condition=_condition(run, rank, now),
        waiting=rounded(waits / total) if enough else None,
        samples=total,
        dispersion=rounded(dispersion((_waits(part), part.total()) for part in parts)) if enough else None,
        backward=rounded(backward / total) if enough else None,
        gpu=_gpu(node, run, rank),
    )
    if (line := _line(samples)) is not None:
        place = f"{line.place.file.rpartition('/')[2]}:{line.place.line} {line.place.function}"
        share = rounded(samples[line] / total) if enough else None
        found = structs.replace(found, line=place[:LONGEST], kind=line.kind, line_share=share)
    if rank == run.rank:
        return _of_lead(found, run, now)
    ring = node.rings.get(run.source(rank))
    rows = ring.excerpt((ITERATION,), most=MOST_ITERATIONS) if ring is not None else None
    if rows is not None and len(rows):
        seconds = list(filter(took, rows.column(ITERATION))) if ITERATION in rows.names else []
        found = structs.replace(
            found,
            step=rows.steps()[-1] + 1,
            iteration_s=rounded(statistics.median(seconds)) if seconds else None,
            progress_age_s=rounded(max(0.0, now - rows.last_t / SECOND)),
        )
    member = run.members[rank]
    if (pulse := member.pulse) is not None:  # it says so without rows too
        age_s = pulse.progress_age_s + max(0.0, now - member.pulse_at)
        found = structs.replace(found, step=max(found.step or 0, pulse.step), progress_age_s=rounded(age_s))
    return found


def _of_lead(found: RankSummary, run: TrackedRun, now: float) -> RankSummary:
    """Add what is known of the rank that represents the run here."""
    vital = run.vital(now)
    mfu = run.current_metrics().get("mfu", math.nan)
    return structs.replace(
        found,
        step=vital.step,
        iteration_s=rounded(vital.iteration_s),
        progress_age_s=rounded(vital.progress_age_s),
        throughput=rounded(run.throughput()),
        mfu=rounded(mfu / 100) if math.isfinite(mfu) else None,
    )


def _timed(node: Node, run: TrackedRun, found: RankSummary, waiting: Set[str], since: int) -> RankSummary:
    """Add the time of an iteration in the phases in which no rank was seen to wait.

    Args:
        waiting: The other phases.
        since: The stamp after which iterations count.
    """
    ring = node.rings.get(run.source(found.rank))
    names = sorted(name for name in ring.names(since) if _is_work(name, waiting)) if ring is not None else []
    if ring is None or not names or found.waiting is None:  # without samples, no waiting is seen
        return found
    rows = ring.excerpt((ITERATION, *names), after=since, most=MOST_TIMED)
    if ITERATION not in rows.names:
        return found
    done = [at for at, seconds in enumerate(rows.column(ITERATION)) if took(seconds)]
    columns = {name: rows.column(name) for name in names if name in rows.names}
    # What is not in most iterations, such as saving, is no part of their usual time.
    usual = {
        name: seconds
        for name, seconds in columns.items()
        if 2 * sum(seconds[at] == seconds[at] for at in done) > len(done)
    }
    if len(done) < LEAST_TIMED or not usual:
        return found
    each = [sum(seconds[at] for seconds in usual.values() if seconds[at] == seconds[at]) for at in done]
    phases = ",".join(name.removeprefix(PHASE) for name in usual)
    return structs.replace(found, work_s=rounded(statistics.median(each)), phases=phases[:LONGEST])


def _is_work(name: str, waiting: Set[str]) -> bool:
    """Whether a metric is the time of an outermost phase in which no rank was seen to wait."""
    phase = name.removeprefix(PHASE)
    return name.startswith(PHASE) and "/" not in phase and phase not in waiting


def _waits(samples: Counter[Activity]) -> int:
    """Return in how many samples a rank waits."""
    return sum(count for what, count in samples.items() if what.kind in WAITS)


def _line(samples: Counter[Activity]) -> Activity | None:
    """Return what a rank does most often, apart from waiting for others."""
    works = Counter(
        {
            what: count
            for what, count in samples.items()
            if what.kind not in WAITS and what.backward != "waits"
        }
    )
    return works.most_common(1)[0][0] if works else None


def _condition(run: TrackedRun, rank: int, now: float) -> RankCondition:
    state, why = run.judge(now)
    if why is not None and why.code == HUNG:
        return "hung" if run.silent_s(rank, now) is None else "unknown"
    if rank in run.dead or run.exited:
        return "ended"
    if run.silent_s(rank, now) is not None:
        return "unknown"
    if rank != run.rank and run.members[rank].pulse is None:
        return "unknown"
    if state == "busy":  # in a long iteration, or in another phase of the script
        return "live"
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
        uuid=gpu.uuid[:LONGEST],
        index=index,
        utilization=None if busy is None else rounded(busy / 100),
        power_w=rounded(row.get("power_w")),
        memory_used=rounded(row.get("memory_used_bytes")),
        memory_total=row.get("memory_total_bytes", gpu.memory_total_bytes),
        clock_mhz=rounded(row.get("sm_clock_mhz")),
        throttled=_throttled(row.get("throttle")),
        nvlink_bytes_s=rounded(sum(links)) if len(links) == len(NVLINK) else None,
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
