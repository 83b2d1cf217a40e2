"""GPM's figures: units, windows, NaN, and a driver that starts to refuse."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pynvml
import pytest

from hoptui.domain.facts import fact
from hoptui.telemetry.gpm import METRICS, Gpm, GpmQuery
from hoptui.telemetry.nvml_errors import REFUSED

if TYPE_CHECKING:
    from tests.telemetry.fake_nvml import FakeNvml

SECOND = 1_000_000_000
TICK = SECOND // 10
MIB = 1 << 20


@pytest.fixture
def gpm(nvml: FakeNvml) -> Gpm:
    gpm = Gpm(nvml, nvml.handle(0), GpmQuery(nvml))
    gpm.architecture = "Hopper"
    return gpm


def test_the_first_reading_seeds_and_the_second_has_every_metric_in_its_unit(
    gpm: Gpm, nvml: FakeNvml
) -> None:
    assert gpm.read(0, False) == {}
    row = gpm.read(TICK, False)
    assert row.keys() == METRICS.keys() | {"window_s"}
    assert row["sm_active"] == 96.35
    assert row["pcie_rx_bytes_per_s"] == pytest.approx(2 * MIB, abs=500)
    assert row["pcie_tx_bytes_per_s"] == pytest.approx(MIB, abs=500)
    assert row["window_s"] == 0.1
    assert gpm.problem is None
    assert nvml.calls["nvmlGpmMetricsGet"] == 1  # one for all metrics


def test_two_samples_are_made_once_and_swapped(gpm: Gpm, nvml: FakeNvml) -> None:
    for tick in range(10):
        gpm.read(tick * TICK, False)
    assert nvml.calls["nvmlGpmSampleAlloc"] == 2
    assert (nvml.calls["nvmlGpmSampleGet"], nvml.calls["nvmlGpmMetricsGet"]) == (10, 9)
    gpm.close()
    assert nvml.calls["nvmlGpmSampleFree"] == 2


@pytest.mark.parametrize(("window", "late"), [(SECOND, True), (TICK // 4, False)])
def test_after_a_late_tick_and_a_short_window_it_seeds_anew(gpm: Gpm, window: int, late: bool) -> None:
    gpm.read(0, False)
    assert gpm.read(window, late) == {}
    assert gpm.read(window + 2 * TICK, False)["window_s"] == 0.2


def test_nan_and_a_metric_that_fails_are_left_out(gpm: Gpm, nvml: FakeNvml) -> None:
    nvml.gpm["DRAM_BW_UTIL"] = math.nan
    nvml.fail("NVLINK_TOTAL_RX_PER_SEC", pynvml.NVML_ERROR_NOT_SUPPORTED)
    gpm.read(0, False)
    row = gpm.read(TICK, False)
    assert METRICS.keys() - row.keys() == {"dram_active", "nvlink_rx_bytes_per_s"}
    nvml.gpm["DRAM_BW_UTIL"] = 25.0
    assert gpm.read(2 * TICK, False)["dram_active"] == 25


def test_a_refusal_after_minutes_is_told_and_tried_again_and_passes(gpm: Gpm, nvml: FakeNvml) -> None:
    gpm.read(0, False)
    assert gpm.read(SECOND, False)
    nvml.fail("nvmlGpmSampleGet", pynvml.NVML_ERROR_NO_PERMISSION)
    tried = []
    for second in range(300, 430):
        before = nvml.calls["nvmlGpmSampleGet"]
        assert gpm.read(second * SECOND, False) == {}
        if nvml.calls["nvmlGpmSampleGet"] > before:
            tried.append(second - 300)
    assert tried == [0, 1, 3, 7, 15, 31, 63, 123]
    assert gpm.problem == REFUSED
    nvml.heal()
    assert gpm.read(483 * SECOND, False) == {}  # no difference to a sample of before
    assert gpm.problem == REFUSED
    assert gpm.read(484 * SECOND, False)["window_s"] == 1
    assert gpm.problem is None


@pytest.mark.parametrize("function", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmSampleAlloc"])
def test_an_error_of_any_part_is_told_and_passes(gpm: Gpm, nvml: FakeNvml, function: str) -> None:
    nvml.fail(function, pynvml.NVML_ERROR_UNKNOWN)
    gpm.read(0, False)
    assert gpm.read(SECOND, False) == {}
    assert gpm.problem == fact("gpm.failed", nvml=pynvml.NVML_ERROR_UNKNOWN, error="Unknown Error")
    nvml.heal()
    gpm.read(100 * SECOND, False)
    assert gpm.read(101 * SECOND, False)["sm_active"] == 96.35


def test_before_hopper_it_says_so(nvml: FakeNvml) -> None:
    nvml.architecture = pynvml.NVML_DEVICE_ARCH_AMPERE
    gpm = Gpm(nvml, nvml.handle(0), GpmQuery(nvml))
    gpm.architecture = "Ampere"
    assert gpm.read(0, False) == {}
    assert gpm.problem == fact("gpm.needs_hopper", architecture="Ampere")
    assert nvml.calls["nvmlGpmSampleAlloc"] == 0


def test_a_hopper_gpu_without_counters_is_not_told_to_be_a_newer_one(nvml: FakeNvml, gpm: Gpm) -> None:
    nvml.fail("nvmlGpmSampleGet", pynvml.NVML_ERROR_NOT_SUPPORTED)  # as virtual GPUs may answer
    gpm.read(0, False)
    assert gpm.problem == fact("gpm.failed", nvml=pynvml.NVML_ERROR_NOT_SUPPORTED, error="Not Supported")


def test_an_old_driver_says_so(nvml: FakeNvml, gpm: Gpm) -> None:
    nvml.fail("nvmlGpmQueryDeviceSupport", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    gpm.read(0, False)
    assert gpm.problem == fact("gpm.needs_driver")


def test_a_lost_gpu_is_not_its_affair(nvml: FakeNvml, gpm: Gpm) -> None:
    nvml.fail("nvmlGpmSampleGet", pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(pynvml.NVMLError):
        gpm.read(0, False)


def test_a_mig_instance_is_sampled_by_its_id(nvml: FakeNvml) -> None:
    gpm = Gpm(nvml, nvml.handle(0), GpmQuery(nvml), instance=9)
    gpm.read(0, False)
    assert gpm.read(TICK, False)["sm_active"] == 96.35
    assert (nvml.calls["nvmlGpmMigSampleGet"], nvml.calls["nvmlGpmSampleGet"]) == (2, 0)
