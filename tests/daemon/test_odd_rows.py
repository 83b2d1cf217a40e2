"""A run may log anything: what daemon, diagnosis and tuner make of values that nothing can have."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping

import pytest

from hoptui.daemon.diagnosis import Diagnosing
from hoptui.daemon.handlers.samplers import SamplerDesk
from hoptui.daemon.prometheus import families, snapshot
from hoptui.daemon.state.gpu_ownership import Ancestry
from hoptui.domain.columns import pack
from hoptui.domain.devices import Devices, GpuInfo, HostInfo, Sample
from hoptui.protocol.messages import Pulse, Rows
from tests.daemon.quiet_node import RUN, SECOND, QuietNode

ODD = (math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324, -1.0, 0.0, 1e18)
PLAIN = {
    "iteration_s": 1.0,
    "tokens_per_s": 100.0,
    "phase/update": 0.7,
    "phase/rollout": 0.3,
    "loss": 1.0,
    "alloc_retries": 0.0,
}
NAMES = (*PLAIN, "samples_per_s", "env_steps_per_s", "num_alloc_retries", "samples", "tokens")
NAMES += ("phase/evaluation", "phase/checkpoint", "phase/paused", "phase/rollout/env")
GPU = GpuInfo(uuid="GPU-a", index=0, name="H100", memory_total_bytes=80 << 30, peak_flops={"bf16": 1e15})
READING = {
    "power_w": 300.0,
    "sm_active": 50.0,
    "busy": 60.0,
    "memory_used_bytes": 4e9,
    "memory_total_bytes": 8e10,
}


class Whole:
    """A run that is tuned, sampled, diagnosed and told to Prometheus, by what the daemon does it with."""

    def __init__(self) -> None:
        self.quiet = QuietNode(real=True)
        self.quiet.hello()
        self.samplers = SamplerDesk(self.quiet.node, Ancestry())
        self.diagnosing = Diagnosing(self.quiet.node)
        self.samplers.receive(HostInfo(cpus=16))
        self.samplers.receive(Devices(gpus=(GPU,)))
        self.quiet.run.seen.add(GPU.uuid)
        assert self.quiet.tune().granted

    def iteration(self, row: Mapping[str, float]) -> None:
        """An iteration of a second, and what the daemon does meanwhile."""
        there = self.quiet
        there.now += SECOND
        step = there.run.last_step + 1
        there.runs.receive(b"n1", None, Pulse(step=step, t=there.now))
        there.runs.receive(b"n1", None, Rows(parts=(pack(f"run/{RUN}", [(there.now, step, row)]),)))
        reading = READING | {"energy_j": there.now / SECOND * 300.0}
        self.samplers.receive(Sample(parts=(pack(f"gpu/{GPU.uuid}", [(there.now, -1, reading)]),)))
        self.samplers.tend()
        self.diagnosing.tend()
        there.tuners.tend()
        for command in there.commands:
            there.outcome(command)
        there.commands.clear()

    def told(self) -> None:
        """What viewers and Prometheus ask for."""
        assert list(families(snapshot(self.quiet.node)))
        assert self.quiet.node.latest()


@pytest.fixture
def whole(caplog: pytest.LogCaptureFixture) -> Iterator[Whole]:
    yield Whole()
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_nothing_can_have_breaks_nothing(whole: Whole, name: str) -> None:
    for _ in range(20):
        whole.iteration(PLAIN)
    assert whole.quiet.run.state.diagnosis is not None
    assert whole.quiet.node.rings.get(f"derived/{RUN}") is not None
    for value in ODD:
        for _ in range(4):
            whole.iteration(PLAIN | {name: value})
        whole.told()
    for _ in range(30):
        whole.iteration(PLAIN)
    assert whole.quiet.tuner.stand != "off"
    assert whole.quiet.run.iteration_s() == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_nor_do_many_of_them_at_once(whole: Whole, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(150):
        odd = {name: dice.choice(ODD) for name in dice.sample(NAMES, dice.randint(0, 4))}
        whole.iteration(PLAIN | odd)
    whole.told()
    assert whole.quiet.tuner.stand != "off"


def test_a_run_that_logs_nothing_else_has_no_iterations(whole: Whole) -> None:
    for _ in range(40):
        whole.iteration({"iteration_s": math.inf, "tokens_per_s": 100.0})
    whole.told()
    assert whole.quiet.run.iteration_s() is None
