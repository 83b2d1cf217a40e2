"""`daemon`, `doctor` and `history`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from hoptui.cli import doctor as doctor_module
from hoptui.cli.doctor import file_system
from hoptui.recording import Recording
from hoptui.wire import presence
from hoptui.wire.devices import GpuInfo
from hoptui.wire.messages import Measured, Origin, ViewerHello
from tests.cli.conftest import Hoptui
from tests.viewer.fake_daemon import FakeDaemon, make_node, make_record, make_run

# daemon ----------------------------------------------------------------------------------------------------------------


def test_daemon_status(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ended = hoptui("daemon")
    assert ended.code == 0
    first, second = ended.out.splitlines()
    assert first.startswith("the daemon is running: pid 77, hoptui 0.1.0, for ")
    assert second == "1 live run"
    told = hoptui("daemon", "status", "--json").json
    assert (told["running"], told["pid"], told["runs"], told["directory"]) == (
        True,
        77,
        1,
        str(ppo.where.directory),
    )


def test_no_daemon(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    assert hoptui("daemon", "status").code == 3
    assert hoptui("daemon", "--json").json == {"running": False}
    assert hoptui("daemon", "stop") == (0, "no daemon is running\n", "")
    assert hoptui("daemon", "stop", "--json").json == {"running": False, "stopped": None}


def test_daemon_start(hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "start_daemon", lambda where: daemon.start())
    assert hoptui("daemon", "start") == (0, "the daemon is running: pid 77\n", "")
    assert hoptui("daemon", "start") == (0, "the daemon was running already: pid 77\n", "")
    assert hoptui("daemon", "start", "--json").json["already"] is True


def test_a_daemon_that_cannot_start(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(where: object) -> None:
        raise presence.StartError("the daemon could not be started: no disk")

    monkeypatch.setattr(presence, "start_daemon", fail)
    assert hoptui("daemon", "start") == (3, "", "hoptui: the daemon could not be started: no disk\n")


def test_daemon_stop(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    assert hoptui("daemon", "stop") == (0, "the daemon (pid 77) has ended; training goes on\n", "")
    assert hoptui("daemon", "stop").out == "no daemon is running\n"


def test_a_daemon_of_another_version_is_ended_by_its_process(hoptui: Hoptui, daemon: FakeDaemon) -> None:
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
        assert (ended.code, ended.out) == (0, f"the daemon (pid {other.pid}) has ended; training goes on\n")
        assert other.wait(10) == -15


@pytest.mark.parametrize(
    ("info", "complaint"),
    [
        ("", "does not say which process it is"),
        ("{}", "does not say which process it is"),
        ('{"pid": 1}', "pid 1, named in"),
    ],
)
def test_no_stranger_is_ended(hoptui: Hoptui, daemon: FakeDaemon, info: str, complaint: str) -> None:
    daemon.protocol = 9
    daemon.start()
    daemon.where.info.write_text(info)
    ended = hoptui("daemon", "stop")
    assert ended.code == 3
    assert complaint in ended.err


# doctor ----------------------------------------------------------------------------------------------------------------


def diagnose(hoptui: Hoptui) -> tuple[int, dict[str, dict[str, Any]]]:
    ended = hoptui("doctor", "--json")
    checks = ended.json["checks"]
    assert all(set(check) == {"id", "status", "detail", "advice"} for check in checks)
    assert all(check["advice"] or check["status"] == "ok" for check in checks)
    return ended.code, {check["id"]: check for check in checks}


def test_all_is_well(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    gpu = GpuInfo(uuid="GPU-a", index=0, name="NVIDIA H100 80GB HBM3", driver="580.65")
    ppo.node = structs.replace(ppo.node, gpus=(gpu,), gpu_reason="")
    code, checks = diagnose(hoptui)
    assert code == 0
    assert list(checks) == [
        "python",
        "zmq",
        "terminal",
        "runtime-directory",
        "state-directory",
        "daemon",
        "viewers-socket",
        "nvml",
    ]
    assert checks["nvml"]["detail"] == "0: NVIDIA H100 80GB HBM3, driver 580.65"


def test_no_gpu_is_a_warning(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    code, checks = diagnose(hoptui)
    assert code == 1
    assert (checks["nvml"]["status"], checks["nvml"]["detail"]) == ("warning", "no driver")
    text = hoptui("doctor").out
    assert "✓ python" in text
    assert "⚠ nvml               no driver" in text


def test_a_lost_gpu_and_a_silent_sampler(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module, "SAMPLER_S", 0.1)
    lost = GpuInfo(uuid="GPU-a", index=0, name="H100", reason="GPU is lost")
    ppo.node = structs.replace(
        make_node(make_run()), gpus=(lost,), sampler="no readings", history="the disk is full"
    )
    code, checks = diagnose(hoptui)
    assert code == 2
    assert checks["nvml"]["detail"] == "GPU 0: GPU is lost"
    assert checks["sampler"]["status"] == "failed"
    assert checks["history"]["detail"] == "the disk is full"


def test_a_bad_directory_ends_the_checks(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    daemon.where.directory.chmod(0o755)
    code, checks = diagnose(hoptui)
    assert code == 2
    assert checks["runtime-directory"]["status"] == "failed"
    assert "daemon" not in checks


def test_a_daemon_that_does_not_start(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(where: object) -> None:
        raise presence.StartError("the daemon could not be started: no disk")

    monkeypatch.setattr(presence, "start_daemon", fail)
    code, checks = diagnose(hoptui)
    assert code == 2
    assert checks["daemon"]["detail"] == "the daemon could not be started: no disk"


def test_the_file_system_of_a_path(tmp_path: Path) -> None:
    mounts = f"/dev/a / ext4 rw 0 0\nnas:/x {tmp_path} nfs4 rw 0 0\ntmp {tmp_path}/b\\040c tmpfs rw 0 0\n"
    assert file_system(Path("/usr"), mounts) == "ext4"
    assert file_system(tmp_path / "runs", mounts) == "nfs4"
    assert file_system(tmp_path / "b c" / "x", mounts) == "tmpfs"


# history ---------------------------------------------------------------------------------------------------------------


def test_history(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    gain = Measured(gain=0.061, interval=0.012, detectable=True)
    ppo.commands = [
        make_record("c1", measured=gain, why="more\x07 work", seq=1),
        make_record(
            "c2", verb="stop", knob="", origin=Origin(kind="tuner"), stage="rejected", reason="no", seq=2
        ),
        make_record("c3", "another", seq=3),
    ]
    ended = hoptui("history", "ppo")
    assert ended.code == 0
    first, second = ended.out.splitlines()
    assert first.endswith("ana (pid 4121)  grad_accum 4 → 8  applied at 1 205  +6.1 % ± 1.2  “more work”")
    assert second.split()[2:] == ["tuner", "stop", "rejected:", "no"]
    told = hoptui("history", "ppo", "--json").json
    assert [command["id"] for command in told] == ["c1", "c2"]
    assert told[0]["by"] == {"kind": "person", "user": "ana", "pid": 4121}
    assert told[0]["measured"]["gain"] == 0.061


def test_no_history_yet(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    assert hoptui("history", "ppo").out == "nobody has given ppo (abcd2345) a command\n"


class Known(msgspec.Struct):
    state: Any


@pytest.mark.parametrize("with_daemon", [False, True])
def test_a_run_that_only_a_recording_knows(hoptui: Hoptui, daemon: FakeDaemon, with_daemon: bool) -> None:
    over = make_run("eeee5555", "old", exit_reason="finished")
    with Recording.create(daemon.where.recording("eeee5555")) as recording:
        recording.remember("run", msgspec.json.encode(Known(over)))
        recording.command(make_record("c1", "eeee5555"))
    (daemon.where.state / "junk.hoptui").write_bytes(b"not a database at all")
    if with_daemon:
        daemon.start()
    for name in ("old", "eeee5555", "eee"):
        assert [command["id"] for command in hoptui("history", name, "--json").json] == ["c1"]
    ended = hoptui("history", "nope")
    assert ended.code == 3
    assert (
        ended.err == f"hoptui: no run 'nope' on this node, and no recording of one in {daemon.where.state}\n"
    )


def test_no_recordings_at_all(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    assert hoptui("history", "nope").code == 3
