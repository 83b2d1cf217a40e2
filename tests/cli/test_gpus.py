"""`gpus`, and the GPU readings in `status` and `watch`."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from hoptui.cli.commands.gpus import derived_lines
from hoptui.cli.support import snapshot as node_module
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.domain.facts import Fact, fact
from hoptui.node import processes
from hoptui.presentation import sentences
from hoptui.protocol.messages import Delta, Fetch, FromViewer, ToViewer, Vital
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.factories import NO_DRIVER, SECOND
from tests.golden import Golden

GIB = 1 << 30
FIRST = GpuInfo(
    uuid="GPU-a", index=0, name="NVIDIA H100 80GB HBM3", power_limit_w=700.0, memory_total_bytes=80 * GIB
)
LOST = GpuInfo(
    uuid="GPU-b", index=1, name="NVIDIA H100 80GB HBM3", problem=fact("recorded", text="GPU is lost")
)
READ = {
    "busy": 100.0,
    "sm_active": 96.04,
    "tensor_active": 0.3,
    "power_w": 688.2,
    "memory_used_bytes": 58.1 * GIB,
    "temperature_c": 62.0,
    "sm_clock_mhz": 1755.0,
    "mfu_estimated": 41.0,
}
DERIVED = {"power_w": 688.2, "energy_per_unit_j": 0.00134, "mfu": 40.2}
TENANTS = (
    GpuProcess(
        gpu="GPU-a",
        pid=4121,
        memory_used_bytes=58 * GIB,
        sm_percent=97.0,
        user="ana",
        command="python t.py",
        run="abcd2345",
    ),
    GpuProcess(gpu="GPU-a", pid=9),
)


@pytest.fixture
def node(daemon: FakeDaemon) -> FakeDaemon:
    """A node with a GPU that works, one that is lost, and a run that has both."""
    daemon.add(factories.run(gpus=("GPU-a", "GPU-b")), metrics={"env_steps_per_s": 512_345.0, "loss": 0.183})
    daemon.node = structs.replace(daemon.node, gpus=(FIRST, LOST), gpu_problem=None, hz=2.0)
    daemon.columns += [pack("gpu/GPU-a", [(daemon.now, -1, READ)])]
    daemon.columns += [pack("derived/abcd2345", [(daemon.now, -1, DERIVED)])]

    def answer(message: FromViewer) -> list[ToViewer] | None:
        if isinstance(message, Fetch) and message.processes is not None:
            return [Delta(id=message.id, now=daemon.now, state=1, processes=TENANTS, processes_version=1)]
        return None

    daemon.answer = answer
    daemon.start()
    return daemon


def test_gpus_is_a_line_a_gpu_and_a_line_a_process(hoptui: Hoptui, node: FakeDaemon, golden: Golden) -> None:
    ended = hoptui("gpus")
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out.splitlines()) == 4
    golden(hoptui.transcript())


def test_gpus_json(hoptui: Hoptui, node: FakeDaemon) -> None:
    told = hoptui("gpus", "--json").json
    assert (told["host"], told["hz"], told["reason"]) == ("gpu07", 2.0, "")
    first, lost = told["gpus"]
    assert {name: first[name] for name in READ} == READ
    assert (first["index"], first["uuid"], first["power_limit_w"], first["runs"]) == (
        0,
        "GPU-a",
        700.0,
        ["abcd2345"],
    )
    assert first["processes"][1] == {
        "pid": 9,
        "user": None,
        "command": None,
        "memory_used_bytes": None,
        "sm_percent": None,
        "run": None,
    }
    assert first["processes"][0]["run"] == "abcd2345"
    assert lost["reason"] == "GPU is lost"
    assert lost["problem"] == {"code": "recorded", "fields": {"text": "GPU is lost"}}
    assert lost["processes"] is None
    assert "busy" not in lost


def test_who_is_on_a_gpu_is_unknown_where_the_driver_does_not_tell(
    hoptui: Hoptui, node: FakeDaemon, golden: Golden
) -> None:
    shut = structs.replace(
        FIRST,
        uuid="GPU-c",
        index=2,
        missing_because={"processes": fact("recorded", text="the driver refuses it")},
    )
    node.node = structs.replace(node.node, gpus=(FIRST, shut))
    node.columns += [pack("gpu/GPU-c", [(node.now, -1, READ)])]
    assert hoptui("gpus").out.splitlines()[-1].endswith(sentences.sentence(shut.missing_because["processes"]))
    golden(hoptui.transcript())
    first, other = hoptui("gpus", "--json").json["gpus"]
    assert (len(first["processes"]), other["processes"]) == (2, None)


def test_a_sampler_that_is_gone_is_told_and_is_no_success(
    hoptui: Hoptui, node: FakeDaemon, golden: Golden
) -> None:
    ended_with = fact("sampler.ended", sampler="gpus", exit_code=1)
    problem = sentences.sentence(ended_with)
    node.node = structs.replace(node.node, sampler_problems=(ended_with,))
    ended = hoptui("gpus")  # its last readings are not old yet
    assert (ended.code, ended.err) == (0, f"hoptui: {problem}\n")
    node.now += int((node_module.STALE_S + 1) * SECOND)
    ended = hoptui("gpus")
    assert (ended.code, problem in ended.err) == (3, True)
    assert "pid" not in ended.out, "old processes are unknown too"
    golden(hoptui.transcript())
    told = hoptui("gpus", "--json")
    assert told.code == 3
    assert (told.json["reason"], told.json["sampler"]) == (problem, problem)
    known = [{"code": "sampler.ended", "fields": {"sampler": "gpus", "exit_code": 1}}]
    assert (told.json["problems"], told.json["sampler_problems"]) == (known, known)
    assert [gpu["processes"] for gpu in told.json["gpus"]] == [None, None]


def test_readings_that_do_not_arrive_are_no_success(hoptui: Hoptui, node: FakeDaemon, golden: Golden) -> None:
    node.columns = []
    assert hoptui("gpus").code == 3
    assert hoptui("gpus", "--json").json["reason"] == "no recent readings"
    node.node = structs.replace(node.node, gpus=(LOST,))
    assert hoptui("gpus").code == 3
    golden(hoptui.transcript())


def test_no_gpu_is_no_answer(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ended = hoptui("gpus")
    assert (ended.code, ended.out) == (3, "")
    golden(hoptui.transcript())
    ended = hoptui("gpus", "--json")
    assert ended.code == 3
    assert (ended.json["reason"], ended.json["gpus"]) == (sentences.sentence(NO_DRIVER), [])
    assert [problem["code"] for problem in ended.json["problems"]] == [NO_DRIVER.code]
    assert (ended.json["error"], ended.json["code"]) == (
        f"no GPU readings: {sentences.sentence(NO_DRIVER)}",
        3,
    )


def test_readings_are_no_error(hoptui: Hoptui, node: FakeDaemon) -> None:
    ended = hoptui("gpus", "--json")
    assert ended.code == 0
    assert not {"error", "code"} & set(ended.json)


@pytest.mark.parametrize(
    ("sampler", "gpus"),
    [((fact("starting"),), None), ((), fact("driver.not_asked"))],
    ids=["starts", "has not asked the driver yet"],
)
def test_a_sampler_that_has_just_begun_gets_time(
    hoptui: Hoptui,
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    sampler: tuple[Fact, ...],
    gpus: Fact | None,
) -> None:
    daemon.node = structs.replace(daemon.node, sampler_problems=sampler, gpu_problem=gpus)

    def answer(message: FromViewer) -> None:
        if isinstance(message, Fetch) and len(daemon.of(Fetch)) == 3:
            daemon.node = structs.replace(daemon.node, gpus=(FIRST,), sampler_problems=(), gpu_problem=None)
            daemon.columns = [pack("gpu/GPU-a", [(daemon.now, -1, READ)])]

    daemon.answer = answer
    monkeypatch.setattr(processes, "start_daemon", lambda where: daemon.start())
    assert hoptui("gpus").out.startswith("0  H100 80GB HBM3  busy 100 %")


def test_slow_readings_are_there_at_every_look(hoptui: Hoptui, node: FakeDaemon) -> None:
    slow = {"ecc_corrected": 3.0, "energy_j": 2.5e6}
    rows = [(node.now - s * SECOND, -1, READ | slow if s in (4, 9) else READ) for s in range(20, -1, -1)]
    node.columns[1] = pack("gpu/GPU-a", rows)
    first = hoptui("gpus", "--json").json["gpus"][0]
    assert {name: first.get(name) for name in slow} == slow
    assert hoptui("status", "ppo", "--json").json["gpus"][0]["ecc_corrected"] == 3.0


def test_what_a_fast_reading_was_seconds_ago_is_not_what_it_is(hoptui: Hoptui, node: FakeDaemon) -> None:
    without = {name: value for name, value in READ.items() if name != "power_w"}
    rows = [(node.now - s * SECOND, -1, READ if s > 6 else without) for s in range(20, -1, -1)]
    node.columns[1] = pack("gpu/GPU-a", rows)
    assert "power_w" not in hoptui("gpus", "--json").json["gpus"][0]


def test_what_a_gpu_has_not_got_comes_with_the_reason(
    hoptui: Hoptui, node: FakeDaemon, golden: Golden
) -> None:
    lacking = structs.replace(
        FIRST,
        missing_because={
            "gpm": fact("recorded", text="needs Hopper"),
            "sm_clock_mhz": fact("recorded", text="refused"),
            "xid": fact("recorded", text="no"),
        },
    )
    node.node = structs.replace(node.node, gpus=(lacking, LOST))
    gpm = ("sm_active", "tensor_active", "mfu_estimated", "sm_clock_mhz")
    old = {name: value for name, value in READ.items() if name not in gpm}
    node.columns[1] = pack("gpu/GPU-a", [(node.now, -1, old)])
    lines = hoptui("gpus").out.splitlines()
    shown = hoptui("status", "ppo").out.splitlines()
    for line, why in zip(lines[1:3], ("needs Hopper", "refused"), strict=True):
        assert line.endswith(f": {why}")
        assert f"  0  {line.strip()}" in shown
    assert lines[-1].endswith("GPU is lost"), "a GPU that cannot be read at all has its one reason"
    golden(hoptui.transcript())


def test_mig_instances_can_be_told_apart(hoptui: Hoptui, node: FakeDaemon) -> None:
    parts = tuple(
        structs.replace(FIRST, uuid=uuid, name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", parent="GPU-a")
        for uuid in ("MIG-41b35f0e-0c2e-5f3f", "MIG-9f0e35b4-0c2e-5f3f")
    )
    node.node = structs.replace(node.node, gpus=(FIRST, *parts))
    names = [line.split("  ")[1] for line in hoptui("gpus").out.splitlines() if "MIG" in line]
    assert names == [
        "H100 80GB HBM3 MIG 1g.10gb MIG-41b35f0e",
        "H100 80GB HBM3 MIG 1g.10gb MIG-9f0e35b4",
    ]


def test_old_readings_are_unknown(hoptui: Hoptui, node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    node.now += int((node_module.STALE_S + 1) * SECOND)
    first = hoptui("gpus", "--json").json["gpus"][0]
    assert "busy" not in first
    told = hoptui("status", "ppo", "--json").json
    assert told["derived"] == {}


def test_status(hoptui: Hoptui, node: FakeDaemon, golden: Golden) -> None:
    assert hoptui("status", "ppo").code == 0
    golden(hoptui.transcript())
    told = hoptui("status", "ppo", "--json").json
    assert [gpu["index"] for gpu in told["gpus"]] == [0, 1]
    assert told["gpus"][0]["power_w"] == 688.2
    assert told["derived"] == DERIVED


def test_everything_that_is_derived(golden: Golden) -> None:
    found = {
        "power_w": 1376.0,
        "idle_power_w": 210.4,
        "energy_j": 3.2e6,
        "energy_per_iteration_j": 1250.0,
        "energy_per_unit_j": 0.5,
        "memory_headroom_bytes": 21.5 * GIB,
        "gpu_memory_bytes": 58.0 * GIB,
        "mfu": 41.2,
        "mfu_estimated": 40.9,
    }
    lines = derived_lines(factories.run(headline="tokens_per_s"), found)
    golden("".join(f"{name}: {value}\n" for name, value in lines))
    assert derived_lines(factories.run(), {}) == []


def test_an_exited_run_has_no_gpus_any_more(hoptui: Hoptui, node: FakeDaemon) -> None:
    node.add(factories.run("eeee5555", "old", gpus=("GPU-a",), exit_reason="finished"), Vital(state="exited"))
    told = hoptui("status", "old", "--json").json
    assert (told["gpus"], told["derived"]) == ([], {})
    assert "GPUs" not in hoptui("status", "old").out


class Streaming:
    """One row of the run and two of its GPU, then the run ends."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.daemon = daemon
        self.turns = 0

    def __call__(self, message: FromViewer) -> None:
        if not isinstance(message, Fetch) or not message.wait_s:
            return
        self.turns += 1
        daemon = self.daemon
        soon = daemon.now + 60 * SECOND  # later than any cursor of a viewer whose clock goes on
        if self.turns == 1:
            rows = [(soon + i * SECOND // 10, -1, {**READ, "busy": 90.0 + i}) for i in range(2)]
            daemon.columns = [pack("gpu/GPU-a", rows), pack("run/abcd2345", [(soon, 1205, {"loss": 0.1})])]
        else:
            over = factories.run(exit_reason="finished", epoch=2)
            daemon.node = structs.replace(daemon.node, runs=(over,))


def test_watch_shows_the_gpus_beside_each_row(hoptui: Hoptui, node: FakeDaemon) -> None:
    node.answer = Streaming(node)
    ended = hoptui("watch", "ppo")
    [row] = ended.out.splitlines()
    assert "iteration 1 205" in row
    assert row.endswith("busy 91 %  SM 96 %  tensor 0.3 %  DRAM –  – W")  # the lost one's watts are unknown
    [last] = [m for m in node.of(Fetch) if isinstance(m, Fetch) and m.wait_s][:1]
    assert last.hz == 0.0
    assert {"run/abcd2345", "gpu/GPU-a", "derived/abcd2345"} <= set(last.cursors)


def test_watch_with_hz_prints_the_rows_of_the_gpus(hoptui: Hoptui, node: FakeDaemon) -> None:
    node.answer = Streaming(node)
    rows = [json.loads(line) for line in hoptui("watch", "ppo", "--json", "--hz", "10").out.splitlines()]
    gpu_rows = [row for row in rows if "gpu" in row]
    assert [row["readings"]["busy"] for row in gpu_rows] == [90.0, 91.0]
    assert gpu_rows[0]["index"] == 0
    [row] = [row for row in rows if "gpu" not in row]
    assert row["metrics"] == {"loss": 0.1}
    assert [gpu["uuid"] for gpu in row["gpus"]] == ["GPU-a", "GPU-b"]
    assert {m.hz for m in node.of(Fetch) if isinstance(m, Fetch) and m.wait_s} == {10.0}


def test_watch_with_hz_in_words(hoptui: Hoptui, node: FakeDaemon) -> None:
    node.answer = Streaming(node)
    line = next(line for line in hoptui("watch", "ppo", "--hz", "2").out.splitlines() if "GPU 0" in line)
    assert line.split("  ")[1:4] == ["GPU 0", "busy 90 %", "SM 96 %"]


def test_hz_has_bounds(hoptui: Hoptui, golden: Golden) -> None:
    for hz in ("0", "11", "nan", "-1"):
        ended = hoptui("watch", "ppo", f"--hz={hz}")
        assert (ended.code, ended.out) == (2, "")
    golden(hoptui.transcript())
