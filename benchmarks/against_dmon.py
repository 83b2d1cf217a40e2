"""hoptui's readings beside `nvidia-smi dmon -s pucvmet`, read at the same time, under three steady loads: a
copy in the GPU's memory, an upload over PCIe, and a matmul at the power limit.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu_node import known, load, watched
from benchmarks.measure import Bench, bench, report, tell
from hoptui.domain.columns import Columns

SETTLE_S, SECONDS, HZ = 5.0, 20, 2.0
POWER_TOLERANCE = 0.02
SHARE_POINTS = 5.0
LOADS = ("copy", "upload", "matmul")

COLUMNS = {
    "pwr": ("power_w", 1.0),
    "gtemp": ("temperature_c", 1.0),
    "mtemp": ("memory_temperature_c", 1.0),
    "sm": ("busy", 1.0),
    "mem": ("memory_busy", 1.0),
    "enc": ("encoder_busy", 1.0),
    "dec": ("decoder_busy", 1.0),
    "jpg": ("jpeg_busy", 1.0),
    "ofa": ("ofa_busy", 1.0),
    "mclk": ("memory_clock_mhz", 1.0),
    "pclk": ("sm_clock_mhz", 1.0),
    "fb": ("memory_used_bytes", 2**20),
    "bar1": ("bar1_used_bytes", 2**20),
    "ccpm": ("protected_memory_used_bytes", 2**20),
    "sbecc": ("ecc_corrected", 1.0),
    "dbecc": ("ecc_uncorrected", 1.0),
    "pci": ("pcie_replays", 1.0),
    "rxpci": ("pcie_rx_bytes_per_s", 1e6),
    "txpci": ("pcie_tx_bytes_per_s", 1e6),
}
"""A column of dmon -> our reading, and how much of its unit is one of dmon's."""
SHARES = {"pviol": "power_violation_s", "tviol": "thermal_violation_s"}
"""dmon has a share of time (tviol: a flag), we have seconds that rise."""
EXACT = ("mclk", "pclk", "enc", "dec", "jpg", "ofa", "bar1", "pci")


def table(printed: str) -> dict[str, list[float]]:
    """The columns of dmon by name, without the values that it prints as `-`.

    Raises:
        ValueError: it is no output of dmon.
    """
    lines = printed.splitlines()
    heading = next((line for line in lines if line.startswith("# gpu")), None)
    if heading is None:
        raise ValueError(f"nvidia-smi dmon printed no heading: {printed[:200]!r}")
    names = heading.lstrip("# ").split()
    rows = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {
        name: [float(row[i]) for row in rows if len(row) == len(names) and row[i] != "-"]
        for i, name in enumerate(names)
    }


def dmon(count: int = SECONDS) -> dict[str, list[float]]:
    """`nvidia-smi dmon` of GPU 0, once a second."""
    command = ["nvidia-smi", "dmon", "-i", "0", "-s", "pucvmet", "-d", "1", "-c", str(count)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=count + 30, check=True).stdout
    return table(printed)


def memory_used_mib() -> int:
    """What `nvidia-smi` says is used of GPU 0, in MiB."""
    command = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout)


def middle(values: Sequence[float], scale: float = 1.0) -> float | None:
    """The median in units of dmon, None without values."""
    return round(statistics.median(values) / scale, 2) if values else None


def share(rows: Columns, name: str) -> float | None:
    """% of the time by which a reading in seconds has risen, None without two values."""
    if name not in rows.names:
        return None
    pairs = [(t, v) for t, v in zip(rows.times(), rows.column(name), strict=True) if v == v]
    if len(pairs) < 2:
        return None
    return round(100 * (pairs[-1][1] - pairs[0][1]) / ((pairs[-1][0] - pairs[0][0]) / 1e9), 2)


def beside(node: Bench, name: str) -> dict[str, Any]:
    """Ours and theirs under one load: the median of each column."""
    with watched(node, HZ) as watcher, load(node, name):
        time.sleep(SETTLE_S)
        start = time.monotonic()
        theirs = dmon()
        memory_mib = memory_used_mib()
        rows = watcher.rows(watcher.gpus[0], start, time.monotonic())
    columns: dict[str, list[float | None]] = {
        column: [middle(known(rows, reading), scale), middle(theirs.get(column, ()))]
        for column, (reading, scale) in COLUMNS.items()
    }
    columns |= {
        column: [
            share(rows, reading),
            round(statistics.mean(theirs[column]), 2) if theirs.get(column) else None,
        ]
        for column, reading in SHARES.items()
    }
    watts = [statistics.mean(known(rows, "power_w")), statistics.mean(theirs["pwr"])]
    return {
        "power_ratio_of_means": round(watts[0] / watts[1], 4),
        "memory_mib": [round(known(rows, "memory_used_bytes")[-1] / 2**20, 2), memory_mib],
        "columns": columns,
    }


def judged(found: dict[str, Any]) -> dict[str, bool]:
    """What has to hold for one load."""
    columns = found["columns"]
    met = {
        "power within 2 %": abs(found["power_ratio_of_means"] - 1) <= POWER_TOLERANCE,
        "memory exact (whole MiB)": round(found["memory_mib"][0]) == found["memory_mib"][1],
        "nothing that dmon knows is missing": all(
            ours is not None for ours, theirs in columns.values() if theirs is not None
        ),
    }
    for column in EXACT:
        ours, theirs = columns[column]
        if ours is not None and theirs is not None:
            met[f"{column} equal"] = round(ours) == theirs
    ours, theirs = columns["pviol"]
    if ours is not None and theirs is not None:
        met[f"pviol within {SHARE_POINTS:g} points"] = abs(ours - theirs) <= SHARE_POINTS
    return met


def main() -> dict[str, Any]:
    """Measure and report."""
    with bench() as node:
        figures = {name: tell(name, beside(node, name)) for name in LOADS}
    met = {f"{name}: {what}": fine for name, found in figures.items() for what, fine in judged(found).items()}
    return report("against_dmon", {"seconds": SECONDS, "loads": figures, "met": met})


if __name__ == "__main__":
    main()
