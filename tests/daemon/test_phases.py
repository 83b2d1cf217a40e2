"""GPU readings by phase in the daemon: whose GPUs, since when, and from a training script to the command
line."""

from __future__ import annotations

import json
import sys

import pytest

from hoptui.daemon.phases import PhaseJoin
from hoptui.daemon.state.gpu_ownership import Claim, Resolved
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo, HostInfo
from hoptui.domain.phases import PhaseReadings, PhaseSpan
from hoptui.protocol import messages
from hoptui.protocol.messages import Pulse
from tests.conftest import until
from tests.daemon.conftest import GpuNode
from tests.daemon.quiet_node import RUN, SECOND, QuietNode

GPUS = tuple(GpuInfo(uuid=f"GPU-{letter}", index=i, name="H100") for i, letter in enumerate("ab"))
LOADS = {"GPU-a": 80.0, "GPU-b": 40.0}


class Phased(QuietNode):
    """A run on two GPUs whose pulses report phases of twenty seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.node.set_hardware(HostInfo(cpus=16), GPUS, None)
        self.join = PhaseJoin(self.node)

    def train(self, seconds: int, path: str = "update", identity: bytes = b"n1") -> None:
        start = self.now
        for _ in range(seconds):
            self.now += SECOND
            for uuid, sm in LOADS.items():
                values = {"sm_active": sm, "window_s": 1.0}
                self.node.rows((pack(f"gpu/{uuid}", [(self.now, -1, values)]),))
        span = PhaseSpan(path=path, start=start, end=self.now)
        self.runs.receive(identity, None, Pulse(step=self.run.last_step, t=self.now, spans=(span,)))
        self.join.tend()

    @property
    def known(self) -> dict[str, PhaseReadings]:
        return {one.phase: one for one in self.run.vital(self.now / SECOND).phases}


@pytest.fixture
def phased() -> Phased:
    found = Phased()
    found.hello()
    found.run.own(Resolved(("GPU-a", "GPU-b"), said=True))
    return found


def test_readings_of_a_phase_are_those_of_the_runs_gpus(phased: Phased) -> None:
    phased.train(20)
    found = phased.known["update"]
    assert found.readings == {"sm_active": 60.0}
    assert 30 <= found.samples <= 38


def test_of_several_ranks_only_the_first_ones_gpu_counts(phased: Phased) -> None:
    hello = messages.RunHello(
        protocol=messages.PROTOCOL, run=RUN, name="lm", epoch=1, nonce="n2", pid=1, started=0, world=2
    )
    phased.runs.end(phased.run, "killed", "")
    phased.runs.receive(b"n2", None, hello)
    phased.run.own(Resolved(("GPU-a", "GPU-b"), said=True))
    phased.train(20, identity=b"n2")
    assert phased.known == {}  # which GPU is whose is not known
    phased.run.claim = Claim(declared=("GPU-b",))
    phased.train(20, identity=b"n2")
    assert phased.known["update"].readings == {"sm_active": 40.0}


def test_a_change_of_a_knob_begins_anew(phased: Phased) -> None:
    phased.train(20)
    phased.person("micro_batch", 64, effective=64, version=2)
    assert phased.known == {}
    phased.train(20)
    assert phased.known["update"].samples <= 38


def test_another_process_begins_anew(phased: Phased) -> None:
    phased.train(20)
    phased.runs.end(phased.run, "killed", "")
    phased.hello(nonce="n2")
    assert phased.known == {}


def test_a_fault_costs_only_the_phases(phased: Phased, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phased.run.phases, "join", lambda *_: 1 / 0)
    phased.train(20)
    assert phased.known == {}
    assert phased.run.vital(phased.now / SECOND).state == "live"


TRAINS = """
import time, hoptui
run = hoptui.connect("small")
run.gpus(["GPU-a"])
for i in run.iterations():
    with run.phase("rollout"):
        time.sleep(0.03)
    with run.phase("update"):
        time.sleep(0.5)
"""


def test_from_a_training_script_to_the_command_line(gpu_node: GpuNode) -> None:
    gpu_node.plan(row={"window_s": 0.1})
    viewer = gpu_node.start()
    gpu_node.node.spawn([sys.executable, "-c", TRAINS])

    def known() -> bool:
        runs = gpu_node.state().runs
        return bool(runs and viewer.vital(runs[0].run).phases)

    until(known, what="samples within the phase")
    told = json.loads(gpu_node.node.hoptui("status", "small", "--json").stdout)
    assert told["gpu_by_phase"].keys() == {"update"}  # the other one is too short
    assert told["gpu_by_phase"]["update"]["sm_active"] == 50.0
    assert told["gpu_by_phase"]["update"]["samples"] >= 5
