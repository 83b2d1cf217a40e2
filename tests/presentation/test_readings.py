"""Every reading has its words, and they are true to the rules of the screen."""

from __future__ import annotations

import math

import pytest

from hoptui.domain.devices import REASONS
from hoptui.presentation.gpu_readings import GPU, alarms, reasons
from hoptui.presentation.readings import DERIVED, GROUPS, HOST, PROCESS, Meaning, value_text
from hoptui.telemetry.metrics_table import EACH_SECOND, ENERGY, HEALTH, MEMORY, PCIE, ROW, Reading

TABLES = (*MEMORY, *ROW, *HEALTH, *EACH_SECOND, *PCIE, *ENERGY)
DRIVER = [reading.name for reading in TABLES]
OTHERS = [
    "sm_active", "sm_occupancy", "tensor_active", "tensor_half_active", "tensor_int_active",
    "tensor_double_active", "dram_active", "fp64_active", "fp32_active", "fp16_active", "int_active",
    "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s",
    "window_s", "mfu_estimated", "nvlink_errors", "processes",
]  # fmt: skip
ROWS = [*DRIVER, *OTHERS]
OF_RUNS = [
    "power_w", "energy_j", "energy_per_iteration_j", "energy_per_unit_j", "idle_power_w",
    "memory_headroom_bytes", "mfu", "mfu_estimated", "gpu_memory_bytes", "gpu_sm_percent",
    "sm_active", "sm_active_least",
]  # fmt: skip
COMPUTED = {"memory_headroom_bytes", "idle_power_w", "xid"}  # by whoever shows them
NEEDS = {"gpm", "energy", "ecc", "xid", "process_utilization", "nvlink"}  # keys of GpuInfo.missing


def test_every_reading_of_the_wire_has_a_meaning() -> None:
    assert set(GPU) == {*ROWS, *COMPUTED}
    assert set(DERIVED) == set(OF_RUNS)


@pytest.mark.parametrize("reading", TABLES, ids=lambda reading: reading.name)
def test_a_reading_of_the_driver_has_a_meaning(reading: Reading) -> None:
    hint = "add its Meaning to hoptui/presentation/gpu_readings.py: without one no screen shows it"
    assert reading.name in GPU, f"{reading.name} of hoptui/telemetry/metrics_table.py: {hint}"


@pytest.mark.parametrize("name", [*GPU])
def test_a_meaning_fits_its_screen_and_says_something(name: str) -> None:
    check(GPU[name])


@pytest.mark.parametrize("name", [*DERIVED])
def test_a_derived_meaning_fits_its_screen_and_says_something(name: str) -> None:
    check(DERIVED[name])


@pytest.mark.parametrize("meaning", [*HOST.values(), *PROCESS.values()])
def test_a_meaning_of_the_host_fits_and_says_something(meaning: Meaning) -> None:
    check(meaning)
    assert len(meaning.label) <= 15


def check(meaning: Meaning) -> None:
    assert meaning.group in GROUPS
    assert len(meaning.short) <= 40
    assert meaning.long.endswith(".")
    assert len(meaning.long) > 40
    assert meaning.source
    assert not meaning.source.endswith(".")
    assert not meaning.good.endswith(".")
    assert set(meaning.needs) <= NEEDS


def test_labels_are_told_apart() -> None:
    labels = [m.label for m in GPU.values()]
    assert len(set(labels)) == len(labels)
    assert max(map(len, labels)) <= 15


def test_estimates_are_called_estimates() -> None:
    for table in (GPU, DERIVED):
        assert "estimated" in table["mfu_estimated"].label


@pytest.mark.parametrize(
    ("unit", "value", "shown"),
    [
        ("%", 93.7, "94 %"), ("%", 0.83, "0.8 %"), ("%", 9.96, "10 %"), ("%", 0.0, "0 %"),
        ("%", 0.04, "0.04 %"), ("%", 0.004, "0.004 %"), ("%", 4e-5, "<0.001 %"), ("W", 611.6, "612 W"),
        ("J", 1.19e-3, "1.19 mJ"), ("J", 836.0, "836 J"), ("J", 1.2e6, "1.20 MJ"), ("J", 0.0, "0 J"),
        ("J", 4e-10, "4.0e-10 J"), ("J", 9.9999e-4, "1.00 mJ"), ("B/s", 29.1e9, "29.1 GB/s"),
        ("B", 58.1 * (1 << 30), "58.1 GiB"), ("MHz", 1980.0, "1 980 MHz"), ("°C", 64.4, "64 °C"),
        ("s", 0.1, "100 ms"), ("count", 12345.0, "12 345"), ("bit mask", 68.0, "0x44"), ("%", None, "–"),
        ("W", math.nan, "–"),
        ("bit mask", math.inf, "–"),
    ],
)  # fmt: skip
def test_values_are_written_with_their_unit_and_unknown_is_no_number(
    unit: str, value: float | None, shown: str
) -> None:
    assert value_text(unit, value) == shown  # type: ignore[arg-type]


def test_reasons_are_told_worst_first_and_strange_bits_as_they_are() -> None:
    assert [r.word for r in reasons(float(0x04 | 0x40 | 0x08))] == [
        "hardware slowdown",
        "too hot (hardware)",
        "power cap",
    ]
    assert [r.word for r in reasons(0x1000.__float__())] == ["reason 0x1000"]
    assert reasons(0.0) == []
    for unknown in (None, math.nan, math.inf, -1.0, 1e308):
        assert reasons(unknown) == []


def test_a_power_cap_is_no_alarm() -> None:
    assert alarms(float(0x04 | 0x01 | 0x10)) == []
    assert [r.bit for r in alarms(float(0x20 | 0x04))] == [0x20]
    order = ["alarm", "warning", "info"]
    assert [order.index(r.level) for r in REASONS] == sorted(order.index(r.level) for r in REASONS)
