"""A GPU of a live run that does nothing for minutes is an event, once."""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from hoptui.daemon.idle_gpus import IdleGpus
from hoptui.domain.alert_settings import AlertSettings
from hoptui.domain.columns import pack
from hoptui.protocol.messages import Event
from tests.daemon.quiet_node import RUN, SECOND, QuietNode


class Watch:
    """The quiet node with two GPUs, looked at every ten seconds."""

    def __init__(self, quiet: QuietNode) -> None:
        self.quiet = quiet
        quiet.run.state = structs.replace(quiet.run.state, gpus=("a", "b"))
        quiet.node.alerts.settings = AlertSettings(gpu_idle_minutes=1.0)
        self.idle = IdleGpus(quiet.node)
        self.idle.tend()

    def pass_s(self, seconds: int, a: dict[str, float], b: dict[str, float]) -> None:
        for _ in range(seconds // 5):
            self.quiet.now += 5 * SECOND
            for gpu, values in (("a", a), ("b", b)):
                self.quiet.node.rows((pack(f"gpu/{gpu}", [(self.quiet.now, 0, values)]),))
            self.idle.tend()

    @property
    def codes(self) -> list[str]:
        return [event.code for event in self.events]

    @property
    def events(self) -> list[Event]:
        return [event for event in self.quiet.node.events if event.kind == "gpu-idle"]


@pytest.fixture
def watch(quiet: QuietNode) -> Watch:
    return Watch(quiet)


WORKS, IDLE = {"busy": 90.0, "sm_active": 80.0}, {"busy": 1.0, "sm_active": 0.5}


def test_it_is_reported_once_and_so_is_its_end(watch: Watch) -> None:
    watch.pass_s(55, WORKS, IDLE)
    assert watch.codes == []
    watch.pass_s(60, WORKS, IDLE)
    assert watch.codes == ["gpu.idle"]
    assert (watch.events[0].run, watch.events[0].alert) == (RUN, "gpu_idle")
    watch.pass_s(10, WORKS, WORKS)
    assert watch.codes == ["gpu.idle", "gpu.not_idle"]
    watch.pass_s(70, WORKS, IDLE)
    assert watch.codes == ["gpu.idle", "gpu.not_idle", "gpu.idle"]


@pytest.mark.parametrize(
    "values",
    [{"busy": 0.0, "sm_active": 50.0}, {"busy": 50.0}, {"busy": math.nan}, {"power_w": 70.0}],
)
def test_work_and_unknown_readings_are_not_idle(watch: Watch, values: dict[str, float]) -> None:
    watch.pass_s(90, values, values)
    assert watch.codes == []


def test_one_moment_of_work_begins_the_time_anew(watch: Watch) -> None:
    for _ in range(3):
        watch.pass_s(50, IDLE, IDLE)
        watch.pass_s(5, WORKS, WORKS)
    assert watch.codes == []


def test_a_time_without_readings_is_not_idle(watch: Watch) -> None:
    watch.pass_s(30, IDLE, IDLE)
    watch.quiet.now += 60 * SECOND
    watch.pass_s(40, IDLE, IDLE)
    assert watch.codes == []


def test_a_paused_run_is_not_idle(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(watch.quiet.run), "judge", lambda *_: ("paused", None))
    watch.pass_s(120, IDLE, IDLE)
    assert watch.codes == []
