"""`record`: a recording of the node without a run, its end, and what other commands make of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.model.recorded.store import RecordedStore
from hoptui.protocol.messages import Fetch, FromViewer, ToViewer
from hoptui.protocol.recorded_processes import decode_processes
from hoptui.recording import Recording
from hoptui.recording.timed_states import PROCESSES
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.factories import SECOND
from tests.golden import Golden

GPU = GpuInfo(uuid="GPU-a", index=0, name="NVIDIA H100 80GB HBM3")


@pytest.fixture
def node(daemon: FakeDaemon) -> FakeDaemon:
    """A node with a GPU and a run; each fetch finds ten more rows a second of both, an event of the GPU and
    one of the run.
    """
    daemon.add(factories.run(gpus=("GPU-a",)))
    daemon.node = structs.replace(daemon.node, gpus=(GPU,), gpu_problem=None)
    fetched = 0

    def answer(message: FromViewer) -> None:
        nonlocal fetched
        if isinstance(message, Fetch) and message.cursors and not message.latest:
            fetched += 1
            start = daemon.now + (1 + fetched) * 10 * SECOND
            rows = [(start + i * SECOND // 10, -1, {"power_w": float(i)}) for i in range(20)]
            rows[3][2]["ecc_corrected"] = 5.0
            daemon.columns = [
                pack("gpu/GPU-a", rows),
                pack("host", [(start, -1, {"cpu_percent": 40.0})]),
                pack("run/abcd2345", [(start, 1, {"loss": 0.5})]),
            ]
            daemon.events = [
                factories.event(2 * fetched, "xid", t=start, code="gpu.xid", source="gpu/GPU-a"),
                factories.event(2 * fetched + 1, "note", "of the run", t=start, run="abcd2345"),
            ]

    daemon.answer = answer
    daemon.start()
    return daemon


def test_the_node_is_recorded_and_no_run(hoptui: Hoptui, node: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "node.hoptui"
    ended = hoptui("record", "-o", str(path), "--seconds", "0.3", "--interval", "0.1")
    assert ended.code == 0
    assert [file.name for file in tmp_path.glob("node*")] == ["node.hoptui"], "nothing is left beside it"
    with Recording.open(path, still=True) as recording:
        assert recording.sources().keys() == {"gpu/GPU-a", "host"}
        assert recording.sources()["gpu/GPU-a"][2] % 20 == 0
        assert {event.run for event in recording.events()} == {""}
        store = RecordedStore(recording)
        store.seek(store.span[1])
        assert store.node is not None
        assert (store.node.gpus[0].uuid, store.node.runs) == ("GPU-a", ())
    asked = [m for m in node.of(Fetch) if isinstance(m, Fetch) and m.cursors and not m.latest]
    assert asked[-1].hz == 10.0
    lines = hoptui("export", str(path), "--format", "jsonl").out.splitlines()
    assert {json.loads(line)["type"] for line in lines} == {"row", "event"}
    assert hoptui("report", str(path)).code == 1
    assert hoptui("export", str(path), "--since", "#3").code == 2


def test_the_processes_on_the_gpus_are_recorded_without_their_arguments(
    hoptui: Hoptui, node: FakeDaemon, tmp_path: Path
) -> None:
    node.processes = (GpuProcess(gpu="GPU-a", pid=7, user="ana", command="python train.py --token s3cret"),)
    path = tmp_path / "node.hoptui"
    assert hoptui("record", "-o", str(path), "--seconds", "0.3", "--interval", "0.1").code == 0
    with Recording.open(path, still=True) as recording:
        (stored,) = recording.states(PROCESSES)
    (found,) = decode_processes(stored.body).processes
    assert (found.pid, found.user, found.command) == (7, "ana", "python train.py")


def test_rows_between_are_merged_into_the_next(hoptui: Hoptui, node: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "node.hoptui"
    assert hoptui("record", "-o", str(path), "--seconds", "0.2", "--interval", "0.5").code == 0
    with Recording.open(path) as recording:
        rows = [row for part in recording.rows("gpu/GPU-a") for row in part.rows()]
    first = rows[0][0]
    assert [(t - first) / SECOND for t, _, _ in rows[:4]] == pytest.approx([0, 0.5, 1.0, 1.5])
    assert rows[1][2] == {"power_w": 5.0, "ecc_corrected": 5.0}, "a reading that is seldom is not lost"


def test_a_file_is_overwritten_only_with_force(
    hoptui: Hoptui, node: FakeDaemon, tmp_path: Path, golden: Golden
) -> None:
    path = tmp_path / "node.hoptui"
    words = ("record", "-o", str(path), "--seconds", "0.1")
    assert hoptui(*words).code == 0
    before = path.read_bytes()
    hoptui.transcript()
    assert hoptui(*words).code == 1
    assert path.read_bytes() == before
    golden(hoptui.transcript())
    assert hoptui(*words, "--force").code == 0
    assert path.read_bytes() != before
    hoptui.transcript()
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert hoptui("record", "-o", str(notes), "--force").code == 1
    assert notes.read_text() == "mine"
    node.where.state.mkdir(mode=0o700, exist_ok=True)
    assert hoptui("record", "-o", str(node.where.state / "mine.hoptui"), "--force").code == 1
    golden(hoptui.transcript(), name="what is refused")


@pytest.mark.parametrize(
    "words",
    [("-o", "-"), (), ("-o", "a.hoptui", "--interval", "0"), ("-o", "a.hoptui", "--seconds", "nan")],
)
def test_options_that_make_no_sense_are_refused(
    hoptui: Hoptui, node: FakeDaemon, words: tuple[str, ...], golden: Golden
) -> None:
    assert hoptui("record", *words).code == 2
    golden(hoptui.transcript())


def test_without_readings_no_file_is_left(hoptui: Hoptui, ppo: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "node.hoptui"
    ended = hoptui("record", "-o", str(path), "--seconds", "0.1")
    assert (ended.code, path.exists()) == (3, False)
    assert "there were no readings" in ended.err


def test_a_daemon_that_is_gone_is_replaced(
    hoptui: Hoptui, node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("ANSWER_S", 0.2), ("RETURN_S", 0.0), ("SAMPLER_S", 0.0)):
        monkeypatch.setattr(f"hoptui.cli.support.snapshot.{name}", seconds)
    tell, turns, restarts = node.answer, 0, 0

    def answer(message: FromViewer) -> list[ToViewer] | None:
        nonlocal turns
        if isinstance(message, Fetch) and message.hz:
            turns += 1
            if turns == 3:
                node.release_lock()
                return []
        return tell(message)

    def start(where: object) -> None:
        nonlocal restarts
        restarts += 1
        node.hang()
        node.events = []
        node.start()

    node.answer = answer
    monkeypatch.setattr("hoptui.node.processes.start_daemon", start)
    path = tmp_path / "node.hoptui"
    ended = hoptui("record", "-o", str(path), "--seconds", "1.5", "--interval", "0.1")
    assert (ended.code, restarts) == (0, 1)
    assert "connecting again" in ended.err
    with Recording.open(path) as recording:
        assert recording.sources()["gpu/GPU-a"][2] >= 20 * 3
        seqs = [event.seq for event in recording.events()]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) >= 3, "those of the daemon before are kept"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_leave_a_whole_recording(
    node: FakeDaemon, tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "node.hoptui"
    places = {"HOPTUI_DIR": str(node.where.directory), "HOPTUI_STATE_DIR": str(node.where.state)}
    command = [sys.executable, "-m", "hoptui", "record", "-o", str(path), "--interval", "0.1"]
    with subprocess.Popen(
        command, env=os.environ | places, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        end = time.monotonic() + 20
        while len([m for m in list(node.received) if isinstance(m, Fetch) and m.hz]) < 3:
            assert time.monotonic() < end
            time.sleep(0.02)
        child.send_signal(number)
        out, err = child.communicate(timeout=10)
    assert (child.returncode, "Traceback" in err) == (0, False)
    assert out.startswith(f"{path}: ")
    assert [file.name for file in tmp_path.glob("node*")] == ["node.hoptui"]
    with Recording.open(path, still=True) as recording:
        assert recording.sources()["gpu/GPU-a"][2] >= 20
