"""On a node with an NVIDIA driver: every reading against sane ranges and against nvidia-smi."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator

import pynvml
import pytest

from hoptui.telemetry.gpu import SECOND_NS
from hoptui.telemetry.nvml import Gpus
from hoptui.telemetry.readings import ROW

RANGES = {
    "%": (0, 100),
    "W": (1, 1500),
    "°C": (5, 110),
    "MHz": (100, 10_000),
    "B": (0, 1 << 40),
    "bit mask": (0, 1 << 10),
    "processes": (0, 10_000),
}
MIB = 1 << 20


@pytest.fixture(scope="module")
def reports() -> list[str]:
    return []


@pytest.fixture(scope="module")
def gpus(reports: list[str]) -> Iterator[Gpus]:
    found = Gpus(pynvml, time.monotonic_ns, reports.append)
    found.read()
    if found.reason:
        pytest.skip(found.reason)
    yield found
    pynvml.nvmlShutdown()


def rows(gpus: Gpus) -> dict[str, dict[str, float]]:
    """The newest values of each GPU by its uuid, processes included, whose cadence is a second."""
    merged: dict[str, dict[str, float]] = {}
    end = time.monotonic() + 10
    while not merged or any("processes" not in row for row in merged.values()):
        assert time.monotonic() < end, f"no processes in {merged}"
        for part in gpus.read():
            merged.setdefault(part.source.removeprefix("gpu/"), {}).update(part.last())
    return merged


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
        for reading in ROW:
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


def test_a_tick_costs_less_than_a_millisecond_a_gpu(gpus: Gpus) -> None:
    ticks = 50
    gpus.read()
    begun = time.thread_time_ns()
    for _ in range(ticks):
        gpus.read()
    assert (time.thread_time_ns() - begun) / ticks / len(gpus.infos()) < SECOND_NS / 1000
