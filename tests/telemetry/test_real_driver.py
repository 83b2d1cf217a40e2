"""On a node with an NVIDIA driver: every reading against sane ranges and against nvidia-smi."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pynvml
import pytest

from hoptui.domain.columns import Columns
from hoptui.telemetry.gpm import METRICS
from hoptui.telemetry.metrics_table import EACH_SECOND, HEALTH, LIMITS, PCIE, ROW
from hoptui.telemetry.nvml import Gpus
from hoptui.telemetry.nvml_errors import SECOND_NS

RANGES = {
    "%": (0, 100),
    "W": (1, 1500),
    "°C": (5, 110),
    "MHz": (100, 10_000),
    "B": (0, 1 << 40),
    "bit mask": (0, 1 << 10),
    "errors": (0, 1 << 40),
    "rows": (0, 10_000),
    "replays": (0, 1 << 40),
    "s": (0, 1 << 40),
    "B/s": (0, 1e12),
}
MIB = 1 << 20


@pytest.fixture(scope="module")
def reports() -> list[str]:
    return []


@pytest.fixture(scope="module")
def gpus(reports: list[str]) -> Iterator[Gpus]:
    found = Gpus(pynvml, time.monotonic_ns, reports.append)
    found.read()
    if found.problem:
        pytest.skip(found.problem.code)
    yield found
    pynvml.nvmlShutdown()


TICK_NS = SECOND_NS // 10
NOT_EVERYWHERE = {"protected_memory_used_bytes"}
"""What a data-centre GPU may lack."""
WATCHED = {reading.name for reading in (*ROW, *HEALTH)} - NOT_EVERYWHERE | {"processes", "energy_j"}


def rows(gpus: Gpus) -> dict[str, dict[str, float]]:
    """The newest values of each GPU by its uuid, from ticks of 10 Hz with slow readings between them."""
    merged: dict[str, dict[str, float]] = {}
    end = time.monotonic() + 10
    while not merged or any(not row.keys() >= WATCHED for row in merged.values()):
        assert time.monotonic() < end, f"{[WATCHED - row.keys() for row in merged.values()]} missing"
        for part in ticked(gpus):
            merged.setdefault(part.source.removeprefix("gpu/"), {}).update(part.last())
    return merged


def ticked(gpus: Gpus) -> list[Columns]:
    """One tick of 10 Hz and the slow readings behind it."""
    begun = time.monotonic_ns()
    parts = gpus.read(TICK_NS)
    gpus.aside(begun + TICK_NS // 2)
    select.select([], [], [], max(0, begun + TICK_NS - time.monotonic_ns()) / SECOND_NS)
    return parts


def nvidia_smi(query: str) -> dict[str, list[str]]:
    """What nvidia-smi prints for each GPU, by its uuid, without units."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("there is a driver and no nvidia-smi")
    text = subprocess.run(
        ["nvidia-smi", f"--query-gpu=uuid,{query}", "--format=csv,noheader,nounits"],
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    ).stdout
    lines = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return {uuid: fields for uuid, *fields in lines}


def test_every_reading_of_a_data_centre_gpu_is_there_and_sane(gpus: Gpus, reports: list[str]) -> None:
    found = rows(gpus)
    assert found.keys() == {info.uuid for info in gpus.infos()}
    for row in found.values():
        for reading in (*ROW, *HEALTH):
            if reading.name in NOT_EVERYWHERE and reading.name not in row:
                continue
            low, high = RANGES[reading.unit]
            assert reading.name in row, f"{reading.name} is missing; {reports}"
            assert low <= row[reading.name] <= high, reading.name
        assert row["memory_used_bytes"] < row["memory_total_bytes"]
        assert row["sm_clock_mhz"] <= 1.05 * max(info.sm_clock_max_mhz or 0 for info in gpus.infos())
    assert reports == []


def test_the_facts_and_the_memory_are_those_of_nvidia_smi(gpus: Gpus) -> None:
    found = rows(gpus)
    said = nvidia_smi("index,name,driver_version,memory.total,memory.used,enforced.power.limit,clocks.max.sm")
    assert len(said) == len(gpus.infos())
    for info in gpus.infos():
        index, name, driver, total, used, limit, clock = said[info.uuid]
        assert (info.index, info.name, info.driver) == (int(index), name, driver)
        assert info.power_limit_w == pytest.approx(float(limit), abs=0.01)
        assert info.sm_clock_max_mhz == float(clock)
        assert info.architecture
        assert info.memory_total_bytes is not None
        assert info.memory_total_bytes // MIB == int(total)
        # nvidia-smi prints whole MiB; the reading is in bytes.
        assert abs(found[info.uuid]["memory_used_bytes"] - int(used) * MIB) < MIB


def test_power_and_temperature_of_an_idle_gpu_are_those_of_nvidia_smi(gpus: Gpus) -> None:
    end = time.monotonic() + 20
    while True:  # a GPU that was just woken or used still moves: wait until it has settled
        found = rows(gpus)
        said = nvidia_smi("power.draw.instant,power.draw.average,temperature.gpu,utilization.gpu")
        if any(int(busy) > 0 for *_, busy in said.values()):
            pytest.skip("a GPU is not idle: its power moves between two readings")
        pairs = [
            (found[uuid][name], pytest.approx(float(text), rel=0.15))
            for uuid, fields in said.items()
            for name, text in zip(("power_w", "power_average_w", "temperature_c"), fields, strict=False)
        ]
        if all(ours == theirs for ours, theirs in pairs):
            break
        assert time.monotonic() < end, pairs


def test_each_reading_beside_the_tick_is_sane_or_has_its_reason(gpus: Gpus) -> None:
    found = rows(gpus)
    for _ in range(15):
        for part in ticked(gpus):
            found[part.source.removeprefix("gpu/")].update(part.last())
    for info in gpus.infos():
        if info.parent:
            continue
        row = found[info.uuid]
        for reading in (*EACH_SECOND, *PCIE):
            low, high = RANGES[reading.unit]
            if reading.name in row:
                assert (-50 if reading.name == "temperature_margin_c" else low) <= row[reading.name] <= high
            else:
                assert {reading.name, "gpm"} & info.missing_because.keys(), reading.name


def dmon() -> dict[int, dict[str, str]]:
    """The last row of each GPU that `nvidia-smi dmon` prints; `-` is what it does not know."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("there is a driver and no nvidia-smi")
    command = ["nvidia-smi", "dmon", "-s", "pucvmet", "-c", "2"]
    lines = subprocess.run(
        command, capture_output=True, check=True, text=True, timeout=60
    ).stdout.splitlines()
    names = lines[0].lstrip("# ").split()
    rows = [dict(zip(names, line.split(), strict=True)) for line in lines if line[:1] == " "]
    return {int(row["gpu"]): row for row in rows}


DMON = {
    "gtemp": ("temperature_c", 1, 3),
    "mtemp": ("memory_temperature_c", 1, 3),
    "enc": ("encoder_busy", 1, 5),
    "dec": ("decoder_busy", 1, 5),
    "jpg": ("jpeg_busy", 1, 5),
    "ofa": ("ofa_busy", 1, 5),
    "bar1": ("bar1_used_bytes", MIB, 2),
    "ccpm": ("protected_memory_used_bytes", MIB, 2),
    "pci": ("pcie_replays", 1, 1),
}
"""A column of dmon -> our reading, how much of it is one of theirs, and by how much they may differ."""


def test_what_dmon_prints_is_read(gpus: Gpus) -> None:
    said = dmon()
    found = rows(gpus)
    for info in gpus.infos():
        if info.parent or info.index not in said:
            continue
        row = found[info.uuid]
        for column, (name, scale, tolerance) in DMON.items():
            theirs = said[info.index].get(column, "-")
            if theirs != "-":
                assert name in row, f"{name} is missing where dmon prints {column} {theirs}"
                assert abs(row[name] / scale - float(theirs)) <= tolerance, (column, row[name], theirs)
        for column, name in (("pviol", "power_violation_s"), ("tviol", "thermal_violation_s")):
            assert said[info.index].get(column, "-") == "-" or name in row, name
        for column, name in (("rxpci", "pcie_rx_bytes_per_s"), ("txpci", "pcie_tx_bytes_per_s")):
            assert said[info.index].get(column, "-") == "-" or name in row, name


SMI_LIMITS = {
    "Default Power Limit": "power_default_w",
    "Min Power Limit": "power_min_w",
    "Max Power Limit": "power_max_w",
    "GPU Slowdown Temp": "temperature_slowdown_c",
    "GPU Shutdown Temp": "temperature_shutdown_c",
    "GPU Max Operating Temp": "temperature_max_c",
    "Memory Max Operating Temp": "memory_temperature_max_c",
    "GPU Slowdown T.Limit Temp": "margin_slowdown_c",
    "GPU Shutdown T.Limit Temp": "margin_shutdown_c",
    "GPU Max Operating T.Limit Temp": "margin_max_c",
    "Memory Max Operating T.Limit Temp": "memory_margin_max_c",
}


def test_the_limits_are_those_of_nvidia_smi(gpus: Gpus) -> None:
    assert set(SMI_LIMITS.values()) == {reading.name for reading in LIMITS}
    if shutil.which("nvidia-smi") is None:
        pytest.skip("there is a driver and no nvidia-smi")
    for info in gpus.infos():
        if info.parent:
            continue
        text = subprocess.run(
            ["nvidia-smi", "-q", "-i", info.uuid, "-d", "POWER,TEMPERATURE"],
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        ).stdout
        said: dict[str, float] = {}
        for line in text.splitlines():
            label, _, value = (part.strip() for part in line.partition(" : "))
            figure = value.split(" ")[0]
            if label in SMI_LIMITS and figure.lstrip("-").replace(".", "", 1).isdigit():
                said.setdefault(SMI_LIMITS[label], float(figure))  # a module's own limits come later
        assert said, text
        assert {name: info.limits.get(name) for name in said} == pytest.approx(said, abs=0.01)


def hopper(gpus: Gpus) -> None:
    if any(info.architecture not in ("Hopper", "Blackwell") for info in gpus.infos()):
        pytest.skip("not all GPUs are Hopper or newer")


def test_gpm_answers_with_every_metric_at_ten_hertz(gpus: Gpus) -> None:
    hopper(gpus)
    seen: Counter[str] = Counter()
    ticks = 0
    for _ in range(12):
        for part in ticked(gpus):
            row = part.last()
            if "window_s" in row:
                ticks += 1
                seen.update(row.keys() & METRICS.keys())
                assert 0.05 <= row["window_s"] <= 0.25
                shares = [row[name] for name in METRICS.keys() & row.keys() if name.endswith("_active")]
                assert all(0 <= share <= 100 for share in shares)
    assert ticks >= 8
    linked = any(info.nvlinks for info in gpus.infos())
    assert seen.keys() == {name for name in METRICS if linked or not name.startswith("nvlink_")}
    assert all("gpm" not in info.missing_because for info in gpus.infos())


def test_xids_are_listened_for_and_energy_is_counted(gpus: Gpus) -> None:
    hopper(gpus)
    before = rows(gpus)
    begun = time.monotonic()
    for _ in range(10):
        ticked(gpus)
    after = rows(gpus)
    took = time.monotonic() - begun
    for info in gpus.infos():
        assert not {"xid", "energy", "ecc"} & info.missing_because.keys()
        spent = after[info.uuid]["energy_j"] - before[info.uuid]["energy_j"]
        assert 10 < spent / took < 1.5 * (info.power_limit_w or 1500)


def test_a_process_with_a_context_on_the_gpu_is_listed_with_its_name(gpus: Gpus) -> None:
    program = (
        "import ctypes, sys; cuda = ctypes.CDLL('libcuda.so.1'); c = ctypes.c_void_p();"
        "assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0);"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        if not child.stdout.readline():
            pytest.skip("no CUDA context can be had")
        end = time.monotonic() + 10
        while not (found := [p for p in gpus.processes() if p.pid == child.pid]):
            if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":  # noqa: PTH115
                pytest.skip("in a container the driver's pids are not ours")
            assert time.monotonic() < end, gpus.processes()
            ticked(gpus)
        assert (found[0].memory_used_bytes or 0) > 50 * MIB
        assert found[0].command.startswith(sys.executable)
        assert found[0].user


def test_a_tick_costs_less_than_a_millisecond_a_gpu(gpus: Gpus) -> None:
    ticks = 50
    gpus.read()
    begun = time.thread_time_ns()
    for _ in range(ticks):
        gpus.read()
    assert (time.thread_time_ns() - begun) / ticks / len(gpus.infos()) < SECOND_NS / 1000


def test_no_tick_waits_for_a_slow_call(gpus: Gpus) -> None:
    took = []
    for _ in range(30):
        begun = time.perf_counter_ns()
        gpus.read(TICK_NS)
        took.append(time.perf_counter_ns() - begun)
        gpus.aside(time.monotonic_ns() + TICK_NS // 8)
        select.select([], [], [], 0.05)
    assert (
        sorted(took)[len(took) * 9 // 10] / len(gpus.infos()) < 2 * SECOND_NS / 1000
    )  # energy: 3–9 ms, PCIe: 20
