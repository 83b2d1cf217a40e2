"""`hoptui attach` with several places, `hoptui daemon forward` there: the words before the dashboard."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hoptui.cli import launcher
from hoptui.client.routes import Here, There, Way
from hoptui.client.target import Place
from hoptui.protocol.messages import PROTOCOL
from hoptui.tui import hosts_app
from tests.cli.conftest import Hoptui
from tests.client.slurm_programs import write_programs
from tests.conftest import TestNode, until
from tests.golden import Golden


@pytest.fixture(autouse=True)
def drawable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_drawable", lambda: True)


def test_wrong_places_are_one_sentence(hoptui: Hoptui, golden: Golden) -> None:
    for words in ("ssh://", "ssh://a:b@c", "a b", "ssh://x/a ssh://x/b", "ssh://x old.hoptui"):
        ended = hoptui("attach", *words.split())
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert ":b@" not in ended.err, "no password is printed"
    golden(hoptui.transcript())


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on the PATH with stand-ins for the programs of Slurm."""
    write_programs(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{tmp_path / 'slurm'}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    return tmp_path / "slurm"


def test_a_slurm_job_is_its_first_node(
    hoptui: Hoptui, slurm: Path, monkeypatch: pytest.MonkeyPatch, node: TestNode
) -> None:
    opened: list[Any] = []

    def run(ways: Mapping[str, Way], here: str | None, run: str | None, *, config: object) -> int:
        opened.append((list(ways), [type(way) for way in ways.values()], here, run))
        return 0

    monkeypatch.setattr(There, "begin", lambda way, now: None)
    monkeypatch.setattr(hosts_app, "run", run)
    assert hoptui("attach", "slurm:3", "slurm:1/gpu02/ppo", "local").code == 0
    assert opened == [(["gpu03", "gpu02", "local"], [There, There, Here], "gpu02", "ppo")]


def test_jobs_without_a_node_are_one_sentence(hoptui: Hoptui, slurm: Path, golden: Golden) -> None:
    for words, code in (("slurm:x", 2), ("slurm:5", 3), ("--srun ppo", 2), ("--srun slurm:1 slurm:3", 2)):
        ended = hoptui("attach", *words.split())
        assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1)
    golden(hoptui.transcript())


def test_srun_replaces_this_process_by_a_dashboard_on_the_node(
    hoptui: Hoptui, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[list[str]] = []

    def execvp(program: str, words: list[str]) -> None:
        executed.append([program, *words])
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(launcher, "interactive", lambda: True)
    monkeypatch.setattr(os, "execvp", execvp)
    ended = hoptui("attach", "--srun", "slurm:3/gpu02/ppo", "--theme", "light", "--read-only", "--no-mouse")
    assert (ended.code, ended.err) == (3, "hoptui: srun cannot be started: No such file or directory\n")
    job = ["--jobid=3", "--het-group=1"]
    one = ["--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu02", "--pty"]
    dashboard = ["hoptui", "attach", "--theme=light", "--no-mouse", "--read-only", "ppo"]
    assert executed == [["srun", "srun", *job, *one, *dashboard]]


def test_hosts_are_set_out_for_before_the_dashboard_opens(
    hoptui: Hoptui, monkeypatch: pytest.MonkeyPatch, node: TestNode
) -> None:
    begun: list[Place] = []
    opened: list[Any] = []
    monkeypatch.setattr(There, "begin", lambda way, now: begun.append(way.place))

    def run(ways: Mapping[str, Way], here: str | None, run: str | None, *, config: object) -> int:
        opened.append((list(ways), [type(way) for way in ways.values()], here, run))
        return 0

    monkeypatch.setattr(hosts_app, "run", run)
    assert hoptui("attach", "ssh://ana@a", "local", "ssh://b:2222/ppo", "ssh://ana@a/").code == 0
    assert begun == [Place("a", "ana"), Place("b", "", 2222)]
    assert opened == [(["ana@a", "local", "b:2222"], [There, Here, There], "b:2222", "ppo")]


def test_a_place_without_a_directory_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hoptui: Hoptui, golden: Golden
) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "open"))
    assert hoptui("attach", "ssh://a").code == 3
    golden(hoptui.transcript())


@pytest.mark.guarantee("ssh-line")
def test_the_other_end_lends_its_socket_for_as_long_as_it_is_listened_to(
    node: TestNode, tmp_path: Path
) -> None:
    link = tmp_path / "via" / "viewers.sock"
    command = [sys.executable, "-m", "hoptui", "daemon", "forward", str(link)]
    other = subprocess.Popen(
        command, env=node.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        told = json.loads(other.stdout.readline())
        assert (told["protocol"], told["user"] != "") == (PROTOCOL, True)
        assert link.resolve() == node.where.viewers
        assert link.parent.stat().st_mode & 0o777 == 0o700
        before = until(node.daemon_pid)
        os.kill(before, 9)
        assert json.loads(other.stdout.readline())["protocol"] == PROTOCOL, "another daemon is told"
        assert until(node.daemon_pid) != before
        second = subprocess.run(
            command, env=node.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert second.returncode == 1
        assert f"{link} " in second.stderr
        assert os.strerror(errno.EEXIST) in second.stderr
    finally:
        other.communicate(timeout=20)
    assert other.returncode == 0
    assert not link.parent.exists()


@pytest.mark.parametrize("words", [[], ["relative/path"], ["/a", "/b"]])
def test_the_other_end_is_not_for_people(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from hoptui.cli.commands.daemon_forward import main

    assert main(words) == 2
    assert "hoptui attach ssh://HOST" in capsys.readouterr().err
