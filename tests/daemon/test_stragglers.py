"""A straggler is reported once, and so is its end."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.daemon.rank_devices import rank_device
from hoptui.daemon.stragglers import Stragglers
from hoptui.daemon.tuning import observe
from hoptui.domain.columns import pack as rows
from hoptui.domain.devices import GpuInfo, GpuProcess, HostInfo
from hoptui.domain.facts import fact
from hoptui.domain.stacks import Stack, pack
from hoptui.domain.stragglers import RankDevice
from hoptui.protocol.messages import Pulse, RunHello, Stacks
from tests.daemon.quiet_node import RUN, SECOND, QuietNode
from tests.domain.test_job_stragglers import job
from tests.domain.test_stragglers import DATA, REDUCE, WORK

EVEN: dict[Stack, int] = {WORK: 12, REDUCE: 8}
LATE: dict[Stack, int] = {WORK: 12, DATA: 7, REDUCE: 1}


class Case:
    """A run of four ranks, three of them on this node."""

    def __init__(self, visible: str | None = "{rank}") -> None:
        self.quiet = quiet = QuietNode()
        self.stragglers = Stragglers(quiet.node)
        for rank in range(3):
            hello = RunHello(
                protocol=1,
                run=RUN,
                name="lm",
                epoch=1,
                nonce="n",
                pid=1 + rank,
                started=0,
                step=0,
                rank=rank,
                world=4,
                visible=visible.format(rank=rank) if visible is not None else None,
            )
            quiet.runs.receive(b"%d" % rank, None, hello)

    def pass_time(self, seconds: int, *counts: dict[Stack, int], paused: bool = False) -> None:
        quiet = self.quiet
        for _ in range(seconds // 2):
            quiet.now += 2 * SECOND
            quiet.runs.receive(b"0", None, Pulse(step=5, t=quiet.now, paused=paused))
            for rank, found in enumerate(counts):
                samples = pack(found, quiet.now - 2 * SECOND, quiet.now)
                quiet.runs.receive(b"%d" % rank, None, Stacks(samples=samples))
            self.stragglers.tend()

    @property
    def told(self) -> list[tuple[str, int]]:
        events = self.quiet.node.events
        return [(each.code, each.fields["rank"]) for each in events if each.kind == "straggler"]


def test_a_straggler_and_its_end_are_reported_once() -> None:
    case = Case()
    case.pass_time(60, EVEN, EVEN, EVEN)
    assert case.told == []
    case.pass_time(60, EVEN, LATE, EVEN)
    assert case.told == [("run.straggler", 1)]
    (event,) = [each for each in case.quiet.node.events if each.kind == "straggler"]
    assert event.fields["where"]["line"] == 37
    assert (event.fields["unsampled"], event.fields["elsewhere"]) == ([], 1)
    seen = observe(case.quiet.node, case.quiet.run).straggler
    assert seen is not None
    assert (seen.code, seen.fields["rank"]) == ("run.straggler", 1)
    case.pass_time(90, EVEN, EVEN, EVEN)
    assert case.told == [("run.straggler", 1), ("run.even", 1)]
    assert observe(case.quiet.node, case.quiet.run).straggler is None
    case.pass_time(60, LATE, EVEN, EVEN)
    assert case.told[2:] == [("run.straggler", 0)]


def test_the_tuner_knows_of_a_slow_rank_on_another_node() -> None:
    case = Case()
    state = job()
    assert state.slow is not None
    case.quiet.run.job = state
    assert observe(case.quiet.node, case.quiet.run).straggler == state.slow
    little = fact("job.slow_rank", **state.slow.fields | {"others_wait": 0.19})
    case.quiet.run.job = structs.replace(state, slow=little)
    assert observe(case.quiet.node, case.quiet.run).straggler is None


def test_a_rank_without_samples_is_named() -> None:
    case = Case()
    case.pass_time(60, EVEN, LATE)
    (event,) = [each for each in case.quiet.node.events if each.kind == "straggler"]
    assert event.fields["unsampled"] == [2]


def test_a_pause_does_not_count() -> None:
    case = Case()
    case.pass_time(60, EVEN, LATE, EVEN, paused=True)
    assert case.told == []


def gpus(case: Case, *readings: dict[str, float], seconds: int = 10) -> None:
    """The GPUs of the node, with a row of these readings each second from now on."""
    found = tuple(GpuInfo(uuid=f"GPU-{i}", index=i, name="NVIDIA H100") for i in range(len(readings)))
    case.quiet.node.set_hardware(HostInfo(cpus=8), found, None)
    now = case.quiet.now
    for gpu, values in zip(found, readings, strict=True):
        every = [(now + n * SECOND, -1, values) for n in range(1, seconds + 1)]
        case.quiet.node.rows((rows(f"gpu/{gpu.uuid}", every),))


FAST = {"sm_clock_mhz": 1980.0, "throttle": 0.0}
HOT = {"sm_clock_mhz": 1410.0, "throttle": float(0x20)}


def test_a_straggler_is_named_with_its_host_its_gpu_and_the_clocks() -> None:
    case = Case()
    gpus(case, FAST, HOT, FAST)
    case.pass_time(30, EVEN, LATE, EVEN)
    (event,) = [each for each in case.quiet.node.events if each.kind == "straggler"]
    fields = {name: event.fields[name] for name in RankDevice._fields}
    assert fields == {
        "host": case.quiet.node.host,
        "gpu": 1,
        "clock_mhz": 1410.0,
        "others_mhz": 1980.0,
        "throttled": {"thermal_software": 1.0},
    }


@pytest.mark.parametrize("visible", [None, "0,1,2"])
def test_the_gpu_of_a_rank_that_sees_all_is_the_one_with_its_process(visible: str | None) -> None:
    case = Case(visible)
    gpus(case, FAST, FAST, HOT)
    node, run = case.quiet.node, case.quiet.run
    assert rank_device(node, run, 2, 0) == RankDevice(node.host)
    node.set_processes(tuple(GpuProcess(gpu=f"GPU-{i}", pid=1 + i, run=RUN) for i in range(3)))
    assert rank_device(node, run, 2, 0) == RankDevice(node.host, 2, 1410.0, 1980.0, {"thermal_software": 1.0})
    assert rank_device(node, run, 0, 0) == RankDevice(node.host, 0, 1980.0, 1695.0, {})
    node.set_processes((*node.processes, GpuProcess(gpu="GPU-0", pid=3, run=RUN)))
    assert rank_device(node, run, 2, 0) == RankDevice(node.host), "it is on two GPUs"


def test_readings_that_are_missing_are_unknown() -> None:
    case = Case()
    gpus(case, {"power_w": 300.0}, FAST, {"sm_clock_mhz": float("nan")})
    node, run = case.quiet.node, case.quiet.run
    assert rank_device(node, run, 0, 0) == RankDevice(node.host, 0, None, 1980.0, None)
    assert rank_device(node, run, 1, 0) == RankDevice(node.host, 1, 1980.0, None, {})
    since = case.quiet.now + 11 * SECOND
    assert rank_device(node, run, 1, since) == RankDevice(node.host, 1)
    assert rank_device(node, run, 3, 0) == RankDevice(node.host), "it has left"
