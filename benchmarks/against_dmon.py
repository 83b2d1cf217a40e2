"""hoptui's readings beside NVIDIA's own tools on a steady load: power, clocks and memory, read at the same
time."""

from __future__ import annotations

import statistics
import subprocess
import time
from typing import Any

from benchmarks.gpu_node import known, load, watched
from benchmarks.measure import bench, report

SETTLE_S, SECONDS, HZ = 5.0, 20, 2.0
POWER_TOLERANCE = 0.02


def dmon() -> dict[str, list[float]]:
    """`nvidia-smi dmon` once a second: power (W), SM and memory clock (MHz) of GPU 0."""
    command = ["nvidia-smi", "dmon", "-i", "0", "-s", "pc", "-d", "1", "-c", str(SECONDS)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 30, check=True).stdout
    lines = printed.splitlines()
    names = lines[0].lstrip("# ").split()
    rows = [dict(zip(names, line.split(), strict=True)) for line in lines if not line.startswith("#")]
    return {name: [float(row[name]) for row in rows] for name in ("pwr", "pclk", "mclk")}


def memory_used_mib() -> int:
    """What `nvidia-smi` says is used of GPU 0, in MiB."""
    command = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout)


def main() -> dict[str, Any]:
    """Measure and report."""
    with bench() as node, watched(node, HZ) as watcher, load(node, "copy"):
        time.sleep(SETTLE_S)
        start = time.monotonic()
        theirs = dmon()
        memory_mib = memory_used_mib()
        rows = watcher.rows(watcher.gpus[0], start, time.monotonic())
    power = statistics.mean(known(rows, "power_w")) / statistics.mean(theirs["pwr"])
    used = known(rows, "memory_used_bytes")[-1] / 2**20
    clocks = {
        name: (statistics.median(known(rows, name)), statistics.median(theirs[key]))
        for name, key in (("sm_clock_mhz", "pclk"), ("memory_clock_mhz", "mclk"))
    }
    met = {
        "power within 2 %": abs(power - 1) <= POWER_TOLERANCE,
        "memory exact (whole MiB)": round(used) == memory_mib,
        "clocks exact": all(ours == other for ours, other in clocks.values()),
    }
    figures = {
        "seconds": SECONDS,
        "power_ratio_of_means": round(power, 4),
        "power_w": [round(statistics.mean(v), 1) for v in (known(rows, "power_w"), theirs["pwr"])],
        "memory_mib": [round(used, 2), memory_mib],
        "clocks_mhz": clocks,
        "met": met,
    }
    return report("against_dmon", figures)


if __name__ == "__main__":
    main()
