"""The nodes and ranks of a run as metrics for Prometheus.

The number of series has a bound. Labels are names of runs, nodes and ranks alone, never lines or reasons. A
restart of a run has the same labels. Only the daemon with rank 0 exports a job, so that each rank has one
series wherever it is scraped. At most `MOST_RANKS` ranks and `MOST_NODES` nodes of a run have series. The
spread of all ranks has a fixed number of series at any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from hoptui.daemon.metric_families import Labels, Point, gauge
from hoptui.domain.jobs import JobState, NodeSummary, RankGpu, RankSummary, spread

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

T = TypeVar("T")

MOST_RANKS = 1024
MOST_NODES = 256
RUN: Labels = ("run", "run_name", "slurm_job")
NODE: Labels = (*RUN, "node")
RANK: Labels = (*NODE, "rank")


@dataclass(frozen=True)
class JobMetric(Generic[T]):
    """A metric: its name and description, and its value in base units, None if that is unknown."""

    name: str
    text: str
    value: Callable[[T], float | None]


def _hung(rank: RankSummary) -> float | None:
    return None if rank.condition == "unknown" else float(rank.condition == "hung")


def _hertz(gpu: RankGpu) -> float | None:
    return None if gpu.clock_mhz is None else gpu.clock_mhz * 1e6


def _throttled(gpu: RankGpu) -> float | None:
    return None if gpu.throttled is None else float(bool(gpu.throttled))


SPREAD: tuple[JobMetric[RankSummary], ...] = (
    JobMetric("iteration_seconds", "Median of the last iterations", lambda r: r.iteration_s),
    JobMetric("own_seconds", "Time of an iteration without waiting for other ranks", lambda r: r.own_s),
    JobMetric("waiting_ratio", "Stack samples in which it waits for other ranks", lambda r: r.waiting),
    JobMetric("progress_age_seconds", "Time since an iteration ended", lambda r: r.progress_age_s),
)
RANKS: tuple[JobMetric[RankSummary], ...] = (
    JobMetric("iteration", "Iterations done", lambda r: r.step),
    *SPREAD,
    JobMetric("hung", "Whether it makes no progress", _hung),
    JobMetric("mfu_ratio", "Model FLOPs utilization", lambda r: r.mfu),
)
GPUS: tuple[JobMetric[RankGpu], ...] = (
    JobMetric("busy_ratio", "Time with any kernel running", lambda g: g.utilization),
    JobMetric("power_watts", "Power drawn", lambda g: g.power_w),
    JobMetric("memory_used_bytes", "Device memory in use", lambda g: g.memory_used),
    JobMetric("memory_total_bytes", "Device memory", lambda g: g.memory_total),
    JobMetric("sm_clock_hertz", "Clock of the SMs", _hertz),
    JobMetric("throttled", "Whether something holds its clocks back", _throttled),
    JobMetric("nvlink_bytes_per_second", "Over NVLink, both ways", lambda g: g.nvlink_bytes_s),
)
NODES: tuple[JobMetric[NodeSummary], ...] = (
    JobMetric("cpu_ratio", "Processors in use, of all cores", lambda n: n.cpu),
    JobMetric("memory_ratio", "Memory that cannot be given out, of all", lambda n: n.memory),
    JobMetric("network_transmit_bytes_per_second", "To the network", lambda n: n.sent_bytes_s),
    JobMetric("network_receive_bytes_per_second", "From the network", lambda n: n.received_bytes_s),
    JobMetric("alarms", "Reports of the node that still hold", lambda n: len(n.alarms)),
)


def job_families(jobs: Iterable[tuple[Labels, JobState]]) -> Iterator[Metric]:
    """Yield the metrics of jobs, each with the values of the labels `RUN`."""
    exported = [(key, job) for key, job in jobs if job.here is None or job.here == job.head]
    worlds = [(key, float(job.world)) for key, job in exported]
    yield from gauge("hoptui_job_ranks", "Ranks of the run on all its nodes", RUN, worlds)
    known = [(key, float(len(job.ranks()))) for key, job in exported]
    yield from gauge("hoptui_job_known_ranks", "Ranks whose node has reported", RUN, known)
    stores = [(key, float(not job.store_problem)) for key, job in exported if _reads_store(job)]
    yield from gauge("hoptui_job_store_up", "Whether reports of other nodes can be read", RUN, stores)
    yield from _nodes(exported)
    yield from _ranks(exported)
    yield from _spreads(exported)


def _nodes(jobs: Iterable[tuple[Labels, JobState]]) -> Iterator[Metric]:
    nodes = [
        ((*key, names[node.index]), node)
        for key, job in jobs
        for names in [node_names(job)]
        for node in job.nodes[:MOST_NODES]
    ]
    up = [(key, float(node.condition == "live")) for key, node in nodes if node.condition != "left"]
    yield from gauge("hoptui_job_node_up", "Whether a node of the run reports", NODE, up)
    ages = [(key, node.age_s) for key, node in nodes if node.condition in ("live", "silent")]
    yield from gauge("hoptui_job_node_age_seconds", "Time since the node has reported", NODE, ages)
    live = [
        (key, node.summary) for key, node in nodes if node.condition == "live" and node.summary is not None
    ]
    for reading in NODES:
        points = _known((key, reading.value(summary)) for key, summary in live)
        yield from gauge(f"hoptui_job_node_{reading.name}", reading.text, NODE, points)


def _ranks(jobs: Iterable[tuple[Labels, JobState]]) -> Iterator[Metric]:
    """Yield the ranks of the nodes that report."""
    ranks = [
        ((*key, names[node.index], str(rank.rank)), rank)
        for key, job in jobs
        for names in [node_names(job)]
        for node, rank in job.live_ranks()[:MOST_RANKS]
    ]
    for reading in RANKS:
        points = _known((key, reading.value(rank)) for key, rank in ranks)
        yield from gauge(f"hoptui_rank_{reading.name}", reading.text, RANK, points)
    gpus = [(key, rank.gpu) for key, rank in ranks if rank.gpu is not None]
    info = [((*key, "" if gpu.index is None else str(gpu.index), gpu.uuid), 1.0) for key, gpu in gpus]
    yield from gauge("hoptui_rank_gpu_info", "The GPU of a rank", (*RANK, "gpu", "uuid"), info)
    for of_gpu in GPUS:
        points = _known((key, of_gpu.value(gpu)) for key, gpu in gpus)
        yield from gauge(f"hoptui_rank_gpu_{of_gpu.name}", f"{of_gpu.text}, of its GPU", RANK, points)


def _spreads(jobs: Iterable[tuple[Labels, JobState]]) -> Iterator[Metric]:
    """Yield the lowest, the middle and the highest value of all ranks, and the ranks that have them."""
    values: list[Point] = []
    ranks: list[Point] = []
    for key, job in jobs:
        reporting = [rank for _, rank in job.live_ranks()]
        for reading in SPREAD:
            found = spread((rank.rank, reading.value(rank)) for rank in reporting)
            if found is not None:
                for side, (rank, value) in found._asdict().items():
                    values.append(((*key, reading.name, side), value))
                    ranks.append(((*key, reading.name, side), float(rank)))
    labels = (*RUN, "reading", "side")
    yield from gauge("hoptui_job_spread", "A reading of all ranks, in base units", labels, values)
    yield from gauge("hoptui_job_spread_rank", "The rank that has this reading", labels, ranks)


def _reads_store(job: JobState) -> bool:
    """Return whether the store of a job is read. A job that is known from this node alone has none."""
    return len(job.nodes) > 1 or bool(job.store_problem)


def node_names(job: JobState) -> dict[int, str]:
    """Return the names of nodes by their indices: the host, or the index before the first report.

    Containers may have the same host name. All but the first of them have their index in the name.
    """
    names: dict[int, str] = {}
    for node in job.nodes:
        name = node.host or str(node.index)
        names[node.index] = f"{name}#{node.index}" if name in names.values() else name
    return names


def _known(values: Iterable[tuple[Labels, float | None]]) -> Iterator[Point]:
    return ((key, float(value)) for key, value in values if value is not None)


def run_labels(run: str, name: str, slurm_jobs: Mapping[str, str]) -> Labels:
    """Return the values of the labels `RUN`."""
    return run, name, slurm_jobs.get(run, "")
