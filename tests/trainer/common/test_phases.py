from __future__ import annotations

import time

import pytest
import torch

import hoptui
from hoptui_trainer.common import phases
from hoptui_trainer.common.phases import CudaClock, HostClock, phase_clock
from tests.run_state import run_state


class FakeRun:
    """Keeps what is reported to it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []
        self.ended: list[float | None] = []

    def phase_seconds(self, path: str, seconds: float, *, ended: float | None) -> None:
        self.told.append((path, seconds))
        self.ended.append(ended)


class FakeEvent:
    """An event on a GPU that needs a second for whatever lies between two events."""

    made = 0
    recorded = 0
    passed = False

    def __init__(self, device: str, *, enable_timing: bool) -> None:
        assert (device, enable_timing) == ("cuda", True)
        FakeEvent.made += 1
        self.waited = False

    def record(self) -> None:
        FakeEvent.recorded += 1
        self.at = FakeEvent.recorded

    def query(self) -> bool:
        return FakeEvent.passed

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1000.0 * (end.at - self.at)


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeEvent.made = FakeEvent.recorded = 0
    FakeEvent.passed = False
    monkeypatch.setattr(torch, "Event", FakeEvent)


@pytest.mark.usefixtures("fake_gpu")
def test_gpu_phases_nest_and_are_told_one_iteration_late() -> None:
    run = FakeRun()
    clock = CudaClock(run)  # type: ignore[arg-type]
    for iteration in range(3):
        with clock.queued("rollout"):
            for _ in range(2):
                with clock.queued("env"):
                    pass
        assert len(run.told) == 3 * max(0, iteration - 1)
        clock.end_iteration()
    assert run.told[:3] == [("rollout/env", 1.0), ("rollout/env", 1.0), ("rollout", 5.0)]
    assert len(run.told) == 6


@pytest.mark.usefixtures("fake_gpu")
def test_gpu_events_are_used_again() -> None:
    clock = CudaClock(FakeRun())  # type: ignore[arg-type]
    for _ in range(50):
        with clock.queued("update"):
            pass
        clock.end_iteration()
    assert FakeEvent.recorded == 100
    assert FakeEvent.made == 5  # one of them is the anchor


@pytest.mark.usefixtures("fake_gpu")
def test_the_host_waits_for_the_iteration_before_and_not_for_this_one() -> None:
    clock = CudaClock(FakeRun())  # type: ignore[arg-type]
    ends = []
    for _ in range(2):
        with clock.queued("update"):
            pass
        ends.append(clock._spans[-1][2])
        clock.end_iteration()
    assert [end.waited for end in ends] == [True, False]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize("passed", [False, True])
def test_phases_are_placed_on_the_hosts_clock(monkeypatch: pytest.MonkeyPatch, passed: bool) -> None:
    """By the event that the host has waited for; without one, by a mark of its own, and that seldom."""
    FakeEvent.passed = passed
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run = FakeRun()
    clock = CudaClock(run)  # type: ignore[arg-type]
    for _ in range(4):
        with clock.queued("update"), clock.queued("forward"):
            pass
        clock.end_iteration()
    assert [path for path, _ in run.told] == ["update/forward", "update"] * 3
    if not passed:  # the anchor is the end of `update`, one second after that of `forward`
        assert run.ended == [999.0, 1000.0] * 3
        return
    # one mark after the eight events of two iterations: the first `update` ended five events before it
    assert run.ended[:2] == [994.0, 995.0]
    assert FakeEvent.recorded == 4 * 4 + 1
    now[0] += phases.ANCHORED_S + 1
    clock.end_iteration()
    assert FakeEvent.recorded == 4 * 4 + 2


@pytest.mark.usefixtures("fake_gpu")
def test_short_phases_are_not_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "LEAST_S", 2.0)
    run = FakeRun()
    clock = CudaClock(run)  # type: ignore[arg-type]
    for _ in range(2):
        with clock.queued("update"), clock.queued("forward"):
            pass
        clock.end_iteration()
    assert run.ended[0] is None
    assert run.ended[1] is not None


def test_on_a_cpu_the_phases_are_the_runs_own() -> None:
    run = hoptui.connect("test")
    clock = phase_clock(run, torch.device("cpu"))
    assert isinstance(clock, HostClock)
    with clock.queued("rollout"):
        with clock.queued("env"):
            began = time.monotonic()
            while time.monotonic() - began < 0.002:
                pass
        assert run_state(run).phases.current == "rollout"
    with clock.waited("checkpoint"):
        pass
    clock.end_iteration()
    spent = run_state(run).phases.take()
    assert spent.keys() == {"rollout", "rollout/env", "checkpoint"}
    assert spent["rollout"] >= spent["rollout/env"] >= 0.002


def test_on_a_gpu_the_clock_is_one_of_events() -> None:
    assert isinstance(phases.phase_clock(hoptui.connect("test"), torch.device("cuda")), CudaClock)
