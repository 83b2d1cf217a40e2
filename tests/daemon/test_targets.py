"""Targets of a run in the daemon: requests, misses, their events; what outlives a process and a daemon."""

from __future__ import annotations

import itertools
import json
import os
import signal

import pytest

from hoptui.daemon.handlers.targets import TargetDesk
from hoptui.daemon.state.gpu_ownership import Resolved
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo, HostInfo
from hoptui.domain.targets import MOST_TARGETS, SetTargets, Target, TargetsSet, TargetState
from hoptui.model.recorded.point_in_time import Chronicle
from hoptui.protocol.messages import RunState
from tests.conftest import TestNode, until
from tests.daemon.quiet_node import ANA, RUN, SECOND, QuietNode

GPU = GpuInfo(uuid="GPU-a", index=0, name="H100", memory_total_bytes=80 << 30, power_limit_w=700.0)
BUSY = Target(reading="busy", value=90.0)
COOL = Target(reading="temperature_c", value=80.0, side="most")


class Aiming(QuietNode):
    """A run on a GPU whose load a test chooses, and its targets."""

    def __init__(self, *, state: RunState | None = None) -> None:
        super().__init__(state=state)
        self.node.set_hardware(HostInfo(cpus=16), (GPU,), None)
        self.targets = TargetDesk(self.node, self.keeper.keep)

    def begin(self, nonce: str = "n1") -> None:
        self.hello(nonce=nonce)
        self.run.own(Resolved((GPU.uuid,), said=True))

    def aim(self, *targets: Target, **fields: object) -> TargetsSet:
        request = {"id": 1, "run": RUN, "targets": targets} | fields
        return self.targets.receive(SetTargets(**request), ANA)  # type: ignore[arg-type]

    def train(self, seconds: int, load: dict[str, float], **phases: float) -> None:
        """So many iterations of a second, each with a reading of the GPU and a look of the daemon."""
        row = {"iteration_s": 1.0} | {f"phase/{name}": spent for name, spent in phases.items()}
        for _ in range(seconds):
            self.now += SECOND
            self.node.rows((pack(f"gpu/{GPU.uuid}", [(self.now, -1, load)]),))
            self.node.rows((pack(f"run/{RUN}", [(self.now, self.run.last_step + 1, row)]),))
            self.targets.tend()

    @property
    def first(self) -> TargetState:
        return self.run.state.targets[0]

    @property
    def standing(self) -> str:
        return self.first.standing

    @property
    def codes(self) -> list[str]:
        return [event.code for event in self.node.events if event.kind == "target"]


@pytest.fixture
def aiming() -> Aiming:
    found = Aiming()
    found.begin()
    return found


def test_a_miss_is_told_once_and_its_end_too(aiming: Aiming) -> None:
    assert aiming.aim(BUSY).granted
    aiming.train(34, {"busy": 50.0})
    assert aiming.standing == "unknown"
    aiming.train(60, {"busy": 50.0})
    assert (aiming.first.standing, aiming.first.mean, aiming.first.gpu) == ("missed", 50.0, "GPU-a")
    assert aiming.codes == ["target.set", "target.missed"]
    aiming.train(120, {"busy": 99.0})
    assert (aiming.first.standing, aiming.first.mean) == ("met", 99.0)
    assert aiming.codes == ["target.set", "target.missed", "target.met"]
    missed, met = list(aiming.node.events)[-2:]
    assert (missed.level, missed.run, missed.fields["mean"]) == ("warning", RUN, 50.0)
    assert missed.fields["target"]["reading"] == "busy"
    assert missed.fields["seconds"] == pytest.approx(30, abs=1)
    assert met.level == "info"


def test_what_is_met_from_the_start_is_no_event(aiming: Aiming) -> None:
    aiming.aim(BUSY)
    aiming.train(60, {"busy": 95.0})
    assert aiming.standing == "met"
    assert aiming.codes == ["target.set"]


def test_a_target_of_a_run_that_trains_is_judged_at_once(aiming: Aiming) -> None:
    aiming.train(60, {"busy": 50.0})
    answer = aiming.aim(BUSY)
    assert answer.targets[0].standing == "missed"
    assert aiming.codes == ["target.set", "target.missed"]


def test_between_two_changes_there_is_a_whole_judgement(aiming: Aiming) -> None:
    aiming.aim(BUSY)
    for _ in range(60):  # around the target, every five seconds
        aiming.train(5, {"busy": 80.0})
        aiming.train(5, {"busy": 99.0})
    stamps = [event.t for event in aiming.node.events if event.code in ("target.missed", "target.met")]
    assert all(b - a >= 30 * SECOND for a, b in itertools.pairwise(stamps))


@pytest.mark.parametrize("phase", ["evaluation", "checkpoint", "paused"])
def test_evaluations_checkpoints_and_pauses_are_no_misses(aiming: Aiming, phase: str) -> None:
    aiming.aim(BUSY)
    aiming.train(60, {"busy": 95.0})
    aiming.train(300, {"busy": 0.0}, **{phase: 0.9})
    assert aiming.standing == "met"
    assert "target.missed" not in aiming.codes


def test_setup_and_a_pause_between_iterations_are_no_misses(aiming: Aiming) -> None:
    aiming.aim(BUSY)
    for _ in range(200):  # no iteration has ended
        aiming.now += SECOND
        aiming.node.rows((pack(f"gpu/{GPU.uuid}", [(aiming.now, -1, {"busy": 0.0})]),))
        aiming.targets.tend()
    assert aiming.standing == "unknown"
    assert aiming.codes == ["target.set"]


def test_an_unknown_reading_is_no_miss(aiming: Aiming) -> None:
    aiming.aim(BUSY, COOL)
    aiming.train(90, {"temperature_c": 60.0})
    assert [state.standing for state in aiming.run.state.targets] == ["unknown", "met"]
    assert aiming.codes == ["target.set", "target.set"]


def test_a_reading_that_is_lost_meanwhile_keeps_the_miss_told(aiming: Aiming) -> None:
    aiming.aim(BUSY)
    aiming.train(60, {"busy": 50.0})
    aiming.train(60, {"power_w": 100.0})
    assert (aiming.first.standing, aiming.first.told) == ("unknown", True)
    aiming.train(90, {"busy": 99.0})
    assert aiming.codes == ["target.set", "target.missed", "target.met"]


def test_viewers_are_not_told_of_small_moves(aiming: Aiming) -> None:
    aiming.aim(BUSY)
    aiming.train(60, {"busy": 95.0})
    version = aiming.node.version
    aiming.train(60, {"busy": 95.3})
    assert aiming.node.version == version
    aiming.train(60, {"busy": 99.0})
    assert aiming.first.mean == pytest.approx(99.0, abs=1)
    assert aiming.node.version > version


def test_targets_are_replaced_and_removed(aiming: Aiming) -> None:
    aiming.aim(BUSY, COOL)
    aiming.aim(Target(reading="busy", value=80.0))
    assert [state.target.value for state in aiming.run.state.targets] == [80.0, 80.0]
    aiming.aim(remove=("busy",))
    assert [state.target for state in aiming.run.state.targets] == [COOL]
    assert aiming.aim(clear=True).targets == ()
    codes = ["target.set"] * 3 + ["target.removed"] * 2
    assert aiming.codes == codes
    version = aiming.node.version
    assert aiming.aim(clear=True).granted
    assert aiming.node.version == version


def test_refusals(aiming: Aiming) -> None:
    assert aiming.aim(BUSY, run="nobody").code == "target.no_live_run"
    assert aiming.aim(Target(reading="no such", value=1.0)).code == "target.invalid"
    assert aiming.aim(Target(reading="busy", value=float("nan"))).code == "target.invalid"
    assert aiming.aim(remove=("busy",)).code == "target.none"
    many = tuple(Target(reading=f"reading_{i}", value=1.0) for i in range(MOST_TARGETS + 1))
    assert aiming.aim(*many).code == "target.too_many"
    assert aiming.run.state.targets == ()
    aiming.runs.end(aiming.run, "finished", "")
    assert aiming.aim(BUSY).code == "target.no_live_run"


def test_they_go_on_with_the_next_process(aiming: Aiming) -> None:
    aiming.aim(BUSY)
    aiming.train(60, {"busy": 50.0})
    aiming.runs.end(aiming.run, "killed", "")
    aiming.now += 5 * SECOND
    aiming.begin("n2")
    assert (aiming.first.target, aiming.first.standing) == (BUSY, "missed")
    aiming.train(34, {"busy": 99.0})
    assert aiming.standing == "missed"  # the first iterations do not count
    aiming.train(6, {"busy": 99.0})
    assert aiming.standing == "met"
    assert aiming.codes == ["target.set", "target.missed", "target.met"]


def test_they_are_on_disk_at_once_and_the_next_daemon_goes_on(aiming: Aiming) -> None:
    aiming.aim(BUSY)
    assert aiming.keeper.log[-1] == "keep"
    aiming.train(60, {"busy": 50.0})
    assert aiming.keeper.log[-1] == "keep"
    later = Aiming(state=aiming.keeper.states[-1])
    later.now = aiming.now + 20 * SECOND
    later.begin()
    assert (later.first.standing, later.first.told) == ("missed", True)
    later.train(60, {"busy": 50.0})
    assert later.codes == []  # told already
    later.train(90, {"busy": 99.0})
    assert later.codes == ["target.met"]


def test_they_outlive_a_daemon_that_is_killed(node: TestNode) -> None:
    node.start()
    viewer = node.viewer()
    until(lambda: viewer.run().knobs, what="the run")
    done = node.hoptui("target", "toy", "busy=90", "temp<80", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["standing"] for one in json.loads(done.stdout)["targets"]] == ["unknown", "unknown"]
    killed = node.daemon_pid()
    os.kill(killed, signal.SIGKILL)
    until(lambda: node.daemon_pid() not in (0, killed), what="another daemon")
    wanted = [state.target for state in node.viewer("again").run().targets]
    assert wanted == [BUSY, COOL]


def test_a_replay_shows_them_as_they_were(aiming: Aiming) -> None:
    aiming.aim(BUSY, COOL)
    aiming.train(60, {"busy": 50.0, "temperature_c": 60.0})
    t_missed = aiming.now
    aiming.aim(remove=("temperature_c",))
    aiming.train(90, {"busy": 99.0})
    end = aiming.now
    past = Chronicle(aiming.run.state, aiming.node.events, (), end)
    assert past.run_at(100 * SECOND - 1).targets == ()
    then = past.run_at(t_missed - 1).targets
    assert [(state.target, state.standing) for state in then] == [(BUSY, "missed"), (COOL, "unknown")]
    assert then[0].mean == 50.0
    assert [state.standing for state in past.run_at(end).targets] == ["met"]
