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
