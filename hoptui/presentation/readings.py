"""What every reading means, once: its name on screen, its unit, where it comes from, and how to judge it.

The readings of the host (`host`), of a run's own processes on it (`process/<run id>`), and of GPUs and a run
together (`derived/<run id>`). Those of a GPU are in `hoptui.presentation.gpu_readings`. Nothing here reads or
computes a reading.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from hoptui.presentation import numbers
from hoptui.presentation.numbers import UNKNOWN

Unit = Literal["%", "W", "J", "B", "B/s", "MHz", "°C", "s", "count", "bit mask"]
Group = Literal["Compute", "Memory", "Power", "Clocks", "Links", "Health", "Other", "Sampler", "Host"]
GROUPS: tuple[Group, ...] = (
    "Compute",
    "Memory",
    "Power",
    "Clocks",
    "Links",
    "Health",
    "Other",
    "Sampler",
    "Host",
)
"""The order on screens and in texts."""


class Meaning(NamedTuple):
    """A reading in words.

    `label` is its name on screen, `short` a few words beside the value. `long` explains what it is and what
    it is not. `good` says how to judge it (empty: nothing to judge), `source` where the number comes from.
    `needs` are the keys of `GpuInfo.missing_because` that explain why a GPU lacks it.
    """

    label: str
    unit: Unit
    group: Group
    short: str
    long: str
    source: str
    good: str = ""
    needs: tuple[str, ...] = ()


def value_text(unit: Unit, value: float | None) -> str:
    """Format a value with its unit: `94 %`, `0.8 %`, `612 W`, `58.1 GiB`, `29.1 GB/s`; unknown is `–`.

    A bit mask is hexadecimal. `reasons` gives the words for a GPU's clocks.
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    match unit:
        case "%":
            return numbers.percentage(value)
        case "W":
            return f"{value:.0f} W"
        case "J" | "B/s":
            return small(value, unit)
        case "B":
            return f"{numbers.gib(value)} GiB"
        case "MHz":
            return f"{numbers.grouped(value)} MHz"
        case "°C":
            return f"{value:.0f} °C"
        case "s":
            return numbers.seconds(value)
        case "count":
            return numbers.grouped(value)
        case "bit mask":
            return f"0x{int(value):x}"


def small(value: float, unit: str) -> str:
    """Format a quantity with an SI prefix, also below one: `1.19 mJ`, `836 J`, `29.1 GB/s`."""
    for prefix, scale in (("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)):
        scaled = float(f"{value / scale:.2e}")
        if abs(scaled) >= 1:
            head, _, thousands = numbers.si(scaled).partition(" ")
            return f"{head} {thousands or prefix}{unit}"
    return f"{numbers.si(value)} {unit}"


HOST: dict[str, Meaning] = {
    "cpu_percent": Meaning(
        "CPU", "%", "Host", "of all cores together",
        "How busy the host's cores are, all of them together: 100 % is every core. A single thread that "
        "cannot keep up, which is what usually starves a GPU, is only 1 % of a hundred cores.",
        "/proc/stat, since the reading before",
        "low beside an idle GPU: look for one busy thread, not for more cores",
    ),
    "cpu_busiest_core_percent": Meaning(
        "busiest core", "%", "Host", "the core that did the most",
        "How busy the busiest core of the host is. At 100 % while the others are idle, one thread does all "
        "the work: Python of the input pipeline or of the training loop.",
        "/proc/stat, since the reading before",
        "below 100 % beside an idle GPU; otherwise more worker processes help, or less work in that thread",
    ),
    "cpu_busy_cores": Meaning(
        "busy cores", "count", "Host", "cores that are at least 90 % busy",
        "How many cores were at least 90 % busy. A thread that moves from core to core may fill none of "
        "them.",
        "/proc/stat, since the reading before",
    ),
    "memory_used_bytes": Meaning(
        "memory", "B", "Host", "of the host, not available",
        "Memory that the kernel could not give out without swapping; its file cache does not count.",
        "/proc/meminfo, MemTotal − MemAvailable",
        "well below the whole: near it the kernel kills processes, often the largest",
    ),
    "swap_used_bytes": Meaning(
        "swap", "B", "Host", "memory moved to disk",
        "Memory that was moved to disk. A run whose memory is there pauses for milliseconds at a time.",
        "/proc/meminfo, SwapTotal − SwapFree",
        "0, or a figure that does not move",
    ),
    "load_1m": Meaning(
        "load", "count", "Host", "tasks that run or wait",
        "How many tasks wanted a core or waited for a disk, averaged over a minute.",
        "os.getloadavg, the first figure",
        "below the number of cores",
    ),
    "load_5m": Meaning(
        "load of 5 min", "count", "Host", "the same over five minutes",
        "How many tasks wanted a core or waited for a disk, averaged over five minutes: it shows the trend "
        "beside the load.",
        "os.getloadavg, the second figure",
    ),
    "disk_read_bytes_per_s": Meaning(
        "disk read", "B/s", "Host", "from all physical disks",
        "Bytes read from the physical disks. What comes from the kernel's cache, or from a network file "
        "system, is not in it.",
        "/sys/block/*/stat",
        "near the disk's rate while a loader waits: the data do not come fast enough",
    ),
    "disk_written_bytes_per_s": Meaning(
        "disk written", "B/s", "Host", "to all physical disks",
        "Bytes written to the physical disks: checkpoints, recordings, logs.",
        "/sys/block/*/stat",
    ),
    "net_received_bytes_per_s": Meaning(
        "net in", "B/s", "Host", "on physical interfaces",
        "Bytes received over the network. RDMA, as NCCL uses between nodes, goes past the kernel and is "
        "not in it.",
        "/sys/class/net/*/statistics",
    ),
    "net_sent_bytes_per_s": Meaning(
        "net out", "B/s", "Host", "on physical interfaces",
        "Bytes sent over the network, without RDMA.",
        "/sys/class/net/*/statistics",
    ),
}  # fmt: skip

PROCESS: dict[str, Meaning] = {
    "cpu_percent": Meaning(
        "run CPU", "%", "Host", "of one core, with its workers",
        "The processor time of the run's process and all its descendants: 100 % is one core.",
        "/proc/<pid>/stat, since the reading before",
        "about 100 % for a loop in Python; 100 % beside an idle GPU says that this one thread holds it back",
    ),
    "memory_rss_bytes": Meaning(
        "run RSS", "B", "Host", "resident memory, with workers",
        "Memory of the run's process and its descendants that is resident. A page that workers share "
        "counts once for each.",
        "/proc/<pid>/stat, rss",
        "steady; a figure that grows for hours is a leak",
    ),
}  # fmt: skip


_WINDOW = "over the last ten seconds, at least one whole iteration"

DERIVED: dict[str, Meaning] = {
    "mfu": Meaning(
        "MFU", "%", "Compute", "of the peak FLOP/s, as declared",
        "Model FLOPs utilization: the floating-point operations that the run declares for each unit of its "
        "work, times its rate, as a share of what its GPUs could do at most (dense, in the precision that "
        "it names). Work done twice, such as recomputed activations, does not count.",
        f"declared FLOPs × rate / Σ peak FLOP/s of the run's GPUs, {_WINDOW}",
        "40 to 60 % is good for large language models on Hopper; small models and RL reach far less",
    ),
    "mfu_estimated": Meaning(
        "MFU estimated", "%", "Compute", "≈ from the tensor pipe and the clock",
        "An estimate for runs that declare no FLOPs: how busy the tensor pipes are, scaled to the clock of "
        "the datasheet's peak, less five per cent. It was within 1 % of a language model's true MFU at "
        "four batch sizes; it knows nothing of the model, and counts recomputed and padded work as well.",
        "mean over the run's GPUs of tensor active × SM clock / peak clock × 0.95",
        "read it as MFU, with a pinch of salt",
    ),
    "power_w": Meaning(
        "power", "W", "Power", "of all GPUs of the run",
        "What the run's GPUs draw together, boards included; CPU, network and cooling are not in it.",
        "Σ power_w of the run's GPUs",
    ),
    "energy_j": Meaning(
        "energy", "J", "Power", "since the run's first reading",
        "What the run's GPUs have used together since the first reading that belongs to this run. 3.6 MJ "
        "are a kilowatt-hour.",
        "Σ energy_j of the run's GPUs, less what they read at first",
    ),
    "energy_per_iteration_j": Meaning(
        "energy per iteration", "J", "Power", "what an iteration costs",
        "The energy of the run's GPUs for one iteration.",
        f"power × seconds of an iteration, {_WINDOW}",
        "lower at the same result is better",
    ),
    "energy_per_unit_j": Meaning(
        "energy per unit", "J", "Power", "what a step, sample or token costs",
        "The energy of the run's GPUs for one unit of the headline rate: an environment step, a sample, a "
        "token. Unlike the rate it distinguishes a faster run from one that only draws more power.",
        f"power / headline rate, {_WINDOW}",
        "lower is better; compare it only at the same model and data",
    ),
    "idle_power_w": Meaning(
        "idle power", "W", "Power", "for SM time without work",
        "The part of the power that falls on SM time without work: power × (1 − SM active). It is what "
        "waiting costs, not what could be saved: an idle H100 draws 70 to 130 W.",
        "Σ power_w × (1 − sm_active / 100) of the run's GPUs",
        "near zero; hundreds of watts say that the GPUs wait for something",
    ),
    "memory_headroom_bytes": Meaning(
        "memory headroom", "B", "Memory", "free on the fullest GPU",
        "Free memory of the run's GPU that has the least. PyTorch keeps what it has freed, so a run may "
        "need less than it holds. A larger batch must still fit into this.",
        "least memory_total_bytes − memory_used_bytes over the run's GPUs",
        "some GiB; below one, a small change of shape may run out of memory",
    ),
    "sm_active": Meaning(
        "SM active", "%", "Compute", "mean of the run's GPUs",
        "SM active of all GPUs of the run, where it has several: what they do together, in one curve.",
        "mean of sm_active over the run's GPUs",
        "above 80 %",
        needs=("gpm",),
    ),
    "sm_active_least": Meaning(
        "SM active, least", "%", "Compute", "of the GPU that does least",
        "SM active of that GPU of the run which has least of it. In data-parallel training all wait for "
        "the slowest, so those that wait stand out from one that works.",
        "least sm_active over the run's GPUs",
        "near the mean; far below it, the work is not shared evenly",
        needs=("gpm",),
    ),
    "gpu_memory_bytes": Meaning(
        "own GPU memory", "B", "Memory", "held by the run's processes",
        "What the run's own processes hold on all GPUs, CUDA contexts included; neighbours on the same GPU "
        "are left out.",
        "Σ memory of the run's processes, nvmlDeviceGetComputeRunningProcesses",
    ),
    "gpu_sm_percent": Meaning(
        "own SM share", "%", "Compute", "of the run's processes",
        "The SM time that the driver books on the run's own processes. It is coarser than SM active: use "
        "it only to distinguish the run from its neighbours.",
        "Σ SM share of the run's processes, nvmlDeviceGetProcessUtilization",
        needs=("process_utilization",),
    ),
}  # fmt: skip
