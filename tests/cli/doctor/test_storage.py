from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hoptui.cli.doctor import storage
from tests.client.fake_daemon import FakeDaemon


def test_the_file_system_of_a_path(tmp_path: Path) -> None:
    mounts = f"/dev/a / ext4 rw 0 0\nnas:/x {tmp_path} nfs4 rw 0 0\ntmp {tmp_path}/b\\040c tmpfs rw 0 0\n"
    assert storage.file_system(Path("/usr"), mounts) == "ext4"
    assert storage.file_system(tmp_path / "runs", mounts) == "nfs4"
    assert storage.file_system(tmp_path / "b c" / "x", mounts) == "tmpfs"


def test_recordings_on_a_network_file_system(daemon: FakeDaemon, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("nas:/x / nfs4 rw 0 0\n")
    assert storage.state_directory(daemon.where, mounts).status == "warning"


def test_directories_that_cannot_be_written(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.runtime_directory(daemon.where).status == "ok"
    assert storage.state_directory(daemon.where).status == "ok"
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # as on a read-only file system
    for found, directory in (
        (storage.runtime_directory(daemon.where), daemon.where.directory),
        (storage.state_directory(daemon.where), daemon.where.state),
    ):
        assert (found.status, found.detail) == ("failed", f"{directory} cannot be written")


def test_a_full_disk(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.disk(daemon.where).status == "ok"
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    found = storage.disk(daemon.where)
    assert (found.status, found.advice) == (
        "warning",
        f"make room on the disk of {daemon.where.directory} (a full disk keeps no history)",
    )


def test_the_recordings_check(daemon: FakeDaemon) -> None:
    assert storage.recordings(daemon.where, {}).detail == "0 recordings, 0 B of 10 GB"
    daemon.where.state.mkdir(mode=0o700)
    (daemon.where.state / "ffff6666.hoptui").write_bytes(b"not a database at all" * 100)
    found = storage.recordings(daemon.where, {"HOPTUI_KEEP_GB": "1"})
    assert (found.status, found.detail) == (
        "warning",
        "1 recording, 2.1 KiB of 1 GB; cannot be read: ffff6666",
    )
    for name in ("HOPTUI_KEEP_GB", "HOPTUI_KEEP_DAYS", "HOPTUI_RUN_GB"):
        found = storage.recordings(daemon.where, {name: "nan"})
        assert found.status == "warning"
        assert f"of 10 GB; {name}='nan' is no positive number" in found.detail


def test_sockets_open_to_others(ppo: FakeDaemon) -> None:
    found = storage.sockets(ppo.where, 0.0002)
    assert found.detail == f"{ppo.where.runs} is not there"
    os.link(ppo.where.viewers, ppo.where.runs)
    ppo.where.viewers.chmod(0o600)
    assert storage.sockets(ppo.where, 0.0002).detail == f"{ppo.where.viewers} answers in 200 µs"
    ppo.where.viewers.chmod(0o666)
    assert storage.sockets(ppo.where, 0.0002).status == "warning"
