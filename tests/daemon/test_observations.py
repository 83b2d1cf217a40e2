"""What the tuner is shown of a run: memory and power of its GPUs, its throughput; unknown where it is old."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.daemon.state.gpu_ownership import Claim
from hoptui.daemon.state.other_processes import pids_of, sources_of
from hoptui.daemon.state.registry import Member
from hoptui.daemon.tuning import RECORDS, observe
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo, GpuProcess, HostInfo
from hoptui.domain.facts import fact
from hoptui.domain.tuning import Change
from hoptui.protocol.messages import Pulse, RankState
from hoptui.tuner.observation import GpuNeighbours, MemoryReading
from tests.daemon.quiet_node import RUN, SECOND, QuietNode

GIB = 1 << 30
TOTAL = {"memory_total_bytes": 80.0 * GIB}


@pytest.fixture
def there() -> QuietNode:
    found = QuietNode()
    found.hello()
    found.rows(100.0)
    return found


def gpus(there: QuietNode, *uuids: str) -> None:
    """The run's GPUs."""
    there.run.state = structs.replace(there.run.state, gpus=uuids)


def read(there: QuietNode, uuid: str, **readings: float) -> None:
    there.node.rows((pack(f"gpu/{uuid}", [(there.now, -1, TOTAL | readings)]),))


def process(gpu: str, gib: float | None, run: str = "") -> GpuProcess:
    return GpuProcess(gpu=gpu, pid=1, memory_used_bytes=None if gib is None else int(gib * GIB), run=run)


def test_the_throughput_is_that_of_iterations_that_only_trained(there: QuietNode) -> None:
    row = {"tokens_per_s": 1.0, "phase/evaluation": 2.0}
    there.node.rows((pack(f"run/{RUN}", [(there.now + 1, 2, row), (there.now + 2, 3, {"loss": 1.0})]),))
    there.rows(99.0)
    seen = observe(there.node, there.run)
    assert (seen.metric, seen.points) == ("tokens_per_s", [(1, 100.0), (4, 99.0)])
    assert (seen.epoch, seen.state, seen.knobs) == (1, "live", there.run.state.knobs)


def test_work_and_loss_are_those_of_the_same_iterations(there: QuietNode) -> None:
    for step in (2, 3):
        row = {"tokens_per_s": 100.0, "tokens": 512.0, "samples": 8.0, "train_loss": 2.0 / step}
        there.now += SECOND
        there.node.rows((pack(f"run/{RUN}", [(there.now, step, row)]),))
    seen = observe(there.node, there.run)
    assert seen.samples == [(2, 512.0), (3, 512.0)], "the throughput is that of tokens"
    assert seen.losses == [(2, 1.0), (3, 2.0 / 3)]


def test_a_throughput_that_is_no_rate_of_a_count_has_no_work(there: QuietNode) -> None:
    """Its own values would be taken for the work, and a faster knob for one that changes it."""
    there.run.state = structs.replace(there.run.state, headline="fps")
    there.node.rows((pack(f"run/{RUN}", [(there.now + 1, 2, {"fps": 60.0})]),))
    seen = observe(there.node, there.run)
    assert (seen.points, seen.samples, seen.losses) == ([(2, 60.0)], [], ())


def test_memory_is_that_of_the_gpu_without_room_first_and_its_peak_since_the_last_look(
    there: QuietNode,
) -> None:
    gpus(there, "A", "B")
    for used in (20.0, 70.0, 30.0):
        there.now += SECOND // 2
        read(there, "A", memory_used_bytes=used * GIB)
        read(there, "B", memory_used_bytes=40.0 * GIB)
    there.node.processes = (process("A", 25.0, RUN), process("A", 5.0), process("B", 40.0, RUN))
    seen = observe(there.node, there.run)
    assert seen.memory == MemoryReading(used=65 * GIB, others=5 * GIB, total=80 * GIB, gpu="A")
    assert seen.memories == (seen.memory, MemoryReading(used=40 * GIB, others=0, total=80 * GIB, gpu="B"))


def test_what_does_not_grow_is_what_each_process_reports_of_its_gpu(there: QuietNode) -> None:
    gpus(there, "A")
    read(there, "A", memory_used_bytes=30.0 * GIB)
    for reported, fixed in ((6, 6), (0, 0), (30, 0)):
        there.run.pulse(Pulse(step=1, fixed_bytes=reported * GIB), there.now / SECOND)
        seen = observe(there.node, there.run).memory
        assert seen is not None
        assert seen.fixed == fixed * GIB, "as much as is held, or more, cannot be true"


@pytest.mark.parametrize(
    ("others", "found"), [((), 0), ((4,), 4), ((8,), 6), ((None,), 0), ((0,), 0), ((4, 4), 0)]
)
def test_of_several_gpus_each_process_has_to_report_its_own(
    there: QuietNode, others: tuple[int | None, ...], found: int
) -> None:
    gpus(there, "A", "B")
    for uuid in ("A", "B"):
        read(there, uuid, memory_used_bytes=30.0 * GIB)
    there.run.pulse(Pulse(step=1, fixed_bytes=6 * GIB), there.now / SECOND)
    for rank, reported in enumerate(others, 1):
        pulse = None if reported is None else Pulse(step=1, fixed_bytes=reported * GIB)
        there.run.members[rank] = Member(rank, b"", Claim(), pulse=pulse)
    assert [memory.fixed for memory in observe(there.node, there.run).memories] == [found * GIB] * 2


def test_of_gpus_of_different_size_the_one_without_room_first_need_not_be_the_fullest(
    there: QuietNode,
) -> None:
    gpus(there, "A", "B")
    read(there, "A", memory_used_bytes=48.0 * GIB)  # 60 % full, by a neighbour
    read(there, "B", memory_used_bytes=10.0 * GIB, memory_total_bytes=40.0 * GIB)
    there.node.processes = (process("A", 10.0, RUN), process("A", 38.0), process("B", 10.0, RUN))
    seen = observe(there.node, there.run)
    assert seen.memory == MemoryReading(used=10 * GIB, others=0, total=40 * GIB, gpu="B"), (
        "40 GiB for it, and 42 on A"
    )
    assert seen.taken == 0.6


def test_power_that_others_draw_too_is_not_that_of_the_run(there: QuietNode) -> None:
    gpus(there, "A")
    there.node.gpus = (GpuInfo(uuid="A", index=0, name="H100"),)
    read(there, "A", power_w=300.0)
    assert observe(there.node, there.run).drawn_w == 300.0
    there.node.processes = (process("A", 25.0, RUN), process("A", 5.0))
    seen = observe(there.node, there.run)
    assert (seen.drawn_w, seen.power_w) == (None, 300.0)
    assert seen.no_energy == fact("tune.gpu_shared", gpu=0, pid=1)


def test_the_mean_power_of_a_second_is_read_where_the_driver_has_it(there: QuietNode) -> None:
    """An instant falls at random into a step or between two."""
    gpus(there, "A")
    read(there, "A", power_w=500.0, power_average_w=400.0)
    assert observe(there.node, there.run).drawn_w == 400.0


@pytest.mark.parametrize(
    "processes", [(), (process("A", None, RUN), process("A", 9.0)), (process("A", 9.0), process("A", 9.0))]
)
def test_where_processes_cannot_be_told_apart_all_memory_counts_as_the_runs(
    there: QuietNode, processes: tuple[GpuProcess, ...]
) -> None:
    gpus(there, "A")
    read(there, "A", memory_used_bytes=30.0 * GIB)
    there.node.processes = processes
    assert observe(there.node, there.run).memory == MemoryReading(
        used=30 * GIB, others=0, total=80 * GIB, gpu="A"
    )


def test_a_gpu_that_cannot_be_read_might_have_no_room_first(there: QuietNode) -> None:
    gpus(there, "A", "B")
    read(there, "A", memory_used_bytes=30.0 * GIB)
    assert observe(there.node, there.run).memory is None
    read(there, "B", power_w=100.0)
    assert observe(there.node, there.run).memory is None


def test_old_readings_are_unknown(there: QuietNode) -> None:
    gpus(there, "A")
    read(there, "A", memory_used_bytes=30.0 * GIB, power_w=500.0, throttle=0x04)
    there.now += 4 * SECOND
    seen = observe(there.node, there.run)
    assert (seen.memory, seen.power_w, seen.throttled) == (None, None, "")


def test_power_is_that_of_the_gpu_that_draws_most_on_average(there: QuietNode) -> None:
    gpus(there, "A", "B")
    for a, b in ((300.0, 400.0), (400.0, 100.0)):
        there.now += SECOND // 2
        read(there, "A", power_w=a, throttle=0x01)
        read(there, "B", power_w=b, throttle=0x20)
    seen = observe(there.node, there.run)
    assert seen.power_w == 350.0
    assert seen.throttled == "too hot"


def test_what_a_run_draws_is_that_of_all_its_gpus_and_unknown_where_one_is(there: QuietNode) -> None:
    gpus(there, "A", "B")
    read(there, "A", power_w=300.0)
    assert observe(there.node, there.run).drawn_w is None
    read(there, "B", memory_used_bytes=GIB)
    assert observe(there.node, there.run).drawn_w is None
    there.now += SECOND // 2
    read(there, "B", power_w=400.0)
    seen = observe(there.node, there.run)
    assert (seen.drawn_w, seen.power_w) == (700.0, 400.0)
    there.run.state = structs.replace(there.run.state, world=4)
    assert observe(there.node, there.run).drawn_w is None, "the others are on another node"
    gpus(there)
    assert observe(there.node, there.run).drawn_w is None


def test_a_run_without_a_gpu_is_held_to_the_hosts_memory(there: QuietNode) -> None:
    host = {"memory_used_bytes": 30.0 * GIB, "memory_total_bytes": 64.0 * GIB, "cpu_percent": 25.0}
    there.node.rows((pack("host", [(there.now, -1, host)]),))
    assert observe(there.node, there.run).memory is None
    own = pack(f"process/{RUN}", [(there.now, -1, {"memory_rss_bytes": 10.0 * GIB})])
    there.node.rows((own,))
    seen = observe(there.node, there.run)
    assert seen.memory == MemoryReading(used=10 * GIB, others=20 * GIB, total=64 * GIB)
    assert (seen.host_busy, seen.others_busy) == (0.25, None)

    there.node.gpus = (GpuInfo(uuid="A", index=0, name="H100"),)
    assert observe(there.node, there.run).memory is None, "it may be on a GPU: nobody knows"
    there.run.said = True  # it says that it has none
    assert observe(there.node, there.run).memory is not None


def test_what_others_do_with_the_cpus_is_what_the_run_does_not(there: QuietNode) -> None:
    there.node.set_hardware(HostInfo(cpus=4), (), None)
    there.node.rows((pack("host", [(there.now, -1, {"cpu_percent": 75.0})]),))
    there.node.rows((pack(f"process/{RUN}", [(there.now, -1, {"cpu_percent": 120.0})]),))
    assert observe(there.node, there.run).others_busy == pytest.approx(0.45)
    ranks = (RankState(rank=1, pid=7),)
    there.run.state = structs.replace(there.run.state, world=2, ranks=ranks)
    assert observe(there.node, there.run).others_busy is None, "the other rank's processes are not read"
    there.node.rows((pack(f"process/{RUN}/1", [(there.now, -1, {"cpu_percent": 100.0})]),))
    assert observe(there.node, there.run).others_busy == pytest.approx(0.2)
    shown = [columns.source for columns in there.node.latest()]
    assert f"process/{RUN}" in shown
    assert f"process/{RUN}/1" not in shown


def test_a_tuned_run_has_the_processes_of_all_its_ranks_read(there: QuietNode) -> None:
    there.run.state = structs.replace(there.run.state, world=2, ranks=(RankState(rank=1, pid=7),))
    assert pids_of(there.run.state) == {RUN: there.run.state.pid, f"{RUN}/1": 7}
    assert sources_of(there.run.state) == [f"process/{RUN}", f"process/{RUN}/1"]


@pytest.mark.parametrize(
    ("own", "other", "busy"),
    [(60.0, 30.0, 0.3), (60.0, None, 0.0), (None, 30.0, 0.3), (None, None, None)],
)
def test_neighbours_on_a_gpu_have_a_share_where_the_driver_samples_it(
    there: QuietNode, own: float | None, other: float | None, busy: float | None
) -> None:
    gpus(there, "A", "B")
    of_run = GpuProcess(gpu="A", pid=2, sm_percent=own, run=RUN)
    there.node.processes = (of_run, GpuProcess(gpu="A", pid=3, sm_percent=other), process("B", 9.0))
    seen = observe(there.node, there.run)
    assert seen.neighbours == (GpuNeighbours("A", frozenset({3}), busy),), "on B no process is the run's"


def test_a_flood_of_commands_does_not_hide_the_tuners_own(there: QuietNode) -> None:
    there.tune()
    there.script.propose(Change(knob="micro_batch", before=32, value=64))
    there.look()
    (own,) = there.commands
    for _ in range(2 * RECORDS):
        there.now += 1
        there.person("lr", 1e-3)
    records = observe(there.node, there.run).records
    assert records[0].id == own.id
    assert [record.t for record in records] == sorted(record.t for record in records)
    assert len(records) == 1 + RECORDS


def test_retries_of_the_allocator_come_from_the_run(there: QuietNode) -> None:
    assert observe(there.node, there.run).alloc_retries is None
    there.node.rows((pack(f"run/{RUN}", [(there.now + 1, 9, {"alloc_retries": 2.0})]),))
    assert observe(there.node, there.run).alloc_retries == 2.0
