"""Hopper's counters under known loads, as hoptui shows them through daemon and viewer."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.gpu_node import Watcher, load, median, watched
from benchmarks.measure import Bench, bench, report, tell

SETTLE_S, MEASURE_S, HZ = 2.0, 6.0, 5.0
READINGS = ("busy", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp32_active",
            "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "power_w", "sm_clock_mhz",
            "mfu_estimated")  # fmt: skip
LOADS = ("idle", "launches", "copy", "upload", "matmul", "matmul_fp32")
EXPECTED: dict[str, tuple[tuple[str, str, float], ...]] = {
    "launches": (("sm_active", "<=", 5.0),),
    "copy": (("dram_active", ">=", 80.0), ("tensor_active", "<=", 1.0)),
    "matmul": (("tensor_active", ">=", 85.0),),
    "matmul_fp32": (("tensor_active", "<=", 1.0),),
}
"""What must be so on an H100 or H200."""


def measure(node: Bench, watcher: Watcher, name: str) -> dict[str, Any]:
    """One load's readings: medians over some seconds of steady work."""
    with load(node, name) as running:
        time.sleep(SETTLE_S)
        start = time.monotonic()
        time.sleep(MEASURE_S)
        end = time.monotonic()
        rows = watcher.rows(watcher.gpus[0], start, end)
        rates = running.between(start, end)
    found: dict[str, Any] = {reading: median(rows, reading) for reading in READINGS}
    found["rate"] = round(sorted(rates)[len(rates) // 2]) if rates else None
    found["rows"] = len(rows)
    return found


def holds(figures: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """Each expectation, in words, and whether it is met; unknown is not met."""
    found = {}
    for name, expected in EXPECTED.items():
        for reading, sign, bound in expected:
            value = figures[name][reading]
            met = value is not None and (value <= bound if sign == "<=" else value >= bound)
            found[f"{name}: {reading} {sign} {bound:g} %"] = met
    return found


def main() -> dict[str, Any]:
    """Measure and report."""
    with bench() as node, watched(node, HZ) as watcher:
        figures = {name: tell(name, measure(node, watcher, name)) for name in LOADS}
    return report("gpm_loads", {"hz": HZ, "loads": figures, "met": holds(figures)})


if __name__ == "__main__":
    main()
