"""Real readings of an H100 through the same code: numbers, gaps and events as they would have been."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hoptui.domain.devices import Happened
from hoptui.domain.facts import fact
from hoptui.telemetry.nvml import Gpus

if TYPE_CHECKING:
    from tests.telemetry.conftest import FakeClock
    from tests.telemetry.fake_nvml import FakeNvml

TRACE = [json.loads(line) for line in (Path(__file__).parent / "data/h100.jsonl").read_text().splitlines()]
SECOND = 1_000_000_000


class Played:
    """What the sampler says of each reading of the trace, by phase."""

    def __init__(self, nvml: FakeNvml, clock: FakeClock) -> None:
        nvml.gpus = ["GPU-0"]
        gpus = Gpus(nvml, clock, print)
        self.rows: dict[str, list[tuple[dict[str, Any], dict[str, float]]]] = defaultdict(list)
        self.events: list[Happened] = []
        start, begun = clock.now, TRACE[0]["t"]
        for said in TRACE:
            clock.now = max(start + round((said["t"] - begun) * SECOND), clock.now + SECOND // 10)
            show(nvml, said)
            for part in gpus.read():
                self.rows[said["phase"]].append((said, part.last()))
            gpus.aside(clock() + 1)
            self.events += gpus.happened()

    def median(self, phase: str, name: str) -> float:
        return statistics.median(row[name] for _, row in self.rows[phase] if name in row)


def show(nvml: FakeNvml, said: dict[str, Any]) -> None:
    """Let NVML answer what it answered then."""
    nvml.utilization = SimpleNamespace(gpu=said["util"], memory=said["memutil"])
    nvml.memory_used = said["used"]
    nvml.fields["NVML_FI_DEV_POWER_INSTANT"] = ("uiVal", said["power_mW"])
    nvml.fields["NVML_FI_DEV_POWER_AVERAGE"] = ("uiVal", said["power_mW"])
    nvml.energy_mj, nvml.temperature = said["energy_mJ"], said["temp"]
    nvml.sm_clock, nvml.throttle = said["sm"], said["throttle"]
    nvml.gpm = said["gpm"]


@pytest.fixture
def played(nvml: FakeNvml, clock: FakeClock) -> Played:
    return Played(nvml, clock)


def test_every_figure_arrives_and_what_was_nan_is_not_there(played: Played) -> None:
    holes = 0
    for phase in played.rows.values():
        for said, row in phase:
            assert not any(math.isnan(value) for value in row.values())
            assert row["power_w"] == pytest.approx(said["power_mW"] / 1000, abs=0.006)
            assert row["throttle"] == said["throttle"]
            if "sm_active" in row:
                assert row["sm_active"] == pytest.approx(said["gpm"]["SM_UTIL"], abs=0.006)
                assert ("dram_active" in row) == (not math.isnan(said["gpm"]["DRAM_BW_UTIL"]))
                holes += "dram_active" not in row
    assert holes > 5


@pytest.mark.parametrize(
    ("phase", "name", "least", "most"),
    [
        ("copy_4GiB", "busy", 99, 100),
        ("copy_4GiB", "tensor_active", 0, 0.5),
        ("copy_4GiB", "dram_active", 85, 95),
        ("bf16_matmul_8192", "tensor_active", 88, 96),
        ("fp32_matmul", "busy", 99, 100),
        ("fp32_matmul", "tensor_active", 0, 0.5),
        ("launch_bound_mlp_b1", "sm_active", 0.3, 1.5),
        ("ppo_eager_4096_full", "busy", 30, 34),
        ("ppo_graph_4096_full", "busy", 100, 100),
        ("ppo_graph_4096_full", "sm_active", 25, 27),
        ("lm_b32", "mfu_estimated", 39, 43),  # 41.2 % by the model's FLOPs
    ],
)
def test_each_load_looks_as_it_did(played: Played, phase: str, name: str, least: float, most: float) -> None:
    assert least <= played.median(phase, name) <= most


def test_a_power_cap_under_full_load_is_no_alarm(played: Played) -> None:
    assert any(said["throttle"] & 0x4 for said, _ in played.rows["lm_b32"])
    assert {event.kind for event in played.events} <= {"throttle"}
    assert {event.level for event in played.events} == {"info"}
    assert fact("gpu.throttle", reason="power_cap", active=True) in [event.what for event in played.events]


def test_energy_between_two_readings_of_the_counter_is_close_to_the_counter(played: Played) -> None:
    known = [
        (said["energy_mJ"] / 1000, row["energy_j"])
        for said, row in played.rows["lm_b32"]
        if "energy_j" in row
    ]
    assert len(known) > 20
    first, last = known[0], known[-1]
    assert last[1] - first[1] == pytest.approx(last[0] - first[0], rel=0.02)
    assert max(abs(counted - told) for counted, told in known) < 400  # of 700 W and five seconds
