"""A day of a node on disk: bytes, what writing costs, how fast any moment and any window of it is there
again.

A day at 2 Hz of GPUs with 30 readings each and one run with 40 metrics, appended a minute at a time (the
daemon's own path, with stamps that were never waited for), and a week at 1 Hz of one GPU. GPU readings come
from a folder of 10 Hz traces (`HOPTUI_TRACES`, JSON lines), each phase tiled with its own noise, or, without
one, from noise around typical values; `readings_from` says which. `HOPTUI_BENCH_GPUS=8` writes all eight GPUs
(a minute and a half); otherwise two are written and the day of eight is computed from them, as each source
has its own blocks.
"""

from __future__ import annotations

import json
import math
import os
import random
import sqlite3
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import report, spread, tell
from hoptui.domain.columns import Columns
from hoptui.recording import Recording

SECOND = 1_000_000_000
DAY_S, WEEK_S = 86_400, 7 * 86_400
HZ = 2
NODE_GPUS = 8
POOL = 8192  # rows of each kind; which of them a minute gets is drawn by lot
SCREEN = ("power_w", "sm_active", "tensor_active", "dram_active", "busy", "temperature_c")
RUN = "run/bench"

MIB = float(1 << 20)
TRACED = {  # reading -> where it is in a trace's row, and its unit there
    "busy": ("util", 1.0),
    "memory_busy": ("memutil", 1.0),
    "power_w": ("power_mW", 1e-3),
    "memory_used_bytes": ("used", 1.0),
    "temperature_c": ("temp", 1.0),
    "sm_clock_mhz": ("sm", 1.0),
    "throttle": ("throttle", 1.0),
    "sm_active": ("SM_UTIL", 1.0),
    "sm_occupancy": ("SM_OCCUPANCY", 1.0),
    "tensor_active": ("ANY_TENSOR_UTIL", 1.0),
    "tensor_half_active": ("HMMA_TENSOR_UTIL", 1.0),
    "tensor_int_active": ("IMMA_TENSOR_UTIL", 1.0),
    "tensor_double_active": ("DFMA_TENSOR_UTIL", 1.0),
    "dram_active": ("DRAM_BW_UTIL", 1.0),
    "fp64_active": ("FP64_UTIL", 1.0),
    "fp32_active": ("FP32_UTIL", 1.0),
    "fp16_active": ("FP16_UTIL", 1.0),
    "int_active": ("INTEGER_UTIL", 1.0),
    "pcie_rx_bytes_per_s": ("PCIE_RX_PER_SEC", MIB),
    "pcie_tx_bytes_per_s": ("PCIE_TX_PER_SEC", MIB),
    "nvlink_rx_bytes_per_s": ("NVLINK_TOTAL_RX_PER_SEC", MIB),
    "nvlink_tx_bytes_per_s": ("NVLINK_TOTAL_TX_PER_SEC", MIB),
}
TYPICAL = {  # mean and deviation under a language model, where there are no traces
    "busy": (99, 0.5), "memory_busy": (52, 1), "power_w": (690, 6), "memory_used_bytes": (4e10, 0),
    "temperature_c": (62, 0.5), "sm_clock_mhz": (1755, 12), "throttle": (4, 0), "sm_active": (94, 0.6),
    "sm_occupancy": (33, 0.4), "tensor_active": (47, 0.7), "tensor_half_active": (47, 0.7),
    "dram_active": (51, 0.8), "fp32_active": (12, 0.3), "fp16_active": (2, 0.1), "int_active": (9, 0.2),
    "pcie_rx_bytes_per_s": (2e7, 4e6), "pcie_tx_bytes_per_s": (1e7, 2e6),
    "nvlink_rx_bytes_per_s": (2.9e10, 8e8), "nvlink_tx_bytes_per_s": (2.9e10, 8e8),
}  # fmt: skip
WHOLE = frozenset(("busy", "memory_busy", "memory_used_bytes", "temperature_c", "sm_clock_mhz", "throttle"))
"""Readings that come in whole units and are tiled as they are: noise would not leave them whole."""

Phase = Mapping[str, Sequence[float]]


def traced(folder: Path) -> list[Phase]:
    """The phases of all traces in which a GPU works, at 2 Hz."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if row.get("gpu", 0) == 0:
                found.setdefault(f"{file.stem} {row['phase']}", []).append(row)
    phases: list[Phase] = []
    for name, rows in found.items():
        every = max(1, round(0.5 * len(rows) / max(0.1, rows[-1]["t"] - rows[0]["t"])))
        if len(rows) >= 60 and not any(word in name for word in ("idle", "gap", "compile")):
            phases.append(
                {reading: [_value(row, *where) for row in rows[::every]] for reading, where in TRACED.items()}
            )
    return phases


def _value(row: dict[str, Any], key: str, unit: float) -> float:
    value = row.get(key, row["gpm"].get(key, 0.0))
    return math.nan if value is None else value * unit


def typical(rng: random.Random) -> list[Phase]:
    """One phase of noise around typical values."""
    return [{name: [max(0.0, rng.gauss(*TYPICAL.get(name, (0, 0)))) for _ in range(240)] for name in TRACED}]


def gpu_rows(phases: Sequence[Phase], rng: random.Random) -> dict[str, array[float]]:
    """POOL rows of 30 readings, rounded as the sampler does it: phases of 512 rows, each with its own
    noise."""
    columns: dict[str, array[float]] = {}
    for name in TRACED:
        column = columns[name] = array("d")
        for number in range(POOL // 512):
            values = phases[number % len(phases)][name]
            known = [v for v in values if v == v]
            sigma = 0.0 if name in WHOLE else 0.7 * statistics.pstdev(known)
            tiled = (values[i % len(values)] for i in range(512))
            column.extend(_rounded(name, max(0.0, v + rng.gauss(0, sigma)) if sigma else v) for v in tiled)
    watts, unknown = columns["power_w"], array("d", [math.nan])
    energy = average = 0.0
    for name in ("power_average_w", "energy_j"):
        columns[name] = array("d")
    for watt in watts:
        energy, average = energy + watt / HZ, average + 0.4 * (watt - average)
        columns["power_average_w"].append(round(average, 2))
        columns["energy_j"].append(round(energy, 1))
    columns["dram_active"][::251] = unknown * len(columns["dram_active"][::251])
    columns["memory_total_bytes"] = array("d", [85_520_809_984.0]) * POOL
    columns["memory_temperature_c"] = array(
        "d", [t + 9 + (rng.random() < 0.2) for t in columns["temperature_c"]]
    )
    columns["memory_clock_mhz"] = array("d", [2619.0]) * POOL
    columns["window_s"] = array("d", [0.5 + rng.choice((0, 0, 0, 0.001, -0.001)) for _ in range(POOL)])
    columns["mfu_estimated"] = array(
        "d",
        [
            round(t * c / 1829 * 0.95, 2)
            for t, c in zip(columns["tensor_active"], columns["sm_clock_mhz"], strict=True)
        ],
    )
    columns["processes"] = array("d", [1.0, math.nan]) * (POOL // 2)
    return columns


def _rounded(name: str, value: float) -> float:
    if value != value:
        return value
    if name in WHOLE:
        return float(round(value))
    return round(value / 1000) * 1000.0 if name.endswith("bytes_per_s") else round(value, 2)


def run_rows(rng: random.Random) -> dict[str, array[float]]:
    """POOL rows of 40 metrics: 12 timings in µs, 14 losses in float32, 6 counters, 4 constants, 2 rates, 2
    schedules."""
    columns: dict[str, array[float]] = {}
    for i in range(12):
        columns[f"phase/{i}"] = array(
            "d", [round(abs(rng.gauss(0.05 * (i + 1), 0.002)), 6) for _ in range(POOL)]
        )
    for i in range(14):
        columns[f"loss_{i}"] = array("d", array("f", [2.5 + rng.gauss(0, 0.05) for _ in range(POOL)]))
    for i in range(6):
        columns[f"count_{i}"] = array("d", range(0, 4096 * (i + 1) * POOL, 4096 * (i + 1)))
    for i in range(4):
        columns[f"knob_{i}"] = array("d", [3e-4 * (i + 1)]) * POOL
    for i in range(2):
        columns[f"rate_{i}"] = array("d", [round(4096 / abs(rng.gauss(0.05, 0.002)), 3) for _ in range(POOL)])
        columns[f"schedule_{i}"] = array("d", [3e-4 * (1 + math.cos(n / 1e5)) for n in range(POOL)])
    return columns


def part(
    source: str, pool: Mapping[str, array[float]], first: int, count: int, hz: int, rng: random.Random
) -> Columns:
    """`count` rows from row number `first` of a recording on: a stretch of the pool that is drawn by lot."""
    start = rng.randrange(POOL - count)
    stamps = [(first + i) * SECOND // hz + int(abs(rng.gauss(0, 80_000))) + SECOND for i in range(count)]
    steps = range(first, first + count) if source == RUN else [-1] * count
    return Columns(
        source=source,
        names=tuple(pool),
        t=array("q", stamps).tobytes(),
        step=array("q", steps).tobytes(),
        values=tuple(column[start : start + count].tobytes() for column in pool.values()),
    )


def written(
    path: Path, pools: Mapping[str, Mapping[str, array[float]]], seconds: int, hz: int, flush_s: int
) -> tuple[float, list[float]]:
    """CPU seconds of writing a recording, and of each flush."""
    rng = random.Random(3)
    flushes = []
    with Recording.create(path) as recording:
        appended = 0.0
        for first in range(0, seconds * hz, flush_s * hz):
            parts = [part(source, pool, first, flush_s * hz, hz, rng) for source, pool in pools.items()]
            began = time.process_time()
            for one in parts:
                recording.append(one)
            waiting = time.process_time()
            recording.flush()
            ended = time.process_time()
            appended += waiting - began
            flushes.append(ended - waiting)
    return sum(flushes) + appended, flushes


def bytes_of(path: Path) -> dict[str, float]:
    """What each source's blocks take, by level, in bytes."""
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT source, level, sum(length(body)) FROM blocks GROUP BY source, level")
        return {
            f"{source.partition('/')[0]} {source[-1]} level {level}": size for source, level, size in found
        }


def timed(call: Callable[[int], object], each: Iterable[int]) -> dict[str, float]:
    """Milliseconds of each call."""
    took = []
    for one in each:
        began = time.perf_counter()
        call(one)
        took.append(1e3 * (time.perf_counter() - began))
    return spread(took, 2)


def opened(path: Path) -> Recording:
    """A recording as a screen opens it: its sources, its span, and a chart of the whole of it."""
    recording = Recording.open(path)
    recording.sources()
    recording.span()
    for source in ("gpu/GPU-0", RUN):
        recording.buckets(source, SCREEN)
    return recording


def looked_up(path: Path, length_s: int) -> dict[str, Any]:
    """How long it takes to open a recording, to see a moment of it, and to draw windows of it."""
    gpu = "gpu/GPU-0"
    found: dict[str, Any] = {"open_ms": timed(lambda _: opened(path).close(), range(5))}
    rng = random.Random(9)
    with Recording.open(path) as recording:
        metrics = recording.names(RUN)[:6]

        def draw(t: int, window_s: int, source: str = gpu, names: tuple[str, ...] = SCREEN) -> None:
            recording.buckets(source, names, t * SECOND, (t + window_s) * SECOND)

        def screen(t: int) -> None:
            draw(t, 600)
            draw(t, 600, RUN, metrics)

        for window_s in (600, 3_600, 4 * 3_600, 12 * 3_600, length_s):
            starts = [1 + rng.randrange(max(1, length_s - window_s + 1)) for _ in range(12)]
            found[f"window_{window_s}_s_of_6_series_ms"] = timed(partial(draw, window_s=window_s), starts)
        moments = [60 + rng.randrange(length_s - 660) for _ in range(24)]
        found["at_all_30_readings_ms"] = timed(lambda t: recording.at(gpu, t * SECOND, 10.0), moments)
        found["screen_of_10_min_gpu_and_run_ms"] = timed(screen, moments)
    return found


def main() -> None:
    """Measure and report."""
    rng = random.Random(1)
    folder = os.environ.get("HOPTUI_TRACES", "")
    phases = traced(Path(folder)) if folder else typical(rng)
    count = int(os.environ.get("HOPTUI_BENCH_GPUS", "2"))
    run = run_rows(rng)
    gpus = [
        gpu_rows([*phases[i % len(phases) :], *phases[: i % len(phases)]], rng) for i in range(min(count, 4))
    ]
    node = {f"gpu/GPU-{i}": gpus[i % len(gpus)] for i in range(count)} | {RUN: run}
    all_gpus = {f"gpu/GPU-{i}": gpus[i % len(gpus)] for i in range(NODE_GPUS)} | {RUN: run}
    with tempfile.TemporaryDirectory(prefix="hoptui-bench-") as made:
        directory = Path(made)
        day = directory / "day.hoptui"
        cpu_s, _ = written(day, node, DAY_S, HZ, flush_s=60)
        size = day.stat().st_size
        of_run = sum(n for name, n in bytes_of(day).items() if name.startswith("run"))
        of_gpus = size - of_run  # the file's own pages are theirs too
        figures: dict[str, Any] = {
            "readings_from": f"{len(phases)} phases of traces" if folder else "noise around typical values",
            "gpus_written": count,
            "day_bytes": size,
            "day_bytes_of_8_gpus": round(of_run + of_gpus * NODE_GPUS / count),
            "day_blocks_bytes": bytes_of(day),
            "day_write_cpu_s_per_hour_by_the_minute": round(cpu_s / 24, 3),
            "day": looked_up(day, DAY_S),
        }
        tell("a day", figures)
        cpu_s, flushes = written(directory / "live.hoptui", all_gpus, 600, HZ, flush_s=1)
        figures["live_write_cpu_s_per_hour_of_8_gpus"] = round(6 * cpu_s, 2)
        figures["live_flush_cpu_ms_of_8_gpus"] = spread([1e3 * s for s in flushes], 2)
        week = directory / "week.hoptui"
        written(week, {"gpu/GPU-0": gpus[0]}, WEEK_S, 1, flush_s=600)
        figures["week_bytes_of_1_gpu"] = week.stat().st_size
        figures["week_open_ms"] = timed(lambda _: opened(week).close(), range(5))
    report("recording", figures)


if __name__ == "__main__":
    main()
