"""Reading a table of one GPU: values and units, cadences, and what becomes of a reading that fails."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from hoptui.domain.facts import fact
from hoptui.telemetry.metrics_table import EACH_SECOND, ENERGY, FACTS, HEALTH, PCIE, ROW, Call, Field, Reading
from hoptui.telemetry.nvml_errors import DRIVER_GONE, LOST, NOT_SUPPORTED, UNSUPPORTED
from hoptui.telemetry.poller import Reader
from tests.golden import Golden
from tests.telemetry.fake_nvml import LIMITS

if TYPE_CHECKING:
    from tests.telemetry.fake_nvml import FakeNvml

SECOND = 1_000_000_000


@pytest.fixture
def gpu(nvml: FakeNvml, reports: list[str]) -> Reader:
    return Reader(nvml, nvml.handle(0), ROW, "GPU 0", reports.append)


@pytest.fixture
def facts(nvml: FakeNvml, reports: list[str]) -> Reader:
    return Reader(nvml, nvml.handle(0), FACTS, "GPU 0", reports.append)


def test_every_value_arrives_in_the_unit_of_its_name(gpu: Reader) -> None:
    row = gpu.read(0)
    assert row == {
        "busy": 98,
        "memory_busy": 51,
        "power_w": pytest.approx(690.25),
        "power_average_w": pytest.approx(655.0),
        "memory_used_bytes": 10 << 30,  # the driver's reserve is not used memory
        "memory_total_bytes": 80 << 30,
        "temperature_c": 54,
        "memory_temperature_c": 61,
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 2619,
        "throttle": 0x4,
    }
    assert gpu.problem is None


def test_the_facts_are_read_once_and_the_power_limit_each_time(facts: Reader, nvml: FakeNvml) -> None:
    assert facts.read(0) == {
        "name": "NVIDIA H100 80GB HBM3",
        "architecture": pynvml.NVML_DEVICE_ARCH_HOPPER,
        "memory_total_bytes": 80 << 30,
        "sm_clock_max_mhz": 1980,
        "pcie_generation": 5,
        "pcie_width": 16,
        "nvlinks": 18,
        "power_limit_w": 700.0,
        **LIMITS,
    }
    nvml.power_limit_mw = 500_000
    assert facts.read(5 * SECOND) == {"power_limit_w": 500.0}
    assert nvml.calls["nvmlDeviceGetMaxClockInfo"] == 1  # 1.4 ms each


def test_a_threshold_of_0_degrees_is_unknown(facts: Reader, nvml: FakeNvml) -> None:
    nvml.thresholds[pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN] = 0
    known = facts.read(0)
    assert "temperature_slowdown_c" not in known
    assert (known["temperature_shutdown_c"], known["margin_max_c"]) == (92, 0)


def test_a_fact_that_could_not_be_had_is_asked_for_again(facts: Reader, nvml: FakeNvml) -> None:
    nvml.fail("nvmlDeviceGetMaxClockInfo", pynvml.NVML_ERROR_TIMEOUT, times=1)
    assert facts.ask(0)["sm_clock_max_mhz"] is None
    assert facts.why_not("sm_clock_max_mhz") == fact(
        "reading.failed", nvml=pynvml.NVML_ERROR_TIMEOUT, error="Timeout"
    )
    assert facts.ask(SECOND)["sm_clock_max_mhz"] == 1980
    assert facts.why_not("sm_clock_max_mhz") is None


def test_readings_of_one_call_share_it(gpu: Reader, nvml: FakeNvml) -> None:
    gpu.read(0)
    assert nvml.calls["nvmlDeviceGetUtilizationRates"] == 1
    assert nvml.calls["nvmlDeviceGetMemoryInfo"] == 1
    assert nvml.calls["nvmlDeviceGetFieldValues"] == 2  # those of every tick, and those of some
    assert nvml.calls["nvmlDeviceGetClockInfo"] == 2  # two clocks are two calls


def test_what_moves_slowly_is_read_twice_a_second_whatever_the_rate(gpu: Reader, nvml: FakeNvml) -> None:
    rows = [gpu.read(tick * SECOND // 10) for tick in range(20)]
    assert nvml.calls["nvmlDeviceGetMemoryInfo"] == 4  # a fifth of a tick's price
    for slow in ("memory_used_bytes", "busy", "memory_busy", "temperature_c", "memory_temperature_c"):
        assert [i for i, row in enumerate(rows) if slow in row] == [0, 5, 10, 15]
    assert set(rows[1]) == {"power_w", "power_average_w", "sm_clock_mhz", "throttle"}
    assert all(row.keys() >= rows[1].keys() for row in rows)


def test_noise_beyond_the_stated_resolution_is_dropped(gpu: Reader, nvml: FakeNvml) -> None:
    nvml.fields["NVML_FI_DEV_POWER_INSTANT"] = ("uiVal", 690_257)
    assert gpu.read(0)["power_w"] == 690.26


def test_power_falls_back_to_the_getter_where_the_field_does_not_exist(gpu: Reader, nvml: FakeNvml) -> None:
    nvml.fail("NVML_FI_DEV_POWER_INSTANT", pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert gpu.read(0)["power_w"] == pytest.approx(71.5)
    assert gpu.read(SECOND)["power_w"] == pytest.approx(71.5)


def test_power_does_not_change_its_meaning_when_the_field_fails_for_a_moment(
    gpu: Reader, nvml: FakeNvml, reports: list[str], golden: Golden
) -> None:
    gpu.read(0)
    nvml.fail("NVML_FI_DEV_POWER_INSTANT", pynvml.NVML_ERROR_UNKNOWN, times=1)
    row = gpu.read(SECOND)
    assert "power_w" not in row
    assert row["power_average_w"] == pytest.approx(655.0)  # its neighbour in the same call
    assert gpu.read(2 * SECOND)["power_w"] == pytest.approx(690.25)
    assert nvml.calls["nvmlDeviceGetPowerUsage"] == 0
    golden("".join(f"{line}\n" for line in reports))


def test_old_drivers_answer_through_the_old_functions(gpu: Reader, nvml: FakeNvml) -> None:
    for function in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"):
        nvml.fail(function, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    row = gpu.read(0)
    assert (row["temperature_c"], row["throttle"]) == (54, 4)


def test_a_library_without_field_values_leaves_the_rest(gpu: Reader, nvml: FakeNvml) -> None:
    del nvml.nvmlLib.nvmlDeviceGetFieldValues
    row = gpu.read(0)
    assert row["power_w"] == pytest.approx(71.5)
    assert not {"power_average_w", "memory_temperature_c"} & row.keys()


def test_a_function_that_pynvml_has_dropped_is_not_supported(nvml: FakeNvml, reports: list[str]) -> None:
    gone = Reading("gone", "", (Call("nvmlDeviceGetNothing"),))
    gpu = Reader(nvml, nvml.handle(0), (gone, *ROW), "GPU 0", reports.append)
    assert gpu.read(0).keys() == {reading.name for reading in ROW}
    assert gpu.why_not("gone") == NOT_SUPPORTED
    assert reports == []


def test_a_reading_that_is_not_supported_is_absent_and_rarely_asked_for(
    gpu: Reader, nvml: FakeNvml, reports: list[str]
) -> None:
    nvml.fail("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_NOT_SUPPORTED)
    for t in range(300):
        row = gpu.read(t * SECOND)
        assert not {"busy", "memory_busy"} & row.keys()
        assert row["temperature_c"] == 54
    assert nvml.calls["nvmlDeviceGetUtilizationRates"] == 1
    nvml.heal()
    assert gpu.read(300 * SECOND)["busy"] == 98
    assert reports == []  # many GPUs lack a reading: no problem to speak of


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_TIMEOUT, 999])
def test_a_reading_that_fails_is_unknown_and_retried_with_back_off(
    gpu: Reader, nvml: FakeNvml, reports: list[str], code: int
) -> None:
    nvml.fail("nvmlDeviceGetClockInfo", code)
    tried: list[int] = []
    for t in range(200):
        before = nvml.calls["nvmlDeviceGetClockInfo"]
        row = gpu.read(t * SECOND)
        assert not {"sm_clock_mhz", "memory_clock_mhz"} & row.keys()
        assert row["busy"] == 98
        if nvml.calls["nvmlDeviceGetClockInfo"] > before:
            tried.append(t)
    assert tried == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert len(reports) == 2  # one line for each of the two clocks, not one for each try
    nvml.heal()
    assert gpu.read(243 * SECOND)["sm_clock_mhz"] == 1755
    nvml.fail("nvmlDeviceGetClockInfo", code, times=2)  # once for each of the two clocks
    assert "sm_clock_mhz" not in gpu.read(244 * SECOND)
    assert gpu.read(245 * SECOND)["sm_clock_mhz"] == 1755  # a new failure starts at a second again


def test_a_gpu_of_which_nothing_can_be_read_says_so_until_something_can(gpu: Reader, nvml: FakeNvml) -> None:
    nvml.fail("nvmlDeviceGetFieldValues", pynvml.NVML_ERROR_TIMEOUT)
    for name in dir(nvml):
        if name.startswith("nvmlDeviceGet"):
            nvml.fail(name, pynvml.NVML_ERROR_TIMEOUT)
    assert gpu.read(SECOND) == {}
    assert gpu.problem == fact("gpu.nothing_readable", nvml=pynvml.NVML_ERROR_TIMEOUT, error="Timeout")
    nvml.heal()
    assert gpu.read(60 * SECOND)["busy"] == 98
    assert gpu.problem is None


@pytest.mark.parametrize("code", sorted(LOST.keys() | DRIVER_GONE))
def test_errors_of_the_whole_gpu_are_raised(gpu: Reader, nvml: FakeNvml, code: int) -> None:
    nvml.fail("NVML_FI_DEV_POWER_INSTANT", code)
    with pytest.raises(pynvml.NVMLError) as caught:
        gpu.read(0)
    assert caught.value.value == code


@pytest.mark.parametrize(
    ("member", "value", "expected"),
    [
        ("dVal", 690_250.0, 690.25),
        ("ullVal", 690_250, 690.25),
        ("siVal", 690_250, 690.25),
        ("dVal", math.nan, None),
        ("uiVal", 0xFFFF_FFFF, None),
        ("ullVal", 0xFFFF_FFFF_FFFF_FFFF, None),
        ("uiVal", 0, 0.0),
    ],
)
def test_a_field_is_read_by_its_type_and_not_available_is_unknown(
    gpu: Reader, nvml: FakeNvml, member: str, value: Any, expected: float | None
) -> None:
    nvml.fields["NVML_FI_DEV_POWER_INSTANT"] = (member, value)
    assert gpu.read(0).get("power_w") == (None if expected is None else pytest.approx(expected))


def test_the_tables_name_what_pynvml_has() -> None:
    for reading in (*ROW, *FACTS, *HEALTH, *EACH_SECOND, *PCIE, *ENERGY):
        for source in reading.sources:
            match source:
                case Field(constant):
                    assert isinstance(getattr(pynvml, constant), int)
                case Call(function, arguments):
                    assert callable(getattr(pynvml, function))
                    assert all(isinstance(getattr(pynvml, argument), int) for argument in arguments)


def test_the_error_codes_are_those_of_nvml() -> None:
    by_name = {
        name: getattr(pynvml, f"NVML_ERROR_{name}")
        for name in ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")
    }
    assert sorted(by_name.values()) == sorted(LOST)
    assert {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    } == DRIVER_GONE
    assert {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    } == UNSUPPORTED


def test_names_end_in_their_unit() -> None:
    endings = {"W": "_w", "°C": "_c", "MHz": "_mhz", "B": "_bytes", "J": "_j", "s": "_s"}
    for reading in (*ROW, *FACTS, *HEALTH, *EACH_SECOND, *PCIE, *ENERGY):
        if reading.unit in endings:
            assert reading.name.endswith(endings[reading.unit])
