"""The GPUs of a node and the messages of the samplers: facts, tenants, events. Rows are `Columns`.

The messages travel length-prefixed on a pipe between the daemon and its children.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from hoptui.domain.columns import Columns

Level = Literal["info", "warning", "alarm"]


class GpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The constant properties of a GPU or a MIG instance.

    `reason` says why it cannot be read now (empty: it can). `missing` maps a group of readings that the GPU
    lacks, always or now, to one sentence. A key is `gpm`, `energy`, `ecc`, `xid`, `processes`,
    `process_utilization`, `nvlink`, or a single reading such as `sm_clock_mhz`.

    `memory_bandwidth_bytes_per_s` and `peak_flops` are the vendor's figures, from `peaks_source`, at
    `peak_clock_mhz`. They are empty if the GPU is not in the table. `peak_flops` is dense FLOP/s by
    precision: `fp64 fp32 tf32 bf16 fp16 fp8 int8`. `parent` is the UUID of the GPU that contains a MIG
    instance.
    """

    uuid: str
    index: int
    name: str
    memory_total_bytes: int | None = None
    power_limit_w: float | None = None
    sm_clock_max_mhz: float | None = None
    driver: str = ""
    architecture: str = ""
    reason: str = ""
    parent: str = ""
    missing: dict[str, str] = {}
    memory_bandwidth_bytes_per_s: float | None = None
    peak_flops: dict[str, float] = {}
    peak_clock_mhz: float | None = None
    peaks_source: str = ""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None


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
    """The GPUs of the node, or the reason why none can be read.

    Sent at start and whenever one of them changes.
    """

    gpus: tuple[GpuInfo, ...] = ()
    reason: str = ""


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


class Happened(msgspec.Struct, frozen=True, kw_only=True, tag="sampler.event"):
    """Something that the hardware did: an Xid, a throttle reason, an ECC error.

    `source` is the device's (`gpu/<uuid>`), `kind` a stable word, `text` for people.
    """

    source: str
    t: int
    kind: str
    text: str
    level: Level = "info"


class Watch(msgspec.Struct, frozen=True, kw_only=True, tag="sampler.watch"):
    """How often to sample, and whose processes: run id -> pid."""

    hz: float
    pids: dict[str, int] = {}


FromSampler = Devices | HostInfo | Sample | Tenants | Happened
ToSampler = Watch


class Reason(NamedTuple):
    """One bit: `word` for a narrow column, `level` how bad it is, `long` what it means in a sentence.

    `begins` and `ends` are what to tell when it comes and goes, "" for one that is not worth an event.
    """

    bit: int
    word: str
    level: Level
    long: str
    begins: str = ""
    ends: str = ""


IDLE = 0x01
SLOWDOWN = 0x08
"""The hardware slows the clocks. If heat or the power brake is the cause, its bit is set as well."""
SLOWDOWN_CAUSES = 0x40 | 0x80

REASONS = (
    Reason(SLOWDOWN, "hardware slowdown", "alarm",
           "The hardware halves the clocks or more to protect itself: heat, the power supply's brake, or a "
           "current peak.",
           "the hardware slows the clocks: heat, power supply or power brake", "full clocks again"),
    Reason(0x40, "too hot (hardware)", "alarm",
           "The hardware halves the clocks or more because the GPU or its memory is too hot.",
           "too hot: the hardware halves the clocks or worse", "no longer too hot"),
    Reason(0x80, "power brake", "alarm",
           "The server's power supply asks the GPU to halve its clocks or more.",
           "power brake: the server told the GPU to slow down", "power brake released"),
    Reason(0x20, "too hot", "alarm", "The driver lowers the clocks because the GPU or its memory is too hot.",
           "too hot: the driver lowers the clocks", "no longer too hot for the driver"),
    Reason(0x04, "power cap", "info",
           "The clocks stay where the board draws no more than its power limit: usual, and no fault, under "
           "full load.",
           "at its power limit: clocks give way, as is normal under full load",
           "no longer at its power limit"),
    Reason(0x10, "sync boost", "info",
           "The GPU keeps to the clock of the slowest one of its sync-boost group.",
           "clocks are held down to those of other GPUs (sync boost)", "sync boost lets go"),
    Reason(0x02, "clocks set", "info",
           "Somebody has set the clocks: nvidia-smi -ac or -lgc, or a program that may."),
    Reason(0x100, "display clocks", "info", "A display that is attached keeps the clocks where they are."),
    Reason(IDLE, "idle", "info", "Nothing is being computed, so the clocks are low."),
)  # fmt: skip
"""NVML's clocks event reasons, the worst first. Source: nvmlClocksEventReasons in nvml.h."""
