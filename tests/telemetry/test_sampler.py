"""When a tick is due and what it sends, with a clock that the test moves."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hoptui.telemetry.host import Host
from hoptui.telemetry.nvml import NOT_ASKED, Gpus
from hoptui.telemetry.processes import Processes
from hoptui.telemetry.sampler import Sampler
from hoptui.wire.devices import Devices, Sample, Watch

if TYPE_CHECKING:
    from tests.telemetry.conftest import FakeClock, FakeNvml

SECOND = 1_000_000_000


@pytest.fixture
def sampler(clock: FakeClock, nvml: FakeNvml, reports: list[str]) -> Sampler:
    return Sampler(Host(reports.append), Processes(clock), Gpus(nvml, clock, reports.append), clock)


def names(message: Devices | Sample) -> list[str]:
    assert isinstance(message, Sample)
    return [part.source for part in message.parts]


def test_the_host_is_told_before_the_driver_is_asked(sampler: Sampler, nvml: FakeNvml) -> None:
    messages = sampler.start()
    first, second = next(messages), next(messages)
    assert isinstance(first, Devices)
    assert first.reason == NOT_ASKED
    assert first.cpus > 0
    assert names(second) == ["host"]
    assert not nvml.calls
    third, fourth = messages
    assert isinstance(third, Devices)
    assert [gpu.uuid for gpu in third.gpus] == ["GPU-0", "GPU-1"]
    assert names(fourth) == ["gpu/GPU-0", "gpu/GPU-1"]


def test_a_tick_is_one_sample_of_everything(sampler: Sampler, clock: FakeClock) -> None:
    list(sampler.start())
    sampler.watch(Watch(hz=1, pids={"ppo": os.getpid()}))
    clock.advance(1)
    [sample] = sampler.tick()
    assert names(sample) == ["host", "process/ppo", "gpu/GPU-0", "gpu/GPU-1"]
    assert isinstance(sample, Sample)
    assert {part.times()[0] for part in sample.parts} == {clock.now}
    assert {part.steps()[0] for part in sample.parts} == {-1}
    assert all(not math.isnan(value) for part in sample.parts for value in part.last().values())


def test_devices_are_sent_again_when_one_changes_and_only_then(
    sampler: Sampler, clock: FakeClock, nvml: FakeNvml
) -> None:
    list(sampler.start())
    clock.advance(1)
    assert [type(message) for message in sampler.tick()] == [Sample]
    nvml.fail("nvmlDeviceGetClockInfo", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=1)
    clock.advance(1)
    devices, sample = sampler.tick()
    assert isinstance(devices, Devices)
    assert [gpu.reason != "" for gpu in devices.gpus] == [False, True]
    assert names(sample) == ["host", "gpu/GPU-0"]
    clock.advance(1)
    assert [type(message) for message in sampler.tick()] == [Sample]


def test_ticks_lie_on_the_grid_of_the_clock(sampler: Sampler, clock: FakeClock) -> None:
    clock.advance(0.25)
    list(sampler.start())
    assert sampler.due == 1001 * SECOND
    clock.now = sampler.due + 3_000_000  # woken 3 ms late, which must not add up
    list(sampler.tick())
    assert sampler.due == 1002 * SECOND


def test_a_start_just_before_the_grid_is_not_followed_by_a_short_window(
    sampler: Sampler, clock: FakeClock
) -> None:
    clock.advance(0.75)
    list(sampler.start())
    assert sampler.due == 1002 * SECOND


def test_a_tick_that_takes_too_long_skips_and_does_not_catch_up(
    sampler: Sampler, clock: FakeClock, nvml: FakeNvml
) -> None:
    list(sampler.start())
    clock.now = sampler.due
    messages = sampler.tick()
    next(messages)
    clock.advance(3.2)  # the driver took its time
    assert list(messages) == []
    assert sampler.due == 1005 * SECOND
    clock.now = 1005 * SECOND + 700_000_000  # late by itself: another process had the core
    list(sampler.tick())
    assert sampler.due == 1007 * SECOND


def test_the_rate_asked_for_holds_at_once(sampler: Sampler, clock: FakeClock) -> None:
    list(sampler.start())
    assert sampler.due == 1001 * SECOND
    clock.advance(0.01)
    sampler.watch(Watch(hz=10))
    assert sampler.due == 1000 * SECOND + 100_000_000
    sampler.watch(Watch(hz=0.5))
    assert sampler.due == 1002 * SECOND


def test_a_repeated_watch_does_not_put_off_a_due_tick(sampler: Sampler, clock: FakeClock) -> None:
    list(sampler.start())
    due = sampler.due
    clock.now = due + 1
    sampler.watch(Watch(hz=1, pids={"ppo": os.getpid()}))
    assert sampler.due == due


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hz=st.floats(), wait=st.integers(0, 5 * SECOND), late=st.integers(0, 5 * SECOND))
def test_the_next_tick_is_on_the_grid_ahead_and_half_a_period_away(
    sampler: Sampler, clock: FakeClock, hz: float, wait: int, late: int
) -> None:
    """The sampler and its clock go on from example to example: the rule holds whatever came before."""
    sampler.watch(Watch(hz=hz))
    clock.now += wait
    begun = clock.now
    messages = sampler.tick()
    next(messages)
    clock.now += late
    list(messages)
    period = SECOND if math.isnan(hz) else round(SECOND / min(max(hz, 0.1), 10))
    earliest = max(clock.now, begun + period // 2)
    assert sampler.due % period == 0
    assert 0 <= sampler.due - earliest < period
