"""GPUs with real processes: a sampler that hangs, dies or speaks nonsense, events, rates, owners, and
Prometheus."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from hoptui.domain.columns import Columns
from hoptui.domain.facts import fact
from hoptui.protocol import messages
from hoptui.recording import Recording, RecordingError
from hoptui.recording.library import RUN
from tests.conftest import RawViewer, TestNode, until
from tests.daemon.conftest import GpuNode

FAST = 10.0
XID = {
    "source": "gpu/GPU-b",
    "kind": "xid",
    "what": {"code": "gpu.xid", "fields": {"number": 79}},
    "level": "alarm",
}


def moving(viewer: RawViewer, run: messages.RunState) -> None:
    before = viewer.vital(run.run).step
    until(lambda: viewer.vital(run.run).step > before, what="progress")


def derived(viewer: RawViewer, run: str) -> Columns | None:
    source = f"derived/{run}"
    return next((c for c in viewer.fetch(cursors={source: 0}, hz=FAST).columns if c.source == source), None)


def test_a_gpu_that_hangs_takes_nothing_along(gpu_node: GpuNode) -> None:
    viewer = gpu_node.start(timings={"sampler_silence_s": 1})
    child = gpu_node.node.start()
    run = viewer.run()
    gpu_node.goes_on("gpu/GPU-b")
    [first] = gpu_node.samplers()
    gpu_node.plan(hang=[1])

    def left() -> messages.NodeState | None:
        state = gpu_node.state()
        return state if state.gpus[1].problem else None

    state = until(left, what="the reason")
    assert state.gpus[1].problem == fact("gpu.hung", again_s=60.0)
    assert state.gpus[1].memory_total_bytes == 80 << 30  # what is known of it stays
    assert [gpu.index for gpu in state.gpus] == [0, 1]
    assert state.gpus[0].problem is state.gpu_problem is None
    gpu_node.goes_on("gpu/GPU-a")
    gpu_node.goes_on("host")
    moving(viewer, run)
    assert not first.is_running()
    assert until(lambda: viewer.state().sampler_problems, what="the problem")[0].code in (
        "sampler.gpu_hung",
        "sampler.gpus_left",
    )
    [event] = gpu_node.events("gpu")
    assert (event.source, event.level) == ("gpu/GPU-b", "alarm")
    gpu_node.plan(hang=[0, 1])  # and the other one, too
    until(lambda: gpu_node.state().gpus[0].problem, what="the second reason")
    gpu_node.goes_on("host")
    moving(viewer, run)
    assert child.poll() is None


@pytest.mark.parametrize(
    ("plan", "code"), [({"die": 3}, "sampler.ended"), ({"nonsense": True}, "sampler.bad_message")]
)
def test_a_sampler_that_fails_is_replaced(gpu_node: GpuNode, plan: dict[str, object], code: str) -> None:
    viewer = gpu_node.start()
    gpu_node.plan(processes=[["GPU-a", 1, 100]])
    until(lambda: viewer.fetch(processes=0).processes, what="the process")
    gpu_node.plan(**plan)
    until(lambda: viewer.fetch(processes=0).processes == (), what="nobody, as far as is known")
    [problem] = until(lambda: gpu_node.state().sampler_problems, what="the problem")
    assert (problem.code, problem.fields["sampler"]) == (code, "gpus")
    assert problem.fields.get("exit_code") == plan.get("die")
    assert len(gpu_node.state().gpus) == 2
    gpu_node.goes_on("host")
    gpu_node.plan()
    until(lambda: not gpu_node.state().sampler_problems, what="readings again")
    gpu_node.goes_on("gpu/GPU-a")
    assert gpu_node.events("gpu") == []  # it was never the GPUs'


def test_an_xid_is_seen_and_recorded(gpu_node: GpuNode) -> None:
    viewer = gpu_node.start()
    child = gpu_node.node.start(CUDA_VISIBLE_DEVICES="1")
    other = gpu_node.node.start(CUDA_VISIBLE_DEVICES="0")
    until(lambda: len(viewer.state().runs) == 2, what="both runs")
    until(lambda: all(run.gpus for run in viewer.state().runs), what="their GPUs")
    for source in ("host", "gpu/GPU-a"):  # so that there is something to record
        gpu_node.goes_on(source)
    gpu_node.plan(events=[XID])
    [event] = until(lambda: gpu_node.events("xid"), what="the event")
    assert (event.code, event.fields, event.level, event.source, event.run) == (
        "gpu.xid",
        {"number": 79},
        "alarm",
        "gpu/GPU-b",
        "",
    )
    runs = {run.pid: run for run in viewer.state().runs}
    for process in (child, other):
        process.send_signal(signal.SIGKILL)
    until(lambda: all(run.exit_reason for run in viewer.state().runs), what="the end")
    viewer.send(messages.Shutdown(id=1))
    gpu_node.daemon.wait(10)
    kept = {}
    for process in (child, other):
        with Recording.open(gpu_node.node.where.recording(runs[process.pid].run)) as recording:
            kept[process.pid] = [(e.code, e.fields) for e in recording.events() if e.kind == "xid"]
            assert {"gpu/GPU-a", "gpu/GPU-b", "host"} <= recording.sources().keys()
            node = json.loads(recording.recall("node") or "{}")
            assert [gpu["uuid"] for gpu in node["gpus"]] == ["GPU-a", "GPU-b"]
    assert kept == {child.pid: [("gpu.xid", {"number": 79})], other.pid: []}


def test_rates_follow_the_viewers(gpu_node: GpuNode) -> None:
    gpu_node.start()
    until(lambda: gpu_node.state(hz=0.0).hz == 2.0, what="the rate of a viewer")
    second = gpu_node.node.viewer("second")
    second.fetch(cursors={"host": 0}, hz=50.0)
    until(lambda: gpu_node.state(hz=5.0).hz == FAST, what="the fastest rate")
    before = gpu_node.last_t("gpu/GPU-a")

    def many() -> Columns | None:
        new = gpu_node.viewer.fetch(cursors={"gpu/GPU-a": before}, hz=5.0).columns
        return new[0] if new and len(new[0]) >= 8 else None

    times = until(many, what="rows").times()
    spacings = sorted(b - a for a, b in itertools.pairwise(times))
    assert 0.05e9 < spacings[len(spacings) // 2] < 0.2e9
    second.send(messages.ViewerBye())
    until(lambda: gpu_node.state(hz=5.0).hz == 5.0, what="the rate of who is left")
    gpu_node.viewer.send(messages.ViewerBye())
    third = gpu_node.node.viewer("third")
    until(lambda: third.state().hz == 1.0, what="the rate where nobody follows")


def test_whose_processes_and_what_a_run_uses(gpu_node: GpuNode) -> None:
    viewer = gpu_node.start()
    child = gpu_node.node.start()
    run = viewer.run()
    gpu_node.plan(processes=[["GPU-a", child.pid, 1000], ["GPU-b", 1, 500]])

    def owned() -> messages.Delta | None:
        delta = viewer.fetch(processes=0, hz=FAST, cursors={"host": 0})
        return delta if delta.tree and any(p.run for p in delta.processes or ()) else None

    delta = until(owned, what="the run's process and its tree")
    assert delta.processes is not None
    assert {(p.pid, p.run) for p in delta.processes} == {(child.pid, run.run), (1, "")}
    assert viewer.fetch(processes=delta.processes_version).processes is None
    assert viewer.fetch().processes is None
    assert until(lambda: viewer.run().gpus, what="its GPU") == ("GPU-a",)

    def complete() -> dict[str, float] | None:
        rows = derived(viewer, run.run)
        row = rows.last() if rows is not None else {}
        return row if {"energy_per_unit_j", "gpu_memory_bytes"} <= row.keys() else None

    row = until(complete, what="energy of a sample")
    assert (row["power_w"], row["idle_power_w"]) == (350.0, 175.0)
    assert row["gpu_memory_bytes"] == 1000 << 20
    assert row["memory_headroom_bytes"] == 70 << 30
    # 400 samples an iteration of a little more than 10 ms, at 350 W
    assert row["energy_per_iteration_j"] == pytest.approx(400 * row["energy_per_unit_j"], rel=0.2)
    assert 3.0 < row["energy_per_iteration_j"] < 35.0


def test_a_process_whose_environment_changed_after_cuda_had_started(gpu_node: GpuNode) -> None:
    viewer = gpu_node.start()
    child = gpu_node.node.start(CUDA_VISIBLE_DEVICES="1")
    assert until(lambda: viewer.run().gpus, what="its GPU by its environment") == ("GPU-b",)
    gpu_node.plan(processes=[["GPU-a", child.pid, 1000]])
    until(lambda: viewer.run().gpus == ("GPU-a",), what="its GPU by the driver")
    [event] = until(lambda: gpu_node.events("gpu-contradicted"), what="the event")
    assert event.run == viewer.run().run
    assert (event.code, event.fields) == (
        "gpu.contradicted",
        {"source": "visible", "named": [1], "listed": [0]},
    )
    gpu_node.plan(processes=[["GPU-a", child.pid, 1000], ["GPU-b", child.pid, 9000]])
    until(lambda: viewer.run().gpus == ("GPU-b",), what="its GPU again: the other has a stray context")


def test_energy_goes_on_after_the_daemon_was_killed(gpu_node: GpuNode) -> None:
    viewer = gpu_node.start(timings={"flush_s": 0.3})
    gpu_node.node.start(CUDA_VISIBLE_DEVICES="0")
    run = viewer.run()
    source = f"derived/{run.run}"

    def used() -> float:
        rows = derived(gpu_node.viewer, run.run)
        return rows.last().get("energy_j", 0.0) if rows is not None else 0.0

    until(lambda: used() > 175.0, what="energy on the disk")
    before = used()
    began = gpu_node.last_t(source)
    gpu_node.daemon.kill()
    gpu_node.daemon.wait(10)
    gpu_node.start(timings={"flush_s": 0.3})
    after = until(used, what="energy again")
    # 350 W all the while, also while nobody looked; what had not reached the disk is in the counter.
    assert after - before >= 0.9 * 350.0 * (gpu_node.last_t(source) - began) / 1e9 - 100.0


def test_prometheus(gpu_node: GpuNode) -> None:
    viewer = gpu_node.start(metrics=":0", timings={"publish_s": 0.2}, HOPTUI_IDLE_S="1")
    gpu_node.node.start(CUDA_VISIBLE_DEVICES="0")
    run = viewer.run()
    address = viewer.state().metrics
    assert address.startswith("127.0.0.1:")

    def scraped() -> str | None:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
        return text if "hoptui_run_power_watts" in text and "hoptui_host_load1" in text else None

    text = until(scraped, what="the run in a scrape")
    assert (
        'hoptui_gpu_sm_active_ratio{gpu="1",name="NVIDIA H100 80GB HBM3",parent="",uuid="GPU-b"} 0.5' in text
    )
    assert f'hoptui_run_power_watts{{run="{run.run}",run_name="toy"}} 350.0' in text
    assert (
        'hoptui_gpu_throttle_reason{gpu="0",name="NVIDIA H100 80GB '
        'HBM3",parent="",reason="power_cap",uuid="GPU-a"} 1.0' in text
    )
    assert 'hoptui_events_total{gpu="1",kind="xid",level="alarm",uuid="GPU-b"} 0.0' in text


def test_metrics_outlive_a_daemon_that_was_killed_and_not_one_that_ended(gpu_node: GpuNode) -> None:
    address = gpu_node.start(metrics=":0").state().metrics
    gpu_node.daemon.kill()
    gpu_node.daemon.wait(10)
    gpu_node.start()
    assert gpu_node.viewer.state().metrics == address
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        assert answer.status == 200
    gpu_node.daemon.terminate()
    gpu_node.daemon.wait(10)
    assert gpu_node.start().state().metrics == ""


def test_a_port_that_is_taken_is_said_and_the_daemon_goes_on(gpu_node: GpuNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        viewer = gpu_node.start(metrics=address)
        assert viewer.state().metrics == ""
        [event] = gpu_node.events("metrics")
        assert (event.code, event.level) == ("metrics.unavailable", "warning")
        assert event.fields == {"address": address, "error": "Address already in use"}


@pytest.mark.parametrize("option", ["--metrics=9400", "--metrics", "--nonsense"])
def test_bad_options_are_refused(node: TestNode, option: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hoptui.daemon", option],
        env=node.environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("hoptui.daemon: ")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def old_recordings(node: TestNode) -> list[Path]:
    """Ten recordings of a megabyte, an hour apart."""
    node.where.state.mkdir(mode=0o700, exist_ok=True)
    made = []
    for i in range(10):
        path = node.where.recording(f"old{i}")
        path.write_bytes(bytes(1_000_000))
        made.append(path)
    return made


def test_the_oldest_recordings_go_when_there_are_too_many(
    gpu_node: GpuNode, old_recordings: list[Path]
) -> None:
    for i, path in enumerate(old_recordings):
        age = time.time() - (40 * 86400 if i == 9 else 86400 + 3600 * i)
        os.utime(path, (age, age))
    gpu_node.start(timings={"first_tidy_s": 0.1}, HOPTUI_KEEP_GB="0.0045", HOPTUI_KEEP_DAYS="20")
    kept = until(
        lambda: (k := [p for p in old_recordings if p.exists()]) and len(k) < 6 and k, what="tidying"
    )
    assert kept == old_recordings[:4]


def known(path: Path) -> bool:
    try:
        with Recording.open(path) as recording:
            return recording.recall(RUN) is not None
    except RecordingError:  # it is just being made
        return False


def test_the_recording_of_a_live_run_outlives_a_daemon_that_was_killed(
    gpu_node: GpuNode, old_recordings: list[Path]
) -> None:
    node = gpu_node.node
    for path in old_recordings:
        os.utime(path, (1e9, 1e9))  # too old to be looked into before they go
    viewer = gpu_node.start()
    child = node.start()
    recording = node.where.recording(viewer.run().run)
    until(lambda: recording.exists() and known(recording), what="a recording that says whose it is")
    gpu_node.daemon.kill()
    gpu_node.daemon.wait(10)
    child.send_signal(signal.SIGSTOP)  # it cannot even say hello
    try:
        gpu_node.start(timings={"first_tidy_s": 2}, HOPTUI_KEEP_GB="0.000000001")
        until(lambda: not any(path.exists() for path in old_recordings), what="tidying")
        assert recording.exists()
    finally:
        child.send_signal(signal.SIGCONT)
