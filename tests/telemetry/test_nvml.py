"""The GPUs of a node: found, missing, lost and found again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pynvml
import pytest

from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import Fact, fact
from hoptui.node.driver_probe import DRIVER, IDLE
from hoptui.telemetry.gpu_slot import NOT_LISTED
from hoptui.telemetry.gpu_specs import peaks_of
from hoptui.telemetry.nvml import NO_GPU, NOT_ASKED, Gpus
from hoptui.telemetry.nvml_errors import NOT_SUPPORTED
from tests.telemetry.fake_nvml import LIMITS, FakeNvml

if TYPE_CHECKING:
    from tests.telemetry.conftest import FakeClock


@pytest.fixture
def gpus(nvml: FakeNvml, clock: FakeClock, reports: list[str]) -> Gpus:
    return Gpus(nvml, clock, reports.append)


FELL_OFF_BUS = fact("gpu.fell_off_bus", nvml=15, error="GPU is lost")


def sources(gpus: Gpus) -> list[str]:
    return [part.source for part in gpus.read()]


def test_nothing_is_asked_of_the_driver_before_the_first_reading(gpus: Gpus, nvml: FakeNvml) -> None:
    assert (gpus.problem, gpus.infos()) == (NOT_ASKED, ())
    assert not nvml.calls


def test_each_gpu_has_a_row_and_its_facts(gpus: Gpus, clock: FakeClock) -> None:
    parts = gpus.read()
    assert [part.source for part in parts] == ["gpu/GPU-0", "gpu/GPU-1"]
    assert parts[0].times()[0] == clock.now
    assert parts[1].last()["power_w"] == pytest.approx(690.25)
    assert gpus.problem is None
    assert gpus.infos()[1] == GpuInfo(
        uuid="GPU-1",
        index=1,
        name="NVIDIA H100 80GB HBM3",
        memory_total_bytes=80 << 30,
        power_limit_w=700.0,
        sm_clock_max_mhz=1980,
        driver="580.159.04",
        architecture="Hopper",
        memory_bandwidth_bytes_per_s=3.35e12,
        peak_flops=dict(peaks_of("H100 80GB HBM3").flops),  # type: ignore[union-attr]
        peak_clock_mhz=1829,
        peaks_source="NVIDIA H100 Tensor Core GPU datasheet, SXM",
        pcie_generation=5,
        pcie_width=16,
        nvlinks=18,
        limits=LIMITS,
    )


def test_facts_that_cannot_be_had_are_none_and_not_zero(nvml: FakeNvml, clock: FakeClock) -> None:
    for function in (
        "Name",
        "Architecture",
        "MaxClockInfo",
        "EnforcedPowerLimit",
        "MemoryInfo",
        "MaxPcieLinkGeneration",
        "MaxPcieLinkWidth",
        "FieldValues",
        "PowerManagementDefaultLimit",
        "PowerManagementLimitConstraints",
        "TemperatureThreshold",
    ):
        nvml.fail(f"nvmlDeviceGet{function}", pynvml.NVML_ERROR_NOT_SUPPORTED)
    nvml.fail("nvmlSystemGetDriverVersion", pynvml.NVML_ERROR_UNKNOWN)
    gpus = Gpus(nvml, clock, print)
    gpus.read()
    gone = ("nvlink", "memory_used_bytes", "memory_total_bytes", "power_average_w", "memory_temperature_c")
    missing = dict.fromkeys(gone, NOT_SUPPORTED)
    assert gpus.infos()[0] == GpuInfo(uuid="GPU-0", index=0, name="GPU 0", missing_because=missing)


def test_a_gpu_lost_mid_run_keeps_its_place_and_the_others_go_on(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    gpus.read()
    nvml.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=0, after=2)
    seen = []
    for _ in range(5):
        clock.advance(1)
        seen.append(sources(gpus))
    assert seen == [["gpu/GPU-0", "gpu/GPU-1"]] * 2 + [["gpu/GPU-1"]] * 3
    lost, other = gpus.infos()
    assert lost.problem == FELL_OFF_BUS
    assert (lost.uuid, lost.name, lost.power_limit_w) == ("GPU-0", "NVIDIA H100 80GB HBM3", 700.0)
    assert (other.problem, gpus.problem) == (None, None)


def test_a_lost_gpu_is_tried_again_every_thirty_seconds_and_comes_back(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    gpus.read()
    nvml.fail("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=1)
    gpus.read()
    calls = nvml.calls["nvmlDeviceGetHandleByIndex"]
    for _ in range(29):
        clock.advance(1)
        gpus.read()
    assert nvml.calls["nvmlDeviceGetHandleByIndex"] == calls
    clock.advance(1)
    assert sources(gpus) == ["gpu/GPU-0"]  # tried, still lost
    assert gpus.infos()[1].problem == FELL_OFF_BUS
    nvml.heal()
    clock.advance(30)
    assert sources(gpus) == ["gpu/GPU-0", "gpu/GPU-1"]
    assert gpus.infos()[1].problem is None


@pytest.mark.parametrize(
    ("function", "code", "problem"),
    [
        ("nvmlDeviceGetHandleByIndex", 15, FELL_OFF_BUS),
        ("nvmlDeviceGetHandleByIndex", 4, fact("gpu.not_opened", nvml=4, error="Insufficient Permissions")),
        ("nvmlDeviceGetUUID", 999, fact("gpu.not_opened", nvml=999, error="Unknown Error")),
    ],
)
def test_a_gpu_that_never_could_be_opened_has_a_place_too(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock, function: str, code: int, problem: Fact
) -> None:
    nvml.fail(function, code, gpu=0)
    assert sources(gpus) == ["gpu/GPU-1"]
    assert gpus.infos()[0] == GpuInfo(
        uuid="unknown-0", index=0, name="GPU 0", driver="580.159.04", problem=problem
    )
    nvml.heal()
    clock.advance(30)
    assert sources(gpus) == ["gpu/GPU-0", "gpu/GPU-1"]
    assert gpus.infos()[0].uuid == "GPU-0"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "driver.not_found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "driver.not_loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "driver.mismatched"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "driver.no_access"),
        (pynvml.NVML_ERROR_UNKNOWN, "driver.broken"),
    ],
)
def test_a_driver_that_does_not_start_is_named_and_tried_every_thirty_seconds(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock, code: int, problem: str
) -> None:
    nvml.fail("nvmlInit", code)
    assert sources(gpus) == []
    assert gpus.problem == fact(problem, nvml=code, error=str(pynvml.NVMLError(code)))
    clock.advance(29.9)
    gpus.read()
    assert nvml.calls["nvmlInit"] == 1
    nvml.heal()
    clock.advance(0.1)
    assert sources(gpus) == ["gpu/GPU-0", "gpu/GPU-1"]
    assert gpus.problem is None


def test_a_driver_without_gpus_says_so_and_finds_one_later(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    nvml.gpus = []
    assert sources(gpus) == []
    assert gpus.problem == NO_GPU
    nvml.gpus = ["GPU-0"]
    clock.advance(30)
    assert sources(gpus) == ["gpu/GPU-0"]
    assert nvml.calls["nvmlShutdown"] == 2  # the list of GPUs is made by nvmlInit


def test_a_driver_that_goes_away_mid_run_leaves_the_gpus_with_the_reason(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    gpus.read()
    nvml.fail("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    clock.advance(1)
    assert sources(gpus) == []
    problem = fact("driver.not_loaded", nvml=pynvml.NVML_ERROR_DRIVER_NOT_LOADED, error="Driver Not Loaded")
    assert gpus.problem == problem
    assert [(info.uuid, info.problem) for info in gpus.infos()] == [("GPU-0", problem), ("GPU-1", problem)]
    nvml.heal()
    clock.advance(30)
    assert sources(gpus) == ["gpu/GPU-0", "gpu/GPU-1"]
    assert [info.problem for info in gpus.infos()] == [None, None]


def test_a_gpu_missing_after_the_driver_came_back_keeps_its_place_and_says_so(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    gpus.read()
    nvml.fail("nvmlDeviceGetClockInfo", pynvml.NVML_ERROR_UNINITIALIZED, times=1)
    gpus.read()
    nvml.gpus = ["GPU-1"]  # now at index 0
    clock.advance(30)
    assert sources(gpus) == ["gpu/GPU-1"]
    gone, other = sorted(gpus.infos(), key=lambda info: info.uuid)
    assert (gone.uuid, gone.name, gone.problem) == ("GPU-0", "NVIDIA H100 80GB HBM3", NOT_LISTED)
    assert (other.uuid, other.index, other.problem) == ("GPU-1", 0, None)


def test_after_a_new_start_of_the_driver_a_gpu_that_cannot_be_opened_is_the_one_at_its_index(
    gpus: Gpus, nvml: FakeNvml, clock: FakeClock
) -> None:
    gpus.read()
    nvml.fail("nvmlDeviceGetClockInfo", pynvml.NVML_ERROR_UNINITIALIZED, times=1)
    gpus.read()
    nvml.fail("nvmlDeviceGetHandleByIndex", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=1)
    clock.advance(30)
    assert sources(gpus) == ["gpu/GPU-0"]
    assert [(i.uuid, i.problem) for i in gpus.infos()] == [("GPU-0", None), ("GPU-1", FELL_OFF_BUS)]


def test_a_gpu_to_be_left_alone_is_not_touched(nvml: FakeNvml, clock: FakeClock) -> None:
    nvml.fail("nvmlDeviceGetHandleByIndex", pynvml.NVML_ERROR_UNKNOWN, gpu=0)
    gpus = Gpus(nvml, clock, print, leave=frozenset((0,)))
    assert sources(gpus) == ["gpu/GPU-1"]
    assert [info.index for info in gpus.infos()] == [1]
    assert nvml.reads["nvmlDeviceGetHandleByIndex", 0] == 0


def test_the_probe_names_whom_the_driver_is_asked_about(nvml: FakeNvml, clock: FakeClock) -> None:
    probes = [IDLE]
    seen: dict[str, set[int]] = {}
    nvml.before = lambda function: seen.setdefault(function, set()).add(probes[-1])
    gpus = Gpus(nvml, clock, print, probes.append)
    gpus.read()
    assert probes[-1] == IDLE
    clock.advance(1)
    gpus.read()
    gpus.aside(clock() + 1)
    assert probes[-1] == IDLE
    assert seen["nvmlInit"] == seen["nvmlDeviceGetCount"] == seen["nvmlEventSetWait_v2"] == {DRIVER}
    for function in ("HandleByIndex", "UtilizationRates", "TotalEnergyConsumption", "FieldValues"):
        assert seen[f"nvmlDeviceGet{function}"] == {0, 1}, function
    assert seen["nvmlGpmSampleGet"] == {0, 1}


EVERYTHING = sorted(
    name
    for name in (*dir(FakeNvml), "nvmlDeviceGetFieldValues", "nvmlGpmSampleGet", "nvmlGpmMetricsGet")
    if name.startswith(("nvmlDevice", "nvmlGpm", "nvmlEvent"))
    and name not in ("nvmlDeviceGetCount", "nvmlDeviceGetMigDeviceHandleByIndex")
)


@pytest.mark.parametrize("function", EVERYTHING)
def test_whatever_fails_on_one_gpu_the_other_goes_on(
    function: str, nvml: FakeNvml, clock: FakeClock, reports: list[str]
) -> None:
    """Each call, each kind of error: at the start and again later, then healed."""
    for code in (3, 4, 10, 15, 28, 999):
        gpus = Gpus(nvml, clock, reports.append)
        nvml.fail(function, code, gpu=0)
        for _ in range(3):
            clock.advance(1)
            assert "gpu/GPU-1" in sources(gpus)
            gpus.aside(clock() + 1)
        nvml.heal()
        clock.advance(301)
        gpus.read()
        clock.advance(1)
        row = next(part.last() for part in gpus.read() if part.source == "gpu/GPU-0")
        assert {"busy", "power_w", "throttle", "sm_active"} <= row.keys(), (function, code)
        clock.advance(1)
        gpus.aside(clock() + 1)
        assert [info.problem for info in gpus.infos()] == [None, None]
