"""A GPU as it is told: rows with what slow readings found, facts, reasons, MIG instances, events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pynvml
import pytest

from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import Fact, fact
from hoptui.telemetry.gpm import IN_MIG_MODE
from hoptui.telemetry.gpu import NOT_IN_MIG_MODE
from hoptui.telemetry.gpu_slot import one_row
from hoptui.telemetry.nvml import Gpus
from hoptui.telemetry.nvml_errors import NOT_SUPPORTED, REFUSED

if TYPE_CHECKING:
    from tests.telemetry.conftest import FakeClock
    from tests.telemetry.fake_nvml import FakeNvml

XID = pynvml.nvmlEventTypeXidCriticalError
DOUBLE_BIT = pynvml.nvmlEventTypeDoubleBitEccError


@pytest.fixture
def gpus(nvml: FakeNvml, clock: FakeClock, reports: list[str]) -> Gpus:
    nvml.gpus = ["GPU-0"]
    return Gpus(nvml, clock, reports.append)


def second(gpus: Gpus, clock: FakeClock) -> dict[str, dict[str, float]]:
    """A tick and all the slow readings after it; the rows by source."""
    clock.advance(1)
    rows = {part.source: part.last() for part in gpus.read()}
    gpus.aside(clock() + 1)
    return rows


FAILED = fact("reading.failed", nvml=pynvml.NVML_ERROR_UNKNOWN, error="Unknown Error")


def info(gpus: Gpus) -> GpuInfo:
    return gpus.infos()[0]


def test_what_slow_readings_find_is_in_the_next_row_and_only_there(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    slow = {"ecc_corrected", "ecc_uncorrected", "remapped_rows", "pcie_replays", "nvlink_errors"}
    rows = [second(gpus, clock)["gpu/GPU-0"] for _ in range(12)]
    assert [i for i, row in enumerate(rows) if slow <= row.keys()] == [1, 6, 11]
    assert [i for i, row in enumerate(rows) if slow & row.keys()] == [1, 6, 11]
    assert all("processes" in row for row in rows[1:])
    row = rows[1]
    assert (row["ecc_corrected"], row["remapped_rows"], row["pcie_replays"]) == (3, 3, 7)
    assert row["nvlink_errors"] == sum(range(18))
    assert nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == 2
    assert nvml.calls["nvmlEventSetWait_v2"] == 12


SECONDLY = {
    "encoder_busy": 1,
    "decoder_busy": 12,
    "jpeg_busy": 30,
    "ofa_busy": 4,
    "bar1_used_bytes": 5 << 20,
    "temperature_margin_c": 33,
    "power_violation_s": 1.5,
    "thermal_violation_s": 0,
}


def test_what_is_read_each_second_is_in_the_next_row(gpus: Gpus, nvml: FakeNvml, clock: FakeClock) -> None:
    assert not SECONDLY.keys() & second(gpus, clock)["gpu/GPU-0"].keys()
    for _ in range(2):
        row = second(gpus, clock)["gpu/GPU-0"]
        assert {name: row.get(name) for name in SECONDLY} == SECONDLY
    assert row.get("protected_memory_used_bytes") is None, "only every five seconds"
    nvml.held_ns[pynvml.NVML_PERF_POLICY_POWER] += 250_000_000
    for _ in range(2):
        row = second(gpus, clock)["gpu/GPU-0"]
    assert row["power_violation_s"] == 1.75


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("nvmlDeviceGetEncoderUtilization", {"encoder_busy"}),
        ("nvmlDeviceGetDecoderUtilization", {"decoder_busy"}),
        ("nvmlDeviceGetJpgUtilization", {"jpeg_busy"}),
        ("nvmlDeviceGetOfaUtilization", {"ofa_busy"}),
        ("nvmlDeviceGetBAR1MemoryInfo", {"bar1_used_bytes"}),
        ("nvmlDeviceGetMarginTemperature", {"temperature_margin_c"}),
        ("nvmlDeviceGetConfComputeProtectedMemoryUsage", {"protected_memory_used_bytes"}),
    ],
)
def test_what_the_driver_refuses_is_missing_and_never_0(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock, function: str, names: set[str]
) -> None:
    nvml.fail(function, pynvml.NVML_ERROR_NOT_SUPPORTED)
    rows = [second(gpus, clock)["gpu/GPU-0"] for _ in range(6)]
    assert not any(names & row.keys() for row in rows)
    assert info(gpus).missing_because == dict.fromkeys(names, NOT_SUPPORTED)


def test_violation_times_have_a_second_source(gpus: Gpus, nvml: FakeNvml, clock: FakeClock) -> None:
    nvml.fail("nvmlDeviceGetViolationStatus", pynvml.NVML_ERROR_NOT_SUPPORTED)
    for _ in range(2):
        row = second(gpus, clock)["gpu/GPU-0"]
    assert (row["power_violation_s"], row["thermal_violation_s"]) == (8.0, 9.0)
    for field in ("NVML_FI_DEV_PERF_POLICY_POWER", "NVML_FI_DEV_PERF_POLICY_THERMAL"):
        nvml.fail(field, pynvml.NVML_ERROR_NOT_SUPPORTED)
    second(gpus, clock)
    row = second(gpus, clock)["gpu/GPU-0"]
    assert not {"power_violation_s", "thermal_violation_s"} & row.keys()
    assert info(gpus).missing_because == {
        "power_violation_s": NOT_SUPPORTED,
        "thermal_violation_s": NOT_SUPPORTED,
    }


PCIE_READINGS = {"pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"}


def test_pcie_is_counted_by_gpm_alone_where_there_is_gpm(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    rows = [second(gpus, clock)["gpu/GPU-0"] for _ in range(5)]
    assert all(row.keys() >= PCIE_READINGS for row in rows[1:])
    assert nvml.calls["nvmlDeviceGetPcieThroughput"] == 0


def test_without_gpm_pcie_is_counted_apart_from_the_tick(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    nvml.architecture = pynvml.NVML_DEVICE_ARCH_AMPERE
    gpus.read()
    in_tick = nvml.calls["nvmlDeviceGetPcieThroughput"]
    rows = [second(gpus, clock)["gpu/GPU-0"] for _ in range(6)]
    assert in_tick == 0
    assert [row.keys() >= PCIE_READINGS for row in rows] == [False, True, False, True, False, True]
    assert (rows[1]["pcie_rx_bytes_per_s"], rows[1]["pcie_tx_bytes_per_s"]) == (9e6, 250e3)
    nvml.fail("nvmlDeviceGetPcieThroughput", pynvml.NVML_ERROR_NOT_SUPPORTED)
    later = [second(gpus, clock)["gpu/GPU-0"] for _ in range(4)][1:]
    assert not any(PCIE_READINGS & row.keys() for row in later)
    assert info(gpus).missing_because == {
        "gpm": fact("gpm.needs_hopper", architecture="Ampere"),
        **dict.fromkeys(PCIE_READINGS, NOT_SUPPORTED),
    }


def test_a_slow_count_of_pcie_leaves_the_rest_of_the_time_to_the_tick(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    """Eight GPUs at 10 Hz: no tick has two counts of 20 ms beside it, and each GPU is counted."""
    nvml.gpus = [f"GPU-{i}" for i in range(8)]
    nvml.architecture = pynvml.NVML_DEVICE_ARCH_AMPERE

    def slow(function: str) -> None:
        if function == "nvmlDeviceGetPcieThroughput":
            clock.advance(0.02)

    nvml.before = slow
    known: set[str] = set()
    took = []
    for _ in range(60):
        clock.now = (clock.now // 100_000_000 + 1) * 100_000_000
        begun = clock.now
        known |= {part.source for part in gpus.read(100_000_000) if PCIE_READINGS & part.last().keys()}
        assert clock.now == begun, "the tick itself waits for nothing"
        gpus.aside(begun + 12_500_000)
        took.append((clock.now - begun) / 1e9)
    assert max(took) == pytest.approx(0.02)
    assert known == {f"gpu/GPU-{i}" for i in range(8)}


def test_a_nonsense_number_of_nvlinks_does_not_keep_the_sampler(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    nvml.fields["NVML_FI_DEV_NVLINK_LINK_COUNT"] = ("uiVal", 655_000)
    for _ in range(2):
        second(gpus, clock)
    assert nvml.calls["nvmlDeviceGetNvLinkErrorCounter"] == 3 * pynvml.NVML_NVLINK_MAX_LINKS


def test_one_row_is_what_pack_makes_of_it() -> None:
    row = {"busy": 98, "power_w": 690.25}
    assert one_row("gpu/GPU-0", 7, row) == pack("gpu/GPU-0", [(7, -1, row)])
    assert one_row("gpu/GPU-0", 7, {}) == pack("gpu/GPU-0", [(7, -1, {})])


def test_energy_is_the_counter_and_the_power_since(gpus: Gpus, nvml: FakeNvml, clock: FakeClock) -> None:
    assert "energy_j" not in second(gpus, clock)["gpu/GPU-0"]
    assert second(gpus, clock)["gpu/GPU-0"]["energy_j"] == 2000 + 655
    assert second(gpus, clock)["gpu/GPU-0"]["energy_j"] == 2000 + 2 * 655


def test_mfu_is_estimated_where_the_peaks_are_known(gpus: Gpus, nvml: FakeNvml, clock: FakeClock) -> None:
    second(gpus, clock)
    row = second(gpus, clock)["gpu/GPU-0"]
    assert row["mfu_estimated"] == pytest.approx(93.5 * 1755 / 1829 * 0.95, abs=0.01)


def test_an_unknown_gpu_has_no_peaks_and_no_estimate(gpus: Gpus, nvml: FakeNvml, clock: FakeClock) -> None:
    nvml.name = "NVIDIA X1"
    second(gpus, clock)
    assert "mfu_estimated" not in second(gpus, clock)["gpu/GPU-0"]
    assert info(gpus).peak_flops == {}
    assert (info(gpus).peak_clock_mhz, info(gpus).peaks_source) == (None, "")


def test_what_is_missing_has_its_reason_and_the_rest_is_there(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    nvml.architecture = pynvml.NVML_DEVICE_ARCH_AMPERE
    for what in ("NVML_FI_DEV_ECC_SBE_VOL_TOTAL", "NVML_FI_DEV_NVLINK_LINK_COUNT"):
        nvml.fail(what, pynvml.NVML_ERROR_NOT_SUPPORTED)
    nvml.fail("nvmlDeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_NOT_SUPPORTED)
    nvml.fail("nvmlDeviceGetProcessUtilization", pynvml.NVML_ERROR_NO_PERMISSION)
    nvml.fail("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_NO_PERMISSION)
    second(gpus, clock)
    row = second(gpus, clock)["gpu/GPU-0"]
    assert info(gpus).missing_because == {
        "gpm": fact("gpm.needs_hopper", architecture="Ampere"),
        "energy": NOT_SUPPORTED,
        "ecc": NOT_SUPPORTED,
        "xid": fact("reading.failed", nvml=pynvml.NVML_ERROR_NO_PERMISSION, error="Insufficient Permissions"),
        "process_utilization": fact(
            "reading.failed", nvml=pynvml.NVML_ERROR_NO_PERMISSION, error="Insufficient Permissions"
        ),
        "nvlink": NOT_SUPPORTED,
    }
    assert info(gpus).problem is None
    assert {"busy", "power_w", "temperature_c", "throttle"} <= row.keys()
    nvml.heal()
    for _ in range(330):
        second(gpus, clock)
    assert info(gpus).missing_because == {"gpm": fact("gpm.needs_hopper", architecture="Ampere")}


def test_a_single_reading_that_fails_has_its_reason_while_it_does(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    second(gpus, clock)
    told = gpus.changes
    gpus.read()
    assert gpus.changes == told
    nvml.fail("nvmlDeviceGetClockInfo", pynvml.NVML_ERROR_UNKNOWN)
    nvml.fail("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_NOT_SUPPORTED)
    nvml.fields["NVML_FI_DEV_MEMORY_TEMP"] = ("uiVal", 0xFFFF_FFFF)
    clock.advance(1)
    gpus.read()
    assert gpus.changes > told  # a tick alone finds it, and it is told at once
    assert info(gpus).missing_because == {
        "busy": NOT_SUPPORTED,
        "memory_busy": NOT_SUPPORTED,
        "sm_clock_mhz": FAILED,
        "memory_clock_mhz": FAILED,
        "memory_temperature_c": fact("reading.no_value"),
    }
    nvml.heal()
    nvml.fields["NVML_FI_DEV_MEMORY_TEMP"] = ("uiVal", 61)
    for _ in range(301):
        second(gpus, clock)
    assert info(gpus).missing_because == {}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (pynvml.NVML_ERROR_NO_PERMISSION, REFUSED),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, NOT_SUPPORTED),
        (pynvml.NVML_ERROR_UNKNOWN, FAILED),
    ],
)
def test_a_process_list_that_cannot_be_had_is_no_empty_one(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock, code: int, why: Fact
) -> None:
    nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", code)
    for _ in range(2):
        row = second(gpus, clock)["gpu/GPU-0"]
    assert "processes" not in row
    assert info(gpus).missing_because["processes"] == why
    nvml.heal()
    second(gpus, clock)
    assert "processes" not in info(gpus).missing_because
    assert len(gpus.processes()) == 2


@pytest.mark.parametrize("links", [None, 0])
def test_links_that_are_not_there_carry_no_traffic(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock, links: int | None
) -> None:
    nvml.gpm |= {"NVLINK_TOTAL_RX_PER_SEC": 0.0, "NVLINK_TOTAL_TX_PER_SEC": 0.0}
    nvml.fields["NVML_FI_DEV_NVLINK_LINK_COUNT"] = ("uiVal", links or 0)
    if links is None:
        nvml.fail("NVML_FI_DEV_NVLINK_LINK_COUNT", pynvml.NVML_ERROR_NOT_SUPPORTED)
    for _ in range(2):
        row = second(gpus, clock)["gpu/GPU-0"]
    assert "pcie_rx_bytes_per_s" in row
    assert not {"nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s"} & row.keys()


def test_idle_links_that_are_there_carry_zero(gpus: Gpus, clock: FakeClock) -> None:
    for _ in range(2):
        row = second(gpus, clock)["gpu/GPU-0"]
    assert (row["nvlink_rx_bytes_per_s"], row["nvlink_tx_bytes_per_s"]) == (0, 0)


def test_a_late_tick_leaves_out_what_would_average_over_it(gpus: Gpus, clock: FakeClock) -> None:
    second(gpus, clock)
    second(gpus, clock)
    clock.advance(10)
    row = second(gpus, clock)["gpu/GPU-0"]
    assert "busy" in row
    assert not {"sm_active", "energy_j"} & row.keys()
    assert {"sm_active", "energy_j"} <= second(gpus, clock)["gpu/GPU-0"].keys()


def test_xids_and_double_bit_errors_are_told_of_the_gpu_they_happened_to(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    nvml.gpus = ["GPU-0", "GPU-1"]
    second(gpus, clock)
    nvml.throttle = 0
    gpus.happened()
    nvml.events = [(1, XID, 31), (0, DOUBLE_BIT, 0), (1, pynvml.nvmlEventTypeClock, 0)]
    second(gpus, clock)
    assert [(event.source, event.kind) for event in gpus.happened()] == [
        ("gpu/GPU-1", "xid"),
        ("gpu/GPU-0", "ecc"),
    ]
    assert gpus.happened() == []


def test_a_flood_of_events_does_not_keep_the_sampler(gpus: Gpus, nvml: FakeNvml, clock: FakeClock) -> None:
    second(gpus, clock)
    nvml.events = [(0, XID, 13)] * 1000
    second(gpus, clock)
    assert len(nvml.events) == 1000 - 32
    assert [event.kind for event in gpus.happened()] == ["xid"]


def test_an_event_set_that_fails_is_made_anew(gpus: Gpus, nvml: FakeNvml, clock: FakeClock) -> None:
    second(gpus, clock)
    nvml.fail("nvmlEventSetWait_v2", pynvml.NVML_ERROR_UNKNOWN, times=1)
    second(gpus, clock)
    assert info(gpus).missing_because["xid"] == FAILED
    for _ in range(61):
        second(gpus, clock)
    assert "xid" not in info(gpus).missing_because
    nvml.events = [(0, XID, 79)]
    gpus.happened()
    second(gpus, clock)
    assert [event.kind for event in gpus.happened()] == ["xid"]


def test_a_gpu_lost_and_back_is_told(gpus: Gpus, nvml: FakeNvml, clock: FakeClock) -> None:
    second(gpus, clock)
    nvml.fail("nvmlDeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_GPU_IS_LOST)
    for _ in range(11):
        second(gpus, clock)
    assert info(gpus).problem == fact("gpu.fell_off_bus", nvml=15, error="GPU is lost")
    assert gpus.processes() == ()
    nvml.heal()
    for _ in range(30):
        second(gpus, clock)
    assert [(e.kind, e.level) for e in gpus.happened() if e.kind == "gpu"] == [
        ("gpu", "alarm"),
        ("gpu", "info"),
    ]
    assert info(gpus).problem is None


def test_the_processes_of_a_gpu_with_their_memory_and_share(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    for _ in range(3):
        second(gpus, clock)
    shown = [(p.gpu, p.pid, p.memory_used_bytes, p.sm_percent) for p in gpus.processes()]
    assert shown == [("GPU-0", 41, 2 << 30, 73), ("GPU-0", 42, None, None)]
    nvml.shares = []  # NotFound: nothing has run, which is not zero percent of anything
    for _ in range(8):
        second(gpus, clock)
    assert [p.sm_percent for p in gpus.processes()] == [None, None]
    assert "process_utilization" not in info(gpus).missing_because


def test_a_gpu_in_mig_mode_keeps_its_row_and_its_instances_have_theirs(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    nvml.mig = {0: {0: 7, 3: 9}}
    nvml.fail("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_NOT_SUPPORTED)
    for _ in range(2):
        rows = second(gpus, clock)
    whole, first, other = gpus.infos()
    assert list(rows) == ["gpu/GPU-0", "gpu/MIG-GPU-0-0", "gpu/MIG-GPU-0-3"]
    assert {"power_w", "temperature_c", "sm_clock_mhz", "energy_j"} <= rows["gpu/GPU-0"].keys()
    assert not {"busy", "sm_active", "mfu_estimated"} & rows["gpu/GPU-0"].keys()
    assert (whole.parent, whole.missing_because["gpm"]) == ("", IN_MIG_MODE)
    assert whole.missing_because["busy"] == NOT_IN_MIG_MODE
    instance = rows["gpu/MIG-GPU-0-3"]
    assert instance["memory_used_bytes"] == 1 << 30
    assert instance["sm_active"] == 96.35
    assert instance["processes"] == 2
    assert (other.parent, other.index, other.name) == ("GPU-0", 0, "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert other.memory_total_bytes == 10 << 30
    assert other.peak_flops == {}
    assert first.uuid == "MIG-GPU-0-0"
    assert [p.gpu for p in gpus.processes()] == ["MIG-GPU-0-0"] * 2 + ["MIG-GPU-0-3"] * 2


def test_instances_come_and_go(gpus: Gpus, nvml: FakeNvml, clock: FakeClock) -> None:
    second(gpus, clock)
    nvml.mig = {0: {0: 7}}
    for _ in range(11):
        second(gpus, clock)
    assert [i.uuid for i in gpus.infos()] == ["GPU-0", "MIG-GPU-0-0"]
    nvml.mig = {}
    for _ in range(11):
        rows = second(gpus, clock)
    assert [i.uuid for i in gpus.infos()] == ["GPU-0"]
    assert "sm_active" in rows["gpu/GPU-0"]
