"""`hoptui daemon`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from msgspec import structs

from hoptui.cli.commands import daemon as daemon_module
from hoptui.domain.devices import GpuInfo
from hoptui.node import processes
from hoptui.protocol.messages import Event, ViewerHello
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden


def test_daemon_status(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ended = hoptui("daemon")
    assert ended.code == 0
    golden(hoptui.transcript())
    told = hoptui("daemon", "status", "--json").json
    assert (told["running"], told["pid"], told["runs"], told["directory"]) == (
        True,
        77,
        1,
        str(ppo.where.directory),
    )


def test_no_daemon(hoptui: Hoptui, daemon: FakeDaemon, golden: Golden) -> None:
    assert hoptui("daemon", "status").code == 3
    assert hoptui("daemon", "--json").json == {"running": False}
    assert hoptui("daemon", "stop").code == 0
    golden(hoptui.transcript())
    assert hoptui("daemon", "stop", "--json").json == {"running": False, "stopped": None}


def test_daemon_start(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(processes, "start_daemon", lambda where: daemon.start())
    assert hoptui("daemon", "start").code == 0
    assert hoptui("daemon", "start").code == 0
    golden(hoptui.transcript())
    assert hoptui("daemon", "start", "--json").json["already"] is True


def test_a_daemon_that_cannot_start(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = "the daemon could not be started: no disk"

    def fail(where: object) -> None:
        raise processes.StartError(problem)

    monkeypatch.setattr(processes, "start_daemon", fail)
    assert hoptui("daemon", "start") == (3, "", f"hoptui: {problem}\n")


def test_daemon_stop(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    assert hoptui("daemon", "stop").code == 0
    assert hoptui("daemon", "stop").code == 0
    golden(hoptui.transcript())


def test_a_daemon_of_another_version_is_ended_by_its_process(
    hoptui: Hoptui, daemon: FakeDaemon, golden: Golden
) -> None:
    """It cannot be told to end over a protocol that it does not speak."""
    daemon.protocol = 9
    daemon.start()
    code = "import signal, sys; signal.pthread_sigmask(0, []); print('up', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code, "hoptui.daemon"], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        daemon.where.info.write_text(json.dumps({"pid": other.pid}))
        daemon.answer = lambda message: daemon.release_lock() if isinstance(message, ViewerHello) else None
        ended = hoptui("daemon", "stop")
        assert (ended.code, f"pid {other.pid}" in ended.out) == (0, True)
        assert other.wait(10) == -15
        golden(hoptui.transcript(), normalize={str(other.pid): "PID"})


def test_no_stranger_is_ended(hoptui: Hoptui, daemon: FakeDaemon, golden: Golden) -> None:
    daemon.protocol = 9
    daemon.start()
    for info in ("", "{}", '{"pid": 1}'):
        daemon.where.info.write_text(info)
        ended = hoptui("daemon", "stop")
        assert (ended.code, "pid 1," in ended.err) == (3, "pid" in info)
    golden(hoptui.transcript())


def test_daemon_status_tells_of_recordings_and_metrics(
    hoptui: Hoptui, ppo: FakeDaemon, golden: Golden
) -> None:
    gpu = GpuInfo(uuid="GPU-a", index=0, name="H100")
    ppo.node = structs.replace(ppo.node, hz=2.0, metrics="127.0.0.1:9400", gpus=(gpu,))
    ppo.where.state.mkdir(mode=0o700)
    ppo.where.recording("eeee5555").write_bytes(bytes(3 << 20))
    ppo.where.recording("eeee5555").with_suffix(".hoptui-wal").write_bytes(bytes(1 << 20))
    assert hoptui("daemon", "status").code == 0
    golden(hoptui.transcript())
    told = hoptui("daemon", "--json").json
    assert (told["hz"], told["metrics"]) == (2.0, "127.0.0.1:9400")
    assert told["recordings"] == {"count": 1, "size_bytes": 4 << 20}


@pytest.mark.parametrize("words", [("daemon",), ("daemon", "start")], ids=["daemon", "start"])
def test_daemon_with_metrics(
    hoptui: Hoptui,
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    golden: Golden,
) -> None:
    """The daemon inherits the wish through its environment, and has a moment to bind."""
    monkeypatch.delenv("HOPTUI_METRICS", raising=False)

    def start(where: object) -> None:
        asked = os.environ["HOPTUI_METRICS"]
        daemon.start()
        daemon.node = structs.replace(daemon.node, metrics=f"127.0.0.1{asked}")

    monkeypatch.setattr(processes, "start_daemon", start)
    ended = hoptui(*words, "--metrics", ":9400")
    assert (ended.code, "http://127.0.0.1:9400/metrics" in ended.out) == (0, True)
    assert "HOPTUI_METRICS" not in os.environ
    assert hoptui(*words, "--metrics", ":9400").code == 0
    ended = hoptui(*words, "--metrics", ":9500")
    assert (ended.code, ended.out) == (1, "")
    golden(hoptui.transcript())


def test_a_daemon_that_runs_without_metrics(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ended = hoptui("daemon", "--metrics", ":9400")
    assert (ended.code, ended.out) == (1, "")
    golden(hoptui.transcript())


@pytest.mark.parametrize("says", [True, False], ids=["event", "silence"])
def test_metrics_that_cannot_be_served(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, says: bool, golden: Golden
) -> None:
    event = Event(seq=1, t=1, wall=2.0, kind="metrics", text="no metrics for Prometheus: the port is taken")
    daemon.events = [event] if says else []
    monkeypatch.setattr(processes, "start_daemon", lambda where: daemon.start())
    monkeypatch.setattr(daemon_module, "METRICS_S", 60.0 if says else 0.1)
    ended = hoptui("daemon", "--metrics", ":9400")
    assert ended.code == 1
    why = event.text if says else str(daemon.where.log)
    assert ended.err.endswith(f"{why}\n")
    golden(hoptui.transcript())


def test_what_is_no_address(hoptui: Hoptui, daemon: FakeDaemon, golden: Golden) -> None:
    for address in ("9400", "localhost", ":", ":x", ":70000"):
        ended = hoptui("daemon", "--metrics", address)
        assert (ended.code, ended.out) == (2, "")
    golden(hoptui.transcript())
