"""The GPUs of a node and the messages of the samplers: facts, tenants, events. Rows are `Columns`.

The messages travel length-prefixed on a pipe between the daemon and its children.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from hoptui.domain.columns import Columns
from hoptui.domain.facts import Fact

Level = Literal["info", "warning", "alarm"]

CORES = "cores"
"""The source of the loads of all cores of the host, whose names are their numbers. It is not recorded."""


BUSY_PERCENT = 90.0
"""A core at least this busy counts as a busy one."""


class CoreLoads(NamedTuple):
    """How busy each core of the host is, in % by its number, and when that was read (monotonic ns)."""

    t: int
    percent: Mapping[str, float]


NO_CORES = CoreLoads(0, {})


class GpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The constant properties of a GPU or a MIG instance.

    `problem` is why it cannot be read now (None: it can). `missing_because` maps a group of readings that the
    GPU lacks, always or now, to the reason. A key is `gpm`, `energy`, `ecc`, `xid`, `processes`,
    `process_utilization`, `nvlink`, or a single reading such as `sm_clock_mhz`.

    `memory_bandwidth_bytes_per_s` and `peak_flops` are the vendor's figures, from `peaks_source`, at
    `peak_clock_mhz`. They are empty if the GPU is not in the table. `peak_flops` is dense FLOP/s by
    precision: `fp64 fp32 tf32 bf16 fp16 fp8 int8`. `parent` is the UUID of the GPU that contains a MIG
    instance.

    `limits` are what the board allows, as far as the driver tells: `power_default_w`, `power_min_w`,
    `power_max_w`; the temperatures `temperature_slowdown_c`, `temperature_shutdown_c`, `temperature_max_c`
    and `memory_temperature_max_c`; and the same as values of the reading `temperature_margin_c`:
    `margin_slowdown_c`, `margin_shutdown_c`, `margin_max_c`, `memory_margin_max_c`.
    """

    uuid: str
    index: int
    name: str
    memory_total_bytes: int | None = None
    power_limit_w: float | None = None
    sm_clock_max_mhz: float | None = None
    driver: str = ""
    architecture: str = ""
    problem: Fact | None = None
    parent: str = ""
    missing_because: dict[str, Fact] = {}
    memory_bandwidth_bytes_per_s: float | None = None
    peak_flops: dict[str, float] = {}
    peak_clock_mhz: float | None = None
    peaks_source: str = ""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None
    limits: dict[str, float] = {}


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU, as NVML reports it. None and "" are unknown.

    `pid` is the driver's, which in a container may differ from ours. `user` and `command` are unknown then.
    `sm_percent` is its share of the SMs' time, `memory_used_bytes` its memory. The daemon fills in `run`: the
    id of the run it belongs to.
    """

    gpu: str
    pid: int
    memory_used_bytes: int | None = None
    sm_percent: float | None = None
    user: str = ""
    command: str = ""
    run: str = ""


class Devices(msgspec.Struct, frozen=True, kw_only=True, tag="sampler.devices"):
    """The GPUs of the node, or why none can be read.

    Sent at start and whenever one of them changes.
    """

    gpus: tuple[GpuInfo, ...] = ()
    problem: Fact | None = None


class HostInfo(msgspec.Struct, frozen=True, kw_only=True, tag="sampler.host"):
    """The constant properties of the host."""

    cpus: int = 0
    memory_total_bytes: int = 0


class Sample(msgspec.Struct, frozen=True, kw_only=True, tag="sampler.rows"):
    """The readings of one tick."""

    parts: tuple[Columns, ...]


class Tenants(msgspec.Struct, frozen=True, kw_only=True, tag="sampler.tenants"):
    """All processes on all GPUs. Sent whenever they or their readings have changed."""

    processes: tuple[GpuProcess, ...] = ()


class RunProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a run: the one that trains, or a descendant such as a worker that loads data.

    `cpu_percent` is of one core since the reading before, None at first. `parent` is 0 if it is not in the
    list. The pids are those of the sampler's namespace.
    """

    pid: int
    parent: int
    run: str
    cpu_percent: float | None = None
    rss_bytes: int = 0
    command: str = ""


class RunProcesses(msgspec.Struct, frozen=True, kw_only=True, tag="sampler.tree"):
    """All processes of the runs, at most `MOST_RUN_PROCESSES`. Sent every few seconds if there are some."""

    processes: tuple[RunProcess, ...] = ()


MOST_RUN_PROCESSES = 256


class Happened(msgspec.Struct, frozen=True, kw_only=True, tag="sampler.event"):
    """Something that the hardware did: an Xid, a throttle reason, an ECC error.

    `source` is the device's (`gpu/<uuid>`), `kind` a stable word. `text` is the sentence that older samplers
    send instead of `what`; an older daemon needs the field.
    """

    source: str
    t: int
    kind: str
    what: Fact | None = None
    text: str = ""
    level: Level = "info"


class Watch(msgspec.Struct, frozen=True, kw_only=True, tag="sampler.watch"):
    """How often to sample, and whose processes: run id -> pid."""

    hz: float
    pids: dict[str, int] = {}


FromSampler = Devices | HostInfo | Sample | Tenants | Happened | RunProcesses
ToSampler = Watch


class Reason(NamedTuple):
    """One bit: `name` is stable, `word` for a narrow column, `level` how bad it is, `long` what it means in a
    sentence.

    `event` is whether its beginning and its end are events.
    """

    bit: int
    name: str
    word: str
    level: Level
    long: str
    event: bool = True


IDLE = 0x01
SLOWDOWN = 0x08
"""The hardware slows the clocks. If heat or the power brake is the cause, its bit is set as well."""
SLOWDOWN_CAUSES = 0x40 | 0x80

REASONS = (
    Reason(SLOWDOWN, "hardware_slowdown", "hardware slowdown", "alarm",
           "The hardware halves the clocks or more to protect itself: heat, the power supply's brake, or a "
           "current peak."),
    Reason(0x40, "thermal_hardware", "too hot (hardware)", "alarm",
           "The hardware halves the clocks or more because the GPU or its memory is too hot."),
    Reason(0x80, "power_brake", "power brake", "alarm",
           "The server's power supply asks the GPU to halve its clocks or more."),
    Reason(0x20, "thermal_software", "too hot", "alarm",
           "The driver lowers the clocks because the GPU or its memory is too hot."),
    Reason(0x04, "power_cap", "power cap", "info",
           "The clocks stay where the board draws no more than its power limit: usual, and no fault, under "
           "full load."),
    Reason(0x10, "sync_boost", "sync boost", "info",
           "The GPU keeps to the clock of the slowest one of its sync-boost group."),
    Reason(0x02, "application_clocks", "clocks set", "info",
           "Somebody has set the clocks: nvidia-smi -ac or -lgc, or a program that may.", event=False),
    Reason(0x100, "display_clocks", "display clocks", "info",
           "A display that is attached keeps the clocks where they are.", event=False),
    Reason(IDLE, "idle", "idle", "info", "Nothing is being computed, so the clocks are low.", event=False),
)  # fmt: skip
"""NVML's clocks event reasons, the worst first. Source: nvmlClocksEventReasons in nvml.h."""
