"""AMD's GPUs through a stand-in for amdsmi. No AMD hardware has been seen by these tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hoptui.domain.columns import Columns
from hoptui.domain.devices import Devices, Sample, Tenants
from hoptui.presentation import sentences
from hoptui.presentation.gpu_readings import GPU
from hoptui.telemetry import amd
from hoptui.telemetry.amd import AmdGpus
from hoptui.telemetry.sampler import GpuSampler
from tests.telemetry.fake_amdsmi import BUSY, MIB, NO_DRIVER, NOT_SUPPORTED, FakeAmdSmi

if TYPE_CHECKING:
    from tests.telemetry.conftest import FakeClock


@pytest.fixture
def smi() -> FakeAmdSmi:
    return FakeAmdSmi()


@pytest.fixture
def gpus(smi: FakeAmdSmi, clock: FakeClock) -> AmdGpus:
    return AmdGpus(lambda: smi, clock)


def values(parts: list[Columns]) -> dict[str, dict[str, float]]:
    return {part.source: part.last() for part in parts}


def test_the_readings_have_the_names_and_units_of_nvidias(gpus: AmdGpus) -> None:
    read = values(gpus.read())
    assert set(read) == {"gpu/uuid-0", "gpu/uuid-1"}
    assert read["gpu/uuid-0"] == {
        "busy": 97.0,
        "memory_busy": 41.0,
        "power_w": 612.0,
        "memory_used_bytes": 1024 * MIB,
        "memory_total_bytes": 196_592 * MIB,
        "temperature_c": 41.0,
        "memory_temperature_c": 43.0,
        "sm_clock_mhz": 100.0,
        "memory_clock_mhz": 500.0,
        "energy_j": 31.0,
    }
    assert set(read["gpu/uuid-0"]) - {"memory_total_bytes"} <= set(GPU)
    info = gpus.infos()[1]
    assert (info.uuid, info.index, info.name) == ("uuid-1", 1, "AMD Instinct MI300X")
    assert (info.driver, info.architecture) == ("6.8.5", "gfx942")
    assert (info.memory_total_bytes, info.power_limit_w, info.sm_clock_max_mhz) == (
        196_592 * MIB,
        750.0,
        2100.0,
    )
    assert info.problem is None
    assert {"gpm", "xid", "ecc"} <= info.missing_because.keys()


def test_a_power_limit_in_watts_is_taken_as_it_is(smi: FakeAmdSmi, gpus: AmdGpus) -> None:
    smi.answers["amdsmi_get_power_cap_info"] = {"power_cap": 300}
    gpus.read()
    assert gpus.infos()[0].power_limit_w == 300.0


@pytest.mark.parametrize("nothing", ["N/A", 0xFFFF, 0xFFFF_FFFF, None, True, "41"])
def test_what_a_gpu_does_not_have_is_unknown(smi: FakeAmdSmi, gpus: AmdGpus, nothing: object) -> None:
    smi.answers["amdsmi_get_gpu_activity"] = {"gfx_activity": nothing, "umc_activity": 0}
    smi.answers["amdsmi_get_power_info"] = {"current_socket_power": nothing, "average_socket_power": 98}
    row = values(gpus.read())["gpu/uuid-0"]
    assert "busy" not in row
    assert row["memory_busy"] == 0.0
    assert row["power_w"] == 98.0
    assert gpus.infos()[0].missing_because["busy"].code == "reading.no_value"


def test_a_call_that_fails_rests_and_the_others_go_on(
    smi: FakeAmdSmi, gpus: AmdGpus, clock: FakeClock
) -> None:
    smi.answers["amdsmi_get_gpu_activity"] = BUSY
    smi.answers["amdsmi_get_energy_count"] = NOT_SUPPORTED
    del smi.answers["amdsmi_get_clock_info"]
    row = values(gpus.read())["gpu/uuid-0"]
    assert row.keys() & {"busy", "energy_j", "sm_clock_mhz"} == set()
    assert row["power_w"] == 612.0
    why = gpus.infos()[0].missing_because
    assert sentences.sentence(why["busy"]) == "amdsmi: AMDSMI_STATUS_BUSY - Device busy"
    assert why["energy_j"].code == why["sm_clock_mhz"].code == "reading.not_supported"
    smi.answers["amdsmi_get_gpu_activity"] = {"gfx_activity": 5, "umc_activity": 5}
    clock.advance(0.6)
    assert "busy" not in values(gpus.read())["gpu/uuid-0"], "it rests for a second"
    clock.advance(0.6)
    assert values(gpus.read())["gpu/uuid-0"]["busy"] == 5.0
    assert "busy" not in gpus.infos()[0].missing_because


def test_fast_ticks_ask_twice_a_second(smi: FakeAmdSmi, gpus: AmdGpus, clock: FakeClock) -> None:
    rows = 0
    for _ in range(20):
        rows += bool(gpus.read(100_000_000))
        clock.advance(0.1)
    assert rows == 4


def test_processes_have_their_memory_and_their_owner(
    smi: FakeAmdSmi, gpus: AmdGpus, clock: FakeClock
) -> None:
    smi.answers["amdsmi_get_gpu_process_list"] = lambda handle: (
        [{"name": "python", "pid": os.getpid(), "mem": 9, "memory_usage": {"vram_mem": 3 * MIB + 5}}]
        if handle == 0
        else [{"name": "N/A", "pid": 1 << 30, "memory_usage": {}}]
    )
    gpus.read()
    gpus.aside(clock() + 10**9)
    mine, other = gpus.processes()
    assert (mine.gpu, mine.pid, mine.memory_used_bytes, mine.sm_percent) == (
        "uuid-0",
        os.getpid(),
        3 * MIB,
        None,
    )
    assert (other.memory_used_bytes, other.user, other.command) == (None, "", "")
    smi.answers["amdsmi_get_gpu_process_list"] = NOT_SUPPORTED
    clock.advance(5)
    gpus.aside(clock() + 10**9)
    assert gpus.processes() == ()
    assert "processes" in gpus.infos()[0].missing_because


def fails(error: Exception) -> Callable[[], Any]:
    def load() -> Any:
        raise error

    return load


@pytest.mark.parametrize(
    "error", [OSError("libamd_smi.so: cannot open\nshared object file"), KeyError("ROCM"), ImportError("no")]
)
def test_a_library_that_cannot_be_loaded_is_one_sentence(clock: FakeClock, error: Exception) -> None:
    gpus = AmdGpus(fails(error), clock)
    assert gpus.read() == []
    assert gpus.problem is not None
    text = sentences.sentence(gpus.problem)
    assert text.startswith("no AMD GPU can be read (amdsmi: ")
    assert "\n" not in text


def test_a_driver_that_comes_back_is_found(smi: FakeAmdSmi, gpus: AmdGpus, clock: FakeClock) -> None:
    smi.answers["amdsmi_init"] = NO_DRIVER
    assert gpus.read() == []
    assert gpus.problem is not None
    assert "Driver not loaded" in sentences.sentence(gpus.problem)
    del smi.answers["amdsmi_init"]
    clock.advance(29)
    assert gpus.read() == []
    clock.advance(2)
    assert len(gpus.read()) == 2
    assert gpus.problem is None
    for name in list(smi.answers):
        smi.answers[name] = NO_DRIVER
    clock.advance(1)
    assert gpus.read() == []
    assert gpus.problem is not None
    assert [info.problem for info in gpus.infos()] == [gpus.problem] * 2


def test_no_gpu_is_said(clock: FakeClock) -> None:
    gpus = AmdGpus(lambda: FakeAmdSmi(0), clock)
    assert gpus.read() == []
    assert gpus.problem == amd.NO_GPU


def test_a_gpu_that_is_left_alone_is_not_touched(smi: FakeAmdSmi, clock: FakeClock) -> None:
    touched: list[int] = []
    gpus = AmdGpus(lambda: smi, clock, touched.append, frozenset({0}))
    assert set(values(gpus.read())) == {"gpu/uuid-1"}
    assert 0 not in touched
    assert 1 in touched


def test_the_sampler_sends_what_it_sends_of_nvidias(gpus: AmdGpus, clock: FakeClock) -> None:
    sampler = GpuSampler(gpus, clock)
    first, *later = sampler.start()
    assert isinstance(first, Devices)
    assert first.problem == amd.NOT_ASKED
    assert {type(message) for message in later} <= {Devices, Sample, Tenants}
    (sample,) = [message for message in later if isinstance(message, Sample)]
    assert [part.source for part in sample.parts] == ["gpu/uuid-0", "gpu/uuid-1"]


def test_it_is_chosen_only_where_the_library_is_and_nvidias_driver_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    assert not amd.present(tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "amdsmi.py").write_text("raise OSError('libamd_smi.so')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    assert amd.present(tmp_path)
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    assert not amd.present(tmp_path)
