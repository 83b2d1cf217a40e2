"""The messages of samplers: GPUs, owners, processes, derived rows, events, and GPUs left alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hoptui.daemon.handlers.samplers import Hardware, SamplerDesk, changes
from hoptui.daemon.state.gpu_ownership import Ancestry
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.stack_windows import StackBatch
from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import Devices, GpuInfo, GpuProcess, Happened, HostInfo, Sample, Tenants
from hoptui.domain.facts import Fact, fact
from hoptui.domain.jobs import JobState
from hoptui.node.driver_probe import DRIVER
from hoptui.protocol.messages import CommandRecord, Event, NodeState, Query, RunHello, RunState
from hoptui.recording.library import KnownRun

S = 1_000_000_000
A = GpuInfo(uuid="GPU-a", index=0, name="H100")
B = GpuInfo(uuid="GPU-b", index=1, name="H100")
LOST = fact("gpu.fell_off_bus", nvml=15, error="GPU is lost")
ENDED = fact("sampler.ended", sampler="gpus", exit_code=2)
NOT_ANSWERED = fact("sampler.not_answered", sampler="gpus")
NO_DRIVER = fact("driver.not_loaded", nvml=9, error="Driver Not Loaded")
ROW = {"power_w": 300.0, "energy_j": 0.0, "sm_active": 50.0}


class Clock:
    def __init__(self) -> None:
        self.now = 100 * S

    def t(self) -> int:
        return self.now

    def wall(self) -> float:
        return self.now / 1e9


class Keeper:
    """An archive that notes what it is given."""

    problem = ""

    def __init__(self) -> None:
        self.kept: list[tuple[tuple[str, ...], str]] = []
        self.events: list[tuple[tuple[str, ...], Event]] = []
        self.nodes: list[NodeState] = []
        self.states: list[RunState] = []
        self.snapshots: list[tuple[tuple[str, ...], int, tuple[GpuProcess, ...]]] = []

    def rows(self, runs: Iterable[str], parts: Sequence[Columns]) -> None:
        self.kept += [(tuple(runs), part.source) for part in parts]

    def run(self, known: KnownRun, node: NodeState) -> None:
        self.states.append(known.state)

    def node(self, state: NodeState, runs: Iterable[str]) -> None:
        self.nodes.append(state)

    def event(self, event: Event, runs: Iterable[str]) -> None:
        self.events.append((tuple(runs), event))

    def command(self, record: CommandRecord, *, urgent: bool) -> None: ...

    def query(self, identity: bytes, query: Query, live: Sequence[Columns]) -> None: ...
    def stacks(self, run: str, batch: StackBatch) -> None: ...
    def job(self, run: str, t: int, state: JobState) -> None: ...
    def processes(self, runs: Iterable[str], t: int, processes: Sequence[GpuProcess]) -> None:
        self.snapshots.append((tuple(runs), t, tuple(processes)))

    def confirm(self, run: str) -> None: ...
    def keep(self, run: str) -> Callable[[], bool]:
        return lambda: True

    def finish(self, run: str) -> None: ...

    def stored(self, run: str) -> int | None:
        return None

    def flushed(self, source: str) -> int:
        return 0

    def problem_of(self, run: str) -> str:
        return ""


class Desk:
    """A node, its samplers' desk, and what came of it."""

    def __init__(self, proc: Path) -> None:
        self.clock, self.keeper, self.proc = Clock(), Keeper(), proc
        self.node = Node(self.clock, self.keeper, lambda: None, lambda _: None)
        self.desk = SamplerDesk(self.node, Ancestry(proc))
        self.desk.receive(Devices(gpus=(A, B)))

    def run(self, name: str, pid: int, **fields: Any) -> None:
        hello = RunHello(protocol=1, run=name, name=name, epoch=1, nonce=name, pid=pid, started=0, **fields)
        self.node.registry.hello(name.encode(), hello, 1.0)
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "stat").write_text(f"{pid} (python) S 1 1 1")
        self.desk.tend()

    def tenants(self, *processes: tuple[str, int]) -> None:
        self.desk.receive(
            Tenants(processes=tuple(GpuProcess(gpu=g, pid=p, user="kim") for g, p in processes))
        )

    def sample(self, *uuids: str, **values: float) -> None:
        self.clock.now += S
        t = self.clock.now
        self.desk.receive(Sample(parts=tuple(pack(f"gpu/{u}", [(t, -1, ROW | values)]) for u in uuids)))

    def gpus(self, run: str) -> tuple[str, ...]:
        found = self.node.registry.get(run)
        assert found is not None
        return found.state.gpus

    def happened(self, kind: str) -> list[tuple[Fact, str, str]]:
        return [(Fact(e.code, e.fields), e.level, e.source) for e in self.node.events if e.kind == kind]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_node_has_what_both_samplers_say(desk: Desk) -> None:
    desk.desk.receive(HostInfo(cpus=192, memory_total_bytes=2 << 40))
    state = desk.node.state()
    assert (state.cpus, state.memory_total_bytes, state.gpus, state.gpu_problem) == (
        192,
        2 << 40,
        (A, B),
        None,
    )
    assert desk.keeper.nodes[-1].gpus == (A, B)


def test_a_runs_gpus_are_shown_once_they_are_known(desk: Desk) -> None:
    desk.run("one", 10, visible="1")
    assert desk.gpus("one") == ("GPU-b",)
    assert desk.keeper.states[-1].gpus == ("GPU-b",)  # and kept
    desk.run("two", 20)
    assert desk.gpus("two") == ()
    desk.tenants(("GPU-a", 20))
    assert desk.gpus("two") == ("GPU-a",)
    desk.tenants()
    assert desk.gpus("two") == ("GPU-a",)  # between two kernels it has no context


def test_a_process_on_another_gpu_than_its_environment_says_is_told_once(desk: Desk) -> None:
    desk.run("one", 10, visible="1")
    desk.run("two", 20, visible="1")
    desk.tenants(("GPU-a", 10), ("GPU-a", 20), ("GPU-b", 20))
    assert (desk.gpus("one"), desk.gpus("two")) == (("GPU-a",), ("GPU-b",))
    desk.tenants()
    desk.tenants(("GPU-a", 10))
    assert desk.gpus("one") == ("GPU-a",)
    told = fact("gpu.contradicted", source="visible", named=[1], listed=[0])
    assert desk.happened("gpu-contradicted") == [(told, "warning", "")]
    assert [event.run for event in desk.node.events] == ["one"]


def test_what_a_process_has_started_elsewhere_contradicts_nothing(desk: Desk) -> None:
    desk.run("one", 10, visible="1")
    (desk.proc / "11").mkdir()
    (desk.proc / "11" / "stat").write_text("11 (python) S 10 1 1")
    desk.tenants(("GPU-a", 11))
    assert desk.gpus("one") == ("GPU-b",)
    assert desk.happened("gpu-contradicted") == []


def test_processes_come_with_their_run(desk: Desk) -> None:
    desk.run("one", 10)
    before = desk.node.processes_version
    desk.tenants(("GPU-a", 10), ("GPU-b", 99))
    assert [(p.pid, p.run) for p in desk.node.processes] == [(10, "one"), (99, "")]
    assert desk.node.processes_version == before + 1
    desk.tenants(("GPU-a", 10), ("GPU-b", 99))
    assert desk.node.processes_version == before + 1


def test_processes_are_recorded_at_a_change_and_every_15_seconds(desk: Desk) -> None:
    def recorded() -> list[tuple[tuple[str, ...], int, list[int]]]:
        return [(runs, t // S, [p.pid for p in found]) for runs, t, found in desk.keeper.snapshots]

    began = desk.clock.now // S
    desk.tenants(("GPU-a", 99))
    assert recorded() == [], "no run, so no recording"
    desk.run("one", 10)
    assert recorded() == [(("one",), began, [99])]
    for _ in range(20):
        desk.clock.now += S
        desk.desk.tend()
    assert recorded()[1:] == [(("one",), began + 15, [99])], "nothing has changed"
    desk.tenants(("GPU-a", 99), ("GPU-a", 10))
    desk.tenants(("GPU-a", 10))
    assert recorded()[2:] == [(("one",), began + 20, [99, 10])]
    desk.clock.now += S
    desk.run("two", 20)
    assert recorded()[3:] == [(("one", "two"), began + 21, [10])], "what came within a second is not lost"
    desk.clock.now += S
    desk.desk.silent()
    assert recorded()[4:] == [(("one", "two"), began + 22, [])]


def test_nobody_is_on_a_gpu_that_nobody_reads(desk: Desk) -> None:
    desk.run("one", 10)
    desk.tenants(("GPU-a", 10))
    desk.desk.silent()
    assert desk.node.processes == ()
    assert desk.gpus("one") == ("GPU-a",)
    before = desk.node.processes_version
    desk.desk.silent()
    assert desk.node.processes_version == before


def test_derived_rows_are_the_runs_and_gpus_everybodys(desk: Desk) -> None:
    desk.run("one", 10, visible="0")
    desk.run("two", 20, visible="")
    desk.sample("GPU-a", "GPU-b")
    both = ("one", "two")
    assert desk.keeper.kept == [
        (("one",), "derived/one"),
        (both, "gpu/GPU-a"),
        (both, "gpu/GPU-b"),
    ]
    ring = desk.node.rings.get("derived/one")
    assert ring is not None
    row = ring.last()
    assert row is not None
    assert row.last() == {"power_w": 300.0, "energy_j": 0.0, "idle_power_w": 150.0}
    desk.sample("GPU-a", energy_j=300.0)
    row = ring.last()
    assert row is not None
    assert row.last()["energy_j"] == 300.0


def test_an_account_that_breaks_costs_its_run_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.run("one", 10, visible="0")
    desk.run("two", 20, visible="1")
    one = desk.node.registry.get("one")
    assert one is not None
    monkeypatch.setattr(one, "account", None)
    desk.sample("GPU-a", "GPU-b")
    assert {ring.source for ring in desk.node.rings} == {"gpu/GPU-a", "gpu/GPU-b", "derived/two"}


def test_gpus_that_cannot_be_told_are_unknown_of_their_run_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.run("one", 10, visible="0")
    one = desk.node.registry.get("one")
    assert one is not None
    monkeypatch.setattr(one, "claim", None)
    desk.run("two", 20, visible="1")
    assert desk.gpus("two") == ("GPU-b",)


def test_events_go_to_the_runs_on_that_gpu(desk: Desk) -> None:
    desk.run("one", 10, visible="0")
    desk.run("two", 20, visible="1")
    desk.run("lost", 30)
    desk.desk.receive(
        Happened(source="gpu/GPU-b", t=7, kind="xid", what=fact("gpu.xid", number=79), level="alarm")
    )
    runs, event = desk.keeper.events[-1]
    assert runs == ("two", "lost")
    assert (event.kind, event.level, event.source, event.t) == ("xid", "alarm", "gpu/GPU-b", 7)
    assert (event.code, event.fields) == ("gpu.xid", {"number": 79})
    assert desk.node.happened["xid", "alarm", "GPU-b"] == 1
    desk.node.event("sampler", fact("sampler.ended"))
    assert desk.keeper.events[-1][0] == ("one", "two", "lost")


def test_a_gpu_that_hangs_and_comes_back_is_told(desk: Desk) -> None:
    desk.desk.leave({1: 60.0})
    [b] = [gpu for gpu in desk.node.gpus if gpu.uuid == "GPU-b"]
    assert b.problem == fact("gpu.hung", again_s=60.0)
    desk.desk.leave({1: 120.0})
    desk.clock.now += 60 * S
    desk.desk.leave({})
    assert desk.happened("gpu") == [
        (fact("gpu.hung", again_s=60.0), "alarm", "gpu/GPU-b"),
        (fact("gpu.back"), "info", "gpu/GPU-b"),
    ]


def test_a_loss_that_the_sampler_tells_is_not_told_twice(desk: Desk) -> None:
    lost = GpuInfo(uuid="GPU-a", index=0, name="H100", problem=LOST)
    desk.desk.receive(Devices(gpus=(lost, B)))
    desk.desk.receive(Happened(source="gpu/GPU-a", t=1, kind="gpu", what=LOST, level="alarm"))
    desk.desk.receive(Happened(source="gpu/GPU-a", t=2, kind="gpu", what=fact("gpu.back"), level="info"))
    desk.desk.receive(Devices(gpus=(A, B)))
    assert [what for what, _, _ in desk.happened("gpu")] == [LOST, fact("gpu.back")]


def test_a_hidden_pid_is_not_looked_up_here(tmp_path: Path) -> None:
    """In a container the driver's number may be another process of ours: the sampler leaves its user
    empty."""
    desk = Desk(tmp_path)
    desk.run("one", os.getpid(), visible="")
    desk.desk.receive(Tenants(processes=(GpuProcess(gpu="GPU-a", pid=os.getpid()),)))
    assert [p.run for p in desk.node.processes] == [""]


@pytest.mark.parametrize(
    ("namespace", "run"), [("pid:[4026532281]", "one"), ("pid:[4026531836]", ""), ("", "")]
)
def test_a_pid_that_nobody_can_look_up_is_the_claimants_in_a_container_alone(
    tmp_path: Path, namespace: str, run: str
) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    if namespace:
        (tmp_path / "self/ns/pid").symlink_to(namespace)
    desk = Desk(tmp_path)
    desk.run("one", 10, visible="0")
    desk.desk.receive(Tenants(processes=(GpuProcess(gpu="GPU-a", pid=31_337),)))
    assert [p.run for p in desk.node.processes] == [run]


def test_viewers_are_told_why_a_sampler_has_never_answered(tmp_path: Path) -> None:
    node = Node(Clock(), Keeper(), lambda: None, lambda _: None)
    desk = SamplerDesk(node, Ancestry(tmp_path))
    desk.troubled(ENDED)
    assert node.state().gpu_problem == ENDED
    told = node.version
    desk.troubled(ENDED)
    assert node.version == told


C = GpuInfo(uuid="GPU-c", index=2, name="H100")
PART = GpuInfo(uuid="MIG-b1", index=1, name="H100 MIG 1g.10gb", parent="GPU-b")


def node(*gpus: GpuInfo) -> Hardware:
    hardware = Hardware()
    hardware.update(Devices(gpus=gpus))
    return hardware


def problems(hardware: Hardware) -> dict[str, Fact | None]:
    return {gpu.uuid: gpu.problem for gpu in hardware.gpus}


def test_before_any_word_nothing_is_known() -> None:
    assert Hardware().gpus == ()
    assert Hardware().problem == NOT_ANSWERED


def test_a_sampler_that_dies_before_it_lists_a_gpu_is_the_reason() -> None:
    hardware = Hardware()
    assert not hardware.troubled(None)
    assert hardware.problem == NOT_ANSWERED
    hardware.update(Devices(problem=fact("driver.not_asked")))
    assert hardware.troubled(ENDED)
    assert hardware.problem == ENDED
    assert not hardware.troubled(ENDED), "told once"
    hardware.update(Devices(problem=NO_DRIVER))
    assert not hardware.troubled(None)
    assert hardware.problem == NO_DRIVER


def test_gpus_that_are_known_stay_when_the_sampler_dies() -> None:
    hardware = node(A)
    assert not hardware.troubled(ENDED)
    assert (hardware.gpus, hardware.problem) == ((A,), None)


def test_a_gpu_that_is_left_alone_keeps_its_place_with_the_reason() -> None:
    hardware = node(A, B, PART, C)
    assert hardware.leave({1: 60.0})
    hardware.update(Devices(gpus=(A, C)))
    assert [gpu.uuid for gpu in hardware.gpus] == ["GPU-a", "GPU-b", "MIG-b1", "GPU-c"]
    hung = fact("gpu.hung", again_s=60.0)
    assert problems(hardware) == {"GPU-a": None, "GPU-b": hung, "MIG-b1": hung, "GPU-c": None}
    assert hardware.problem is None
    assert not hardware.leave({1: 60.0})
    hardware.leave({})
    hardware.update(Devices(gpus=(A, B, C)))
    assert problems(hardware) == {"GPU-a": None, "GPU-b": None, "GPU-c": None}


def test_the_driver_as_a_whole() -> None:
    hardware = node(A, B)
    hardware.leave({DRIVER: 120.0})
    hung = fact("driver.hung", again_s=120.0)
    assert problems(hardware) == {"GPU-a": hung, "GPU-b": hung}
    assert hardware.problem == fact("driver.hung")


def test_gpus_outlive_their_driver_and_the_list() -> None:
    hardware = node(A, B, PART)
    hardware.update(Devices(problem=NO_DRIVER))
    assert list(problems(hardware).values()) == [NO_DRIVER] * 3
    hardware.update(Devices(gpus=(A,)))
    assert problems(hardware) == {
        "GPU-a": None,
        "GPU-b": fact("gpu.not_listed"),
    }  # the instance was taken apart


def test_what_changed_is_told_once() -> None:
    lost = structs.replace(A, problem=LOST)
    assert changes((), (lost,)) == []
    assert changes((A, B), (lost, B)) == [(lost, LOST)]
    assert changes((lost,), (A,)) == [(A, fact("gpu.back"))]
    longer = [structs.replace(A, problem=fact("gpu.hung", again_s=s)) for s in (60.0, 120.0)]
    assert changes(longer[:1], longer[1:]) == []
    assert changes(longer[:1], (lost,)) == [(lost, LOST)]
    assert changes((lost,), (other := structs.replace(A, problem=fact("gpu.needs_reset")),)) == [
        (other, other.problem)
    ]
