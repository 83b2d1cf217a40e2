"""The readings of the host (`host`) and of a run's own processes on it (`process/<run id>`)."""

from __future__ import annotations

from hoptui.presentation.readings.units import Meaning

HOST: dict[str, Meaning] = {
    "cpu_percent": Meaning(
        "CPU", "%", "Host", "of all cores together",
        "How busy the host's cores are, all of them together: 100 % is every core. A single thread that "
        "cannot keep up, which is what usually starves a GPU, is only 1 % of a hundred cores.",
        "/proc/stat, since the reading before",
        "low beside an idle GPU: look for one busy thread, not for more cores",
    ),
    "memory_used_bytes": Meaning(
        "memory", "B", "Host", "of the host, not to be had",
        "Memory that the kernel could not give out without swapping; its file cache does not count.",
        "/proc/meminfo, MemTotal − MemAvailable",
        "well below the whole: near it the kernel kills processes, often the largest",
    ),
    "swap_used_bytes": Meaning(
        "swap", "B", "Host", "memory moved to disk",
        "Memory that was moved to disk. A run whose memory is there stands still for milliseconds at a time.",
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
