"""When a tick is due and what it sends, with a clock that the test moves."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hoptui.domain.devices import (
    CORES,
    Devices,
    FromSampler,
    Happened,
    HostInfo,
    RunProcesses,
    Sample,
    Tenants,
    Watch,
)
from hoptui.telemetry.host import HostReader, Processes
from hoptui.telemetry.nvml import NOT_ASKED, Gpus
from hoptui.telemetry.sampler import GpuSampler, HostSampler, TickSchedule

if TYPE_CHECKING:
    from tests.telemetry.conftest import FakeClock
    from tests.telemetry.fake_nvml import FakeNvml

SECOND = 1_000_000_000


@pytest.fixture
def sampler(clock: FakeClock, nvml: FakeNvml, reports: list[str]) -> GpuSampler:
    return GpuSampler(Gpus(nvml, clock, reports.append), clock)


@pytest.fixture
def host(clock: FakeClock, reports: list[str]) -> HostSampler:
    return HostSampler(HostReader(reports.append), Processes(clock), clock)


@pytest.fixture
def pace(clock: FakeClock) -> TickSchedule:
    return TickSchedule(clock, 10)


def names(message: FromSampler) -> list[str]:
    assert isinstance(message, Sample)
    sources = [part.source for part in message.parts]
    return [source for source in sources if source != CORES]  # those need a hundredth of a second


def test_the_host_is_told_first_and_then_read(host: HostSampler, clock: FakeClock) -> None:
    first, second = host.start()
    assert isinstance(first, HostInfo)
    assert (first.cpus, first.memory_total_bytes > 0) == (os.cpu_count(), True)
    assert names(second) == ["host"]
    host.watch(Watch(hz=1, pids={"ppo": os.getpid()}))
    clock.advance(1)
    sample, tree = host.tick()
    assert names(sample) == ["host", "process/ppo"]
    assert isinstance(tree, RunProcesses)
    assert tree.processes[0].pid == os.getpid()
    assert isinstance(sample, Sample)
    assert {part.times()[0] for part in sample.parts} == {clock.now}
    assert {part.steps()[0] for part in sample.parts} == {-1}


def test_the_host_is_read_twice_a_second_at_most(host: HostSampler) -> None:
    list(host.start())
    host.watch(Watch(hz=10))
    assert host.due == 1000 * SECOND + SECOND // 2


def test_it_speaks_before_the_driver_is_asked(sampler: GpuSampler, nvml: FakeNvml) -> None:
    messages = sampler.start()
    first = next(messages)
    assert isinstance(first, Devices)
    assert (first.problem, first.gpus) == (NOT_ASKED, ())
    assert not nvml.calls
    devices, sample, *_ = messages
    assert isinstance(devices, Devices)
    assert [gpu.uuid for gpu in devices.gpus] == ["GPU-0", "GPU-1"]
    assert names(sample) == ["gpu/GPU-0", "gpu/GPU-1"]


def test_a_node_without_a_driver_is_heard_of_at_every_tick(
    sampler: GpuSampler, clock: FakeClock, nvml: FakeNvml
) -> None:
    nvml.fail("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    list(sampler.start())
    for _ in range(3):
        clock.advance(1)
        assert list(sampler.tick()) == [Sample(parts=())]  # the watchdog's sign of life


def test_no_slow_call_is_made_before_the_rows_are_out(
    sampler: GpuSampler, clock: FakeClock, nvml: FakeNvml
) -> None:
    list(sampler.start())
    slow = ("TotalEnergyConsumption", "ProcessUtilization", "ComputeRunningProcesses_v3", "MaxClockInfo")
    for _ in range(100):
        clock.advance(0.1)
        before = nvml.calls.copy()
        for message in sampler.tick():
            if isinstance(message, Sample):
                break
        made = {name.removeprefix("nvmlDeviceGet") for name in nvml.calls - before}
        assert not made & {*slow, "RemappedRows", "MigMode", "NvLinkErrorCounter"}
    assert nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] > 0


@pytest.mark.parametrize(("hz", "rows", "most"), [(1, 1, 1), (2, 1, 2), (5, 1, 5), (8, 2, 4), (10, 2, 5)])
def test_rows_of_fast_ticks_travel_together_and_none_is_left_behind(
    sampler: GpuSampler, clock: FakeClock, hz: float, rows: int, most: int
) -> None:
    list(sampler.start())
    sampler.watch(Watch(hz=hz))
    clock.now = sampler.due  # from here on at this rate
    list(sampler.tick())
    ticks: list[int] = []
    sent: list[list[int]] = []
    for i in range(8 * int(hz)):
        clock.now = sampler.due + i % 3 * 1_000_000  # woken a little late now and then
        ticks.append(clock.now)
        for message in sampler.tick():
            if isinstance(message, Sample):
                times = [part.times()[0] for part in message.parts if part.source == "gpu/GPU-0"]
                assert len(times) <= rows
                assert clock.now - times[0] <= SECOND // 5
                sent.append(times)
    told = [t for times in sent for t in times]
    assert told == sorted(set(told))
    assert set(told) >= set(ticks[:-1])
    assert len(sent) <= 8 * most + 1


def test_slow_readings_stop_in_time_and_the_next_tick_goes_on_with_them(
    sampler: GpuSampler, clock: FakeClock, nvml: FakeNvml
) -> None:
    list(sampler.start())
    sampler.watch(Watch(hz=10))
    clock.advance(60)  # all are due

    def cost(function: str) -> None:
        if function in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetProcessUtilization"):
            clock.advance(0.009)

    nvml.before = cost
    longest, counted = 0, nvml.calls["nvmlDeviceGetTotalEnergyConsumption"]
    for _ in range(20):
        clock.now = max(clock.now, sampler.due)
        begun = clock.now
        list(sampler.tick())
        longest = max(longest, clock.now - begun)
        assert sampler.due <= begun + SECOND // 5
    assert 9_000_000 <= longest <= 12_500_000 + 9_000_000
    assert nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == counted + 2


def test_devices_are_sent_again_when_one_changes_and_only_then(
    sampler: GpuSampler, clock: FakeClock, nvml: FakeNvml
) -> None:
    list(sampler.start())
    clock.advance(1)
    list(sampler.tick())
    clock.advance(1)
    assert not any(isinstance(message, Devices) for message in sampler.tick())
    nvml.fail("nvmlDeviceGetClockInfo", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=1)
    clock.advance(1)
    devices, tenants, sample, event = sampler.tick()
    assert isinstance(devices, Devices)
    assert [gpu.problem is not None for gpu in devices.gpus] == [False, True]
    assert isinstance(tenants, Tenants)
    assert {process.gpu for process in tenants.processes} == {"GPU-0"}
    assert names(sample) == ["gpu/GPU-0"]
    assert isinstance(event, Happened)
    assert (event.source, event.kind, event.level) == ("gpu/GPU-1", "gpu", "alarm")
    clock.advance(1)
    assert not any(isinstance(message, Devices) for message in sampler.tick())


def test_processes_are_sent_when_they_change_and_only_then(
    sampler: GpuSampler, clock: FakeClock, nvml: FakeNvml
) -> None:
    [tenants] = [message for message in sampler.start() if isinstance(message, Tenants)]
    assert [(p.gpu, p.pid) for p in tenants.processes] == [
        ("GPU-0", 41),
        ("GPU-0", 42),
        ("GPU-1", 41),
        ("GPU-1", 42),
    ]
    clock.advance(1)
    assert not any(isinstance(message, Tenants) for message in list(sampler.tick())[:-1])
    nvml.shares = []
    for _ in range(8):
        clock.advance(1)
        list(sampler.tick())
    clock.advance(1)
    assert not any(isinstance(message, Tenants) for message in sampler.tick())
    nvml.running[0].usedGpuMemory += 1 << 10  # less than a MiB
    clock.advance(1)
    assert not any(isinstance(message, Tenants) for message in sampler.tick())
    nvml.running = []
    clock.advance(1)
    assert list(sampler.tick())[-1] == Tenants(processes=())


def test_ticks_lie_on_the_grid_of_the_clock(pace: TickSchedule, clock: FakeClock) -> None:
    clock.advance(0.25)
    pace.begin()
    pace.end()
    assert pace.due == 1001 * SECOND
    clock.now = pace.due + 3_000_000  # woken 3 ms late, which must not add up
    pace.begin()
    pace.end()
    assert pace.due == 1002 * SECOND


def test_a_start_just_before_the_grid_is_not_followed_by_a_short_window(
    pace: TickSchedule, clock: FakeClock
) -> None:
    clock.advance(0.75)
    pace.begin()
    pace.end()
    assert pace.due == 1002 * SECOND


def test_a_tick_that_takes_too_long_skips_and_does_not_catch_up(pace: TickSchedule, clock: FakeClock) -> None:
    pace.begin()
    pace.end()
    clock.now = pace.due
    pace.begin()
    clock.advance(3.2)  # the driver took its time
    pace.end()
    assert pace.due == 1005 * SECOND
    clock.now = 1005 * SECOND + 700_000_000  # late by itself: another process had the core
    pace.begin()
    pace.end()
    assert pace.due == 1007 * SECOND


def test_the_rate_asked_for_holds_at_once(pace: TickSchedule, clock: FakeClock) -> None:
    pace.begin()
    pace.end()
    assert pace.due == 1001 * SECOND
    clock.advance(0.01)
    pace.set(10)
    assert pace.due == 1000 * SECOND + 100_000_000
    pace.set(0.5)
    assert pace.due == 1002 * SECOND


def test_a_repeated_watch_does_not_put_off_a_due_tick(pace: TickSchedule, clock: FakeClock) -> None:
    pace.begin()
    pace.end()
    due = pace.due
    clock.now = due + 1
    pace.set(1)
    assert pace.due == due


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hz=st.floats(), wait=st.integers(0, 5 * SECOND), late=st.integers(0, 5 * SECOND))
def test_the_next_tick_is_on_the_grid_ahead_and_half_a_period_away(
    pace: TickSchedule, clock: FakeClock, hz: float, wait: int, late: int
) -> None:
    """The pace and its clock go on from example to example: the rule holds whatever came before."""
    pace.set(hz)
    clock.now += wait
    begun = clock.now
    pace.begin()
    clock.now += late
    pace.end()
    period = SECOND if math.isnan(hz) else round(SECOND / min(max(hz, 0.1), 10))
    earliest = max(clock.now, begun + period // 2)
    assert pace.due % period == 0
    assert 0 <= pace.due - earliest < period
