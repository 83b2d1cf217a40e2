"""The node for Prometheus: its state as metrics, and an HTTP endpoint with its own threads.

The threads read snapshots that the daemon's loop publishes. Metrics have base units and unique names. Unknown
values are left out. An infinite value is known, and so is a NaN that the script logged.

The endpoint listens only if the user asks for it, and on loopback unless an address is given: everyone who
can reach it can read it. Needs the extra `metrics` (prometheus-client).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, get_args

from msgspec import structs

from hoptui.daemon.job_metrics import RUN, job_families, run_labels
from hoptui.daemon.metric_families import Labels, counter, gauge
from hoptui.daemon.rank_summaries import local_job
from hoptui.daemon.state.derived_rows import headline
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.diagnosis.phase_readings import READINGS
from hoptui.domain.devices import REASONS
from hoptui.domain.facts import Fact, fact
from hoptui.domain.jobs import JobState
from hoptui.domain.phases import PhaseReadings
from hoptui.domain.targets import Target
from hoptui.protocol.messages import HUNG, NodeState, RunState, State, Vital

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


@dataclass(frozen=True)
class Snapshot:
    """An immutable state: readings of each source, vitals of live runs, and event counts.

    `happened` counts events by (kind, level, UUID of the GPU or ""). By run, `jobs` are the live runs on
    their nodes, `slurm_jobs` the numbers of their Slurm jobs, `stragglers` the ranks that others wait for.
    """

    node: NodeState
    vitals: Mapping[str, Vital]
    readings: Mapping[str, Mapping[str, float]]
    happened: Mapping[tuple[str, str, str], int]
    jobs: Mapping[str, JobState] = field(default_factory=dict)
    slurm_jobs: Mapping[str, str] = field(default_factory=dict)
    stragglers: Mapping[str, int] = field(default_factory=dict)


class MetricFamily(NamedTuple):
    """The metric of a reading: its name (without `_total`), description, and factor to the base unit."""

    name: str
    text: str
    factor: float = 1.0
    counter: bool = False


PERCENT, MEGA = 0.01, 1e6
GPU = {
    "busy": MetricFamily("busy_ratio", "Time with any kernel running (NVML utilization)", PERCENT),
    "memory_busy": MetricFamily("memory_busy_ratio", "Time with any device memory access (NVML utilization)",
                                PERCENT),
    "power_w": MetricFamily("power_watts", "Power drawn now"),
    "power_average_w": MetricFamily("power_average_watts", "Power drawn, one-second average"),
    "energy_j": MetricFamily("energy_joules", "Energy used since the driver's counter began", counter=True),
    "memory_used_bytes": MetricFamily("memory_used_bytes",
                                      "Device memory in use, without the driver's reserve"),
    "memory_total_bytes": MetricFamily("memory_total_bytes", "Device memory"),
    "temperature_c": MetricFamily("temperature_celsius", "Temperature of the GPU"),
    "memory_temperature_c": MetricFamily("memory_temperature_celsius", "Temperature of the device memory"),
    "sm_clock_mhz": MetricFamily("sm_clock_hertz", "Clock of the SMs", MEGA),
    "memory_clock_mhz": MetricFamily("memory_clock_hertz", "Clock of the device memory", MEGA),
    "temperature_margin_c": MetricFamily("temperature_margin_celsius",
                                         "Degrees left until the GPU is held back for heat"),
    "power_violation_s": MetricFamily("power_violation_seconds",
                                      "Time that the power limit has held the clocks down", counter=True),
    "thermal_violation_s": MetricFamily("thermal_violation_seconds",
                                        "Time that heat has held the clocks down", counter=True),
    "bar1_used_bytes": MetricFamily("bar1_used_bytes", "Device memory mapped into the PCIe address space"),
    "protected_memory_used_bytes": MetricFamily("protected_memory_used_bytes",
                                                "Protected device memory of confidential computing in use"),
    "encoder_busy": MetricFamily("encoder_busy_ratio", "Video encoder in use", PERCENT),
    "decoder_busy": MetricFamily("decoder_busy_ratio", "Video decoder in use", PERCENT),
    "jpeg_busy": MetricFamily("jpeg_busy_ratio", "JPEG decoder in use", PERCENT),
    "ofa_busy": MetricFamily("ofa_busy_ratio", "Optical flow accelerator in use", PERCENT),
    "sm_active": MetricFamily("sm_active_ratio", "SMs with at least one warp, time average", PERCENT),
    "sm_occupancy": MetricFamily("sm_occupancy_ratio", "Warps resident of those that fit", PERCENT),
    "tensor_active": MetricFamily("tensor_active_ratio", "Tensor pipes in use, any precision", PERCENT),
    "tensor_half_active": MetricFamily("tensor_half_active_ratio", "Tensor pipes in use for FP16 and BF16",
                                       PERCENT),
    "tensor_int_active": MetricFamily("tensor_int_active_ratio", "Tensor pipes in use for integers", PERCENT),
    "tensor_double_active": MetricFamily("tensor_double_active_ratio", "Tensor pipes in use for FP64",
                                         PERCENT),
    "dram_active": MetricFamily("dram_active_ratio", "Device memory bandwidth in use", PERCENT),
    "fp64_active": MetricFamily("fp64_active_ratio", "FP64 pipes in use", PERCENT),
    "fp32_active": MetricFamily("fp32_active_ratio", "FP32 pipes in use", PERCENT),
    "fp16_active": MetricFamily("fp16_active_ratio", "FP16 pipes in use", PERCENT),
    "int_active": MetricFamily("int_active_ratio", "Integer pipes in use", PERCENT),
    "pcie_rx_bytes_per_s": MetricFamily("pcie_receive_bytes_per_second", "Into this GPU over PCIe"),
    "pcie_tx_bytes_per_s": MetricFamily("pcie_transmit_bytes_per_second", "Out of this GPU over PCIe"),
    "nvlink_rx_bytes_per_s": MetricFamily("nvlink_receive_bytes_per_second", "Into this GPU over NVLink"),
    "nvlink_tx_bytes_per_s": MetricFamily("nvlink_transmit_bytes_per_second", "Out of this GPU over NVLink"),
    "mfu_estimated": MetricFamily("mfu_estimated_ratio",
                                  "Model FLOPs utilization as estimated from the tensor pipes", PERCENT),
    "ecc_corrected": MetricFamily("ecc_corrected_errors", "ECC errors corrected since the driver began",
                                  counter=True),
    "ecc_uncorrected": MetricFamily("ecc_uncorrected_errors",
                                    "ECC errors not corrected since the driver began", counter=True),
    "remapped_rows": MetricFamily("remapped_rows", "Rows of the device memory that were replaced"),
    "pcie_replays": MetricFamily("pcie_replays", "PCIe packets sent again", counter=True),
    "nvlink_errors": MetricFamily("nvlink_errors", "Errors on NVLinks", counter=True),
}  # fmt: skip
THROTTLE = {reason.bit: reason.name for reason in sorted(REASONS)}
"""nvmlClocksEventReason* bits."""
HOST = {
    "cpu_percent": MetricFamily("cpu_ratio", "Processors in use, of all cores", PERCENT),
    "cpu_busiest_core_percent": MetricFamily("cpu_busiest_core_ratio", "The busiest core", PERCENT),
    "cpu_busy_cores": MetricFamily("cpu_busy_cores", "Cores that are at least 90 % busy"),
    "memory_used_bytes": MetricFamily("memory_used_bytes", "Memory that cannot be given out"),
    "memory_total_bytes": MetricFamily("memory_total_bytes", "Memory"),
    "swap_used_bytes": MetricFamily("swap_used_bytes", "Swap in use"),
    "load_1m": MetricFamily("load1", "Runnable and blocked tasks, one-minute average"),
    "load_5m": MetricFamily("load5", "Runnable and blocked tasks, five-minute average"),
    "disk_read_bytes_per_s": MetricFamily("disk_read_bytes_per_second", "From disks"),
    "disk_written_bytes_per_s": MetricFamily("disk_written_bytes_per_second", "To disks"),
    "net_received_bytes_per_s": MetricFamily("network_receive_bytes_per_second", "From the network"),
    "net_sent_bytes_per_s": MetricFamily("network_transmit_bytes_per_second", "To the network"),
}
DERIVED = {
    "power_w": MetricFamily("power_watts", "Power of the run's GPUs"),
    "energy_j": MetricFamily("energy_joules", "Energy of the run's GPUs since its first reading",
                             counter=True),
    "energy_per_iteration_j": MetricFamily("energy_per_iteration_joules", "Energy of an iteration"),
    "energy_per_unit_j": MetricFamily("energy_per_unit_joules", "Energy of a unit of the run's throughput"),
    "idle_power_w": MetricFamily("idle_power_watts", "Power drawn for the share of SM time without work"),
    "memory_headroom_bytes": MetricFamily("gpu_memory_headroom_bytes",
                                          "Least free device memory of its GPUs"),
    "mfu": MetricFamily("mfu_ratio", "Model FLOPs utilization, of the FLOPs that the run declares", PERCENT),
    "mfu_estimated": MetricFamily("mfu_estimated_ratio",
                                  "Model FLOPs utilization as estimated from the tensor pipes", PERCENT),
    "sm_active": MetricFamily("sm_active_ratio",
                              "SM time with a warp at work, mean of its GPUs where it has several", PERCENT),
    "sm_active_least": MetricFamily("sm_active_least_ratio", "The same of the GPU that has least", PERCENT),
    "gpu_memory_bytes": MetricFamily("gpu_memory_bytes", "Device memory of the run's processes"),
    "gpu_sm_percent": MetricFamily("gpu_sm_ratio", "SM time of the run's processes, mean of its GPUs",
                                   PERCENT),
}  # fmt: skip
PROCESS = {
    "cpu_percent": MetricFamily("cpu_cores", "Processor cores in use by the run's processes", PERCENT),
    "memory_rss_bytes": MetricFamily("memory_bytes", "Resident memory of the run's processes"),
}

GPU_EVENTS = (
    ("clocks", "warning"),
    ("ecc", "alarm"),
    ("ecc", "warning"),
    ("gpu", "alarm"),
    ("gpu", "info"),
    ("memory", "info"),
    ("memory", "warning"),
    ("throttle", "alarm"),
    ("throttle", "info"),
    ("xid", "alarm"),
    ("xid", "warning"),
)
OTHER_EVENTS = (
    ("exited", "info"),
    ("exited", "warning"),
    ("hung", "info"),
    ("hung", "warning"),
    ("memory", "info"),
    ("memory", "warning"),
    ("note", "alarm"),
    ("note", "info"),
    ("note", "warning"),
    ("reconnected", "info"),
    ("restarted", "warning"),
    ("reverted", "warning"),
    ("started", "info"),
    ("straggler", "info"),
    ("straggler", "warning"),
    ("target", "info"),
    ("target", "warning"),
)
"""Kinds and levels of events that are counted from 0. `increase()` misses the first event of a series that
begins with it."""


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield every metric family with at least one sample."""
    node = snapshot.node
    yield from gauge("hoptui_build_info", "The daemon", ("version", "host"), [((node.version, node.host), 1)])
    yield from gauge("hoptui_sampling_hertz", "How often GPUs are sampled", (), [((), node.hz)])
    yield from gauge("hoptui_viewers", "Viewers connected", (), [((), node.viewers)])
    yield from _events(snapshot)
    yield from _gpus(snapshot)
    host = snapshot.readings.get("host", {})
    yield from _readings("hoptui_host_", HOST, (), [((), host)])
    yield from _runs(snapshot)
    yield from job_families(
        (run_labels(run.run, run.name, snapshot.slurm_jobs), snapshot.jobs[run.run])
        for run in snapshot.node.runs
        if run.run in snapshot.jobs
    )


def _events(snapshot: Snapshot) -> Iterator[Metric]:
    whole = {gpu.uuid: str(gpu.index) for gpu in snapshot.node.gpus if not gpu.parent}
    counts = {(*event, ""): 0 for event in OTHER_EVENTS}
    counts |= {(*event, uuid): 0 for uuid in whole for event in GPU_EVENTS}
    counts |= snapshot.happened
    points = [
        ((kind, level, whole.get(u, ""), u), float(count)) for (kind, level, u), count in counts.items()
    ]
    labels = ("kind", "level", "gpu", "uuid")
    yield from counter("hoptui_events", "Events since the daemon began", labels, points)


def _gpus(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the GPUs. MIG instances have the index of their GPU, and its UUID as `parent`.

    So a sum over GPUs filters for parent="".
    """
    labels = ("gpu", "uuid", "name", "parent")
    gpus = [((str(gpu.index), gpu.uuid, gpu.name, gpu.parent), gpu) for gpu in snapshot.node.gpus]
    facts = [((*key, gpu.driver, gpu.architecture), 1.0) for key, gpu in gpus]
    yield from gauge("hoptui_gpu_info", "A GPU of this node", (*labels, "driver", "architecture"), facts)
    up = [(key, float(gpu.problem is None)) for key, gpu in gpus]
    yield from gauge("hoptui_gpu_up", "Whether the GPU can be read", labels, up)
    limits = [(key, gpu.power_limit_w) for key, gpu in gpus if gpu.power_limit_w is not None]
    yield from gauge("hoptui_gpu_power_limit_watts", "Power limit", labels, limits)
    rows = [(key, snapshot.readings.get(f"gpu/{gpu.uuid}", {})) for key, gpu in gpus]
    yield from _readings("hoptui_gpu_", GPU, labels, rows)
    holding = [
        ((*key, reason), float(bool(int(row["throttle"]) & bit)))
        for key, row in rows
        if "throttle" in row
        for bit, reason in THROTTLE.items()
    ]
    text = "Whether this holds the clocks back"
    yield from gauge("hoptui_gpu_throttle_reason", text, (*labels, "reason"), holding)


def _runs(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ("run", "run_name")
    readings = snapshot.readings
    runs = [((run.run, run.name), run) for run in snapshot.node.runs if run.run in snapshot.vitals]
    vitals = [(key, snapshot.vitals[run.run]) for key, run in runs]
    uuids = {gpu.uuid: str(gpu.index) for gpu in snapshot.node.gpus}
    own = [((*key, uuids[u], u), 1.0) for key, run in runs for u in run.gpus if u in uuids]
    yield from gauge("hoptui_run_gpu_info", "A GPU that a run is on", (*labels, "gpu", "uuid"), own)
    states = [((*key, state), float(v.state == state)) for key, v in vitals for state in get_args(State)]
    yield from gauge("hoptui_run_state", "The run's state", (*labels, "state"), states)
    whole = [
        ((*run_labels(*key, snapshot.slurm_jobs), snapshot.node.host, str(run.world)), 1.0)
        for key, run in runs
    ]
    text = "A run, its Slurm job if it is in one, and the node of this daemon"
    yield from gauge("hoptui_run_info", text, (*RUN, "node", "world"), whole)
    hung = [(key, float(v.because is not None and v.because.code == HUNG)) for key, v in vitals]
    yield from gauge("hoptui_run_hung", "Whether the run makes no progress", labels, hung)
    late = [(key, float(run.run in snapshot.stragglers)) for key, run in runs if run.world > 1]
    yield from gauge("hoptui_run_straggler", "Whether the other ranks wait for one", labels, late)
    which = [
        (key, float(snapshot.stragglers[run.run])) for key, run in runs if run.run in snapshot.stragglers
    ]
    yield from gauge("hoptui_run_straggler_rank", "The rank that the others wait for", labels, which)
    steps = [(key, float(v.step)) for key, v in vitals]
    yield from gauge("hoptui_run_iteration", "Iterations done", labels, steps)
    times = [(key, v.iteration_s) for key, v in vitals if v.iteration_s is not None]
    yield from gauge("hoptui_run_iteration_seconds", "Median of the last iterations", labels, times)
    ages = [(key, v.progress_age_s) for key, v in vitals if v.progress_age_s is not None]
    yield from gauge("hoptui_run_progress_age_seconds", "Time since an iteration ended", labels, ages)
    lost = [(key, float(v.dropped)) for key, v in vitals]
    yield from counter("hoptui_run_rows_dropped", "Rows that never reached the daemon", labels, lost)
    rates = []
    for (key, run), (_, vital) in zip(runs, vitals, strict=True):
        row = readings.get(f"run/{run.run}", {})
        rate = headline(run, row)
        if rate in row:
            known = row[rate] if vital.throughput is None else vital.throughput
            rates.append(((*key, rate), known))
    text = "The run's headline figure over its last iterations: units of work per second"
    yield from gauge("hoptui_run_throughput_per_second", text, (*labels, "metric"), rates)
    yield from _targets(runs)
    yield from _phases((key, vital.phases) for key, vital in vitals)
    for prefix, table in (("derived", DERIVED), ("process", PROCESS)):
        rows = [(key, readings.get(f"{prefix}/{run.run}", {})) for key, run in runs]
        yield from _readings("hoptui_run_", table, labels, rows)
    logged = [
        ((*key, name), value)
        for key, run in runs
        for name, value in readings.get(f"run/{run.run}", {}).items()
    ]
    text = "What the run logs, by its own names and in its own units"
    yield from gauge("hoptui_run_metric", text, (*labels, "name"), logged)


def _targets(runs: Iterable[tuple[Labels, RunState]]) -> Iterator[Metric]:
    """Yield the targets of runs in base units. Whether one is met is left out while that is unknown."""
    known = [
        ((*key, _target_name(state.target), state.target.side), state)
        for key, run in runs
        for state in run.targets
    ]
    labels = ("run", "run_name", "reading", "side")
    wanted = [(key, _in_base_unit(state.target, state.target.value)) for key, state in known]
    yield from gauge("hoptui_run_target", "A target of the run's GPUs, in base units", labels, wanted)
    means = [(key, _in_base_unit(state.target, state.mean)) for key, state in known if state.mean is not None]
    text = "The mean that a target is judged by, of the run's worst GPU, in base units"
    yield from gauge("hoptui_run_target_mean", text, labels, means)
    met = [(key, float(state.standing == "met")) for key, state in known if state.standing != "unknown"]
    yield from gauge("hoptui_run_target_met", "Whether a target is met", labels, met)


def _phases(runs: Iterable[tuple[Labels, Iterable[PhaseReadings]]]) -> Iterator[Metric]:
    """Yield what the GPUs read during each phase, where there are enough samples."""
    known = [((*key, one.phase), one.readings) for key, phases in runs for one in phases]
    during = {name: GPU[name]._replace(text=f"{GPU[name].text}, mean during a phase") for name in READINGS}
    yield from _readings("hoptui_run_phase_", during, ("run", "run_name", "phase"), known)


def _target_name(target: Target) -> str:
    """Return the name of a reading as in its metric. A share of what the GPU has is a ratio."""
    if target.share:
        return f"{target.reading.removesuffix('_bytes').removesuffix('_w').removesuffix('_mhz')}_ratio"
    return GPU[target.reading].name if target.reading in GPU else target.reading


def _in_base_unit(target: Target, value: float) -> float:
    return value if target.share or target.reading not in GPU else value * GPU[target.reading].factor


def _readings(
    prefix: str,
    table: Mapping[str, MetricFamily],
    labels: Labels,
    rows: Iterable[tuple[Labels, Mapping[str, float]]],
) -> Iterator[Metric]:
    rows = list(rows)
    for reading, series in table.items():
        points = [(key, row[reading] * series.factor) for key, row in rows if reading in row]
        make = counter if series.counter else gauge
        yield from make(prefix + series.name, series.text, labels, points)


FRESH_NS = 15_000_000_000
"""An older reading is unknown. The slowest readings are taken every five seconds."""
MOST_ROWS = 256
LOOPBACK = "127.0.0.1"
LAST_REQUEST_S = 1.0


class MetricsError(Exception):
    """Metrics for Prometheus are not possible. `fact` gives the reason."""

    def __init__(self, fact: Fact) -> None:
        super().__init__(fact.code, fact.fields)
        self.fact = fact


class Endpoint:
    """Serves the last published snapshot. `address` includes the actual port.

    Raises:
        MetricsError: the address is invalid or in use, or the extra is not installed.
    """

    def __init__(self, address: str) -> None:
        try:
            host, port = parse(address)
        except ValueError:
            raise MetricsError(fact("metrics.bad_address", address=address)) from None
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app
        except ImportError:
            raise MetricsError(fact("metrics.not_installed")) from None
        from hoptui.daemon.metrics_server import MetricsServer

        self._snapshot: Snapshot | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server = MetricsServer(host, port, make_wsgi_app(registry))
        except OSError as error:
            why = error.strerror or str(error)
            raise MetricsError(fact("metrics.unavailable", address=address, error=why)) from None
        self.address = (
            f"[{host}]:{self._server.server_port}" if ":" in host else f"{host}:{self._server.server_port}"
        )

    @property
    def problem(self) -> Fact | None:
        """Why the server has ended, None while it serves."""
        why = self._server.problem
        return fact("metrics.ended", address=self.address, error=why) if why else None

    def publish(self, snapshot: Snapshot | None) -> None:
        """Set the snapshot for later requests. None if nothing is known any more."""
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of one scrape. The server's threads call this."""
        snapshot = self._snapshot
        return families(snapshot) if snapshot is not None else ()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the metrics depend on the hardware and on the runs."""
        return ()

    def close(self) -> None:
        """Stop serving."""
        self._server.close(LAST_REQUEST_S)


def parse(address: str) -> tuple[str, int]:
    """Parse "HOST:PORT", "[IPV6]:PORT" or ":PORT" (loopback) into host and port.

    Raises:
        ValueError: the address is invalid.
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no HOST:PORT, such as 127.0.0.1:9400")
    return host or LOOPBACK, int(port)


def snapshot(node: Node) -> Snapshot:
    """Return the newest known readings of each source, and the newest metrics of live runs."""
    t = node.clock.t()
    readings: dict[str, Mapping[str, float]] = {}
    for ring in node.rings:
        rows = None if ring.source.startswith("run/") else ring.newest(MOST_ROWS).after(t - FRESH_NS)
        if rows is not None and len(rows):
            readings[ring.source] = rows.last()
    live = node.registry.live()
    readings.update((f"run/{run.id}", run.current_metrics()) for run in live)
    return Snapshot(
        node=node.state(),
        # Each node exports what its own processes report: sums over nodes count rank 0 once.
        vitals={run.id: structs.replace(run.vital(t / 1e9), throughput=run.throughput()) for run in live},
        readings=readings,
        happened=dict(node.happened),
        jobs={run.id: run.job or local_job(node, run) for run in live},
        slurm_jobs={
            run.id: number
            for run in live
            if run.details is not None and (number := run.details.environment.get("SLURM_JOB_ID"))
        },
        stragglers={run.id: rank for run in live if (rank := _straggler(run)) is not None},
    )


def _straggler(run: TrackedRun) -> int | None:
    """The rank of this node that the others wait for, or that of any node by the report of the head."""
    of_job = run.job.slow if run.job is not None and not run.away and not run.job.store_problem else None
    found = run.straggler or of_job
    rank = found.fields.get("rank") if found is not None else None
    return int(rank) if rank is not None else None
