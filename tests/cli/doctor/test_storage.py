from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hoptui.cli.doctor import storage
from hoptui.node.addresses import Addresses
from hoptui.node.processes import whose_pids
from tests.cli.doctor.conftest import listed
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden


def test_the_file_system_of_a_path(tmp_path: Path) -> None:
    mounts = f"/dev/a / ext4 rw 0 0\nnas:/x {tmp_path} nfs4 rw 0 0\ntmp {tmp_path}/b\\040c tmpfs rw 0 0\n"
    assert storage.file_system(Path("/usr"), mounts) == "ext4"
    assert storage.file_system(tmp_path / "runs", mounts) == "nfs4"
    assert storage.file_system(tmp_path / "b c" / "x", mounts) == "tmpfs"


def test_recordings_on_a_network_file_system(daemon: FakeDaemon, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("nas:/x / nfs4 rw 0 0\n")
    assert storage.state_directory(daemon.where, mounts).status == "warning"


def test_directories_that_cannot_be_written(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    assert storage.runtime_directory(daemon.where).status == "ok"
    assert storage.state_directory(daemon.where).status == "ok"
    text = ""
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # as on a read-only file system
    for found, directory in (
        (storage.runtime_directory(daemon.where), daemon.where.directory),
        (storage.state_directory(daemon.where), daemon.where.state),
    ):
        assert (found.status, str(directory) in found.detail) == ("failed", True)
        text += listed(found)
    golden(text, normalize={re.escape(str(daemon.where.directory.parent)): ""})


def test_a_full_disk(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    assert storage.disk(daemon.where).status == "ok"
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    found = storage.disk(daemon.where)
    assert found.status == "warning"
    assert str(daemon.where.directory) in found.advice
    golden(listed(found), normalize={re.escape(str(daemon.where.directory.parent)): ""})


def test_the_recordings_check(daemon: FakeDaemon, golden: Golden) -> None:
    text = listed(storage.recordings(daemon.where, {}))
    daemon.where.state.mkdir(mode=0o700)
    (daemon.where.state / "ffff6666.hoptui").write_bytes(b"not a database at all" * 100)
    found = storage.recordings(daemon.where, {"HOPTUI_KEEP_GB": "1"})
    assert found.status == "warning"
    assert "ffff6666" in found.detail
    text += listed(found)
    for name in ("HOPTUI_KEEP_GB", "HOPTUI_KEEP_DAYS", "HOPTUI_RUN_GB"):
        found = storage.recordings(daemon.where, {name: "nan"})
        assert found.status == "warning"
        assert f"{name}='nan'" in found.detail
        text += listed(found)
    golden(text)


def test_sockets_open_to_others(ppo: FakeDaemon, golden: Golden) -> None:
    found = storage.sockets(ppo.where, 0.0002)
    assert str(ppo.where.runs) in found.detail
    os.link(ppo.where.viewers, ppo.where.runs)
    ppo.where.viewers.chmod(0o600)
    whole = storage.sockets(ppo.where, 0.0002)
    assert (str(ppo.where.viewers) in whole.detail, "200 µs" in whole.detail) == (True, True)
    ppo.where.viewers.chmod(0o666)
    others = storage.sockets(ppo.where, 0.0002)
    assert others.status == "warning"
    golden(listed(found, whole, others), normalize={re.escape(str(ppo.where.directory.parent)): ""})


def test_the_lock(tmp_path: Path) -> None:
    where = Addresses(tmp_path, tmp_path)
    assert storage.lock(where, 1).status == "warning", "it was deleted"
    code = (
        "import fcntl,os,sys; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.lockf(f, fcntl.LOCK_EX)"
    )
    command = [sys.executable, "-c", f"{code}; print(flush=True); input()", str(where.lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert storage.lock(where, holder.pid).status == "ok"
        another = storage.lock(where, 1)
        holder.communicate(b"\n")
    assert whose_pids() != "machine" or (another.status, str(holder.pid) in another.detail) == (
        "warning",
        True,
    )
