"""The tunnel with a scripted process and a scripted clock; ssh's command line, and its ends in words."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from hoptui.client import tunnel
from hoptui.client.routes import There
from hoptui.client.target import Place
from hoptui.client.tunnel import AGAIN_S, LOOK_S, OPEN_S, SshProcess, Tunnel, sweep
from hoptui.node.addresses import AddressError
from hoptui.protocol import VERSION
from hoptui.protocol.messages import PROTOCOL
from tests.conftest import until
from tests.golden import Golden, sheet

WORD = f'{{"protocol":{PROTOCOL},"version":"0.1.0","user":"ana"}}'


class Fake:
    """An ssh that binds its socket at once."""

    def __init__(self, words: Sequence[str]) -> None:
        self.path = Path(words[words.index("-L") + 1].partition(":")[0])
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self.said: list[str] = []
        self.errors = ""
        self.ended_with: int | None = None
        self.waits_on = [7]
        self.ended = 0

    def lines(self) -> list[str]:
        said, self.said = self.said, []
        return said

    def code(self) -> int | None:
        return self.ended_with

    def end(self) -> None:
        self._socket.close()
        self.ended += 1


class Bored:
    """A tunnel that has been opened at 0 s."""

    def __init__(self, directory: Path) -> None:
        self.started: list[Fake] = []
        self.tunnel = Tunnel(Place("gpu07"), directory, spawn=self.spawn)
        self.tunnel.open(0.0)

    def spawn(self, words: Sequence[str]) -> Fake:
        self.started.append(Fake(words))
        return self.started[-1]

    @property
    def ssh(self) -> Fake:
        return self.started[-1]


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="hoptui-"))  # short enough for a socket
    yield path
    shutil.rmtree(path)


@pytest.fixture
def bored(directory: Path) -> Iterator[Bored]:
    found = Bored(directory)
    yield found
    found.tunnel.close()


def test_it_is_open_once_the_other_end_has_spoken(bored: Bored, directory: Path) -> None:
    tunnel = bored.tunnel
    tunnel.poll(0.1)
    assert (tunnel.state, tunnel.socket, tunnel.reason) == ("opening", None, "connecting to gpu07")
    assert tunnel.wake_at() == OPEN_S
    bored.ssh.said = ["Last login: Monday", WORD]
    tunnel.poll(0.2)
    assert (tunnel.state, tunnel.socket, tunnel.user) == ("open", bored.ssh.path, "ana")
    assert tunnel.wake_at() == float("inf")
    tunnel.close()
    assert bored.ssh.ended == 1
    assert list(directory.iterdir()) == []


def test_an_end_is_tried_again_with_patience_that_service_restores(bored: Bored) -> None:
    tunnel, now = bored.tunnel, 0.0
    for wait in (*AGAIN_S, AGAIN_S[-1]):
        before = bored.ssh
        why = "connect to host gpu07 port 22: No route to host"
        before.ended_with, before.errors = 255, f"ssh: {why}\r\n"
        tunnel.poll(now)
        assert (tunnel.state, tunnel.socket) == ("waiting", None)
        assert tunnel.reason == f"gpu07: {why}"
        assert tunnel.wake_at() == now + wait
        tunnel.poll(now + wait - 0.01)
        assert bored.ssh is before
        now += wait
        tunnel.poll(now)
        assert bored.ssh is not before
        assert bored.ssh.path != before.path
        assert not before.path.exists()
    bored.ssh.said = [WORD]
    tunnel.poll(now)
    tunnel.served()
    bored.ssh.ended_with = 255
    tunnel.poll(now)
    assert tunnel.wake_at() == now + AGAIN_S[0]


def test_what_does_not_help_by_itself_waits_for_a_person(bored: Bored) -> None:
    tunnel = bored.tunnel
    bored.ssh.ended_with, bored.ssh.errors = 255, "ana@gpu07: Permission denied (publickey)."
    tunnel.poll(0.1)
    assert tunnel.state == "refused"
    assert tunnel.wake_at() == float("inf")
    tunnel.poll(1e6)
    assert len(bored.started) == 1
    tunnel.again(1e6)
    assert (tunnel.state, len(bored.started)) == ("opening", 2)


def test_another_protocol_is_refused_in_words(bored: Bored, golden: Golden) -> None:
    bored.ssh.said = [WORD.replace(f'"protocol":{PROTOCOL}', f'"protocol":{PROTOCOL + 1}')]
    bored.tunnel.poll(0.1)
    assert bored.tunnel.state == "refused"
    golden(
        bored.tunnel.reason,
        normalize={
            re.escape(VERSION): "VERSION",
            rf"\b{PROTOCOL + 1}\b": "THEIRS",
            rf"\b{PROTOCOL}\b": "OURS",
        },
    )
    assert bored.ssh.ended == 1


def test_without_its_socket_it_is_of_no_use(bored: Bored) -> None:
    bored.ssh.path.unlink()
    why = "cannot bind to path"
    bored.ssh.said, bored.ssh.errors = [WORD], f"unix_listener: {why}\n"
    bored.tunnel.poll(0.1)
    assert bored.tunnel.state == "waiting"
    assert bored.tunnel.reason.endswith(why)


def test_an_other_end_that_says_nothing_is_given_up(bored: Bored, golden: Golden) -> None:
    bored.tunnel.poll(OPEN_S)
    assert (bored.tunnel.state, f"{OPEN_S:g} s" in bored.tunnel.reason) == ("waiting", True)
    golden(bored.tunnel.reason)
    assert bored.ssh.ended == 1


def test_an_ssh_that_has_closed_its_outputs_is_looked_at_again_soon(bored: Bored) -> None:
    bored.ssh.waits_on = []
    bored.tunnel.poll(1.0)
    assert bored.tunnel.wake_at() == 1.0 + LOOK_S


def test_a_new_daemon_there_is_told(bored: Bored, directory: Path) -> None:
    for count in (1, 2):
        bored.ssh.said = [WORD]
        bored.tunnel.poll(0.1)
        assert bored.tunnel.daemons == count
    assert bored.tunnel.state == "open"


def test_no_ssh_on_this_machine(directory: Path, golden: Golden) -> None:
    def spawn(words: Sequence[str]) -> Fake:
        raise FileNotFoundError(2, "No such file or directory")

    tunnel = Tunnel(Place("gpu07"), directory, spawn=spawn)
    tunnel.open(0.0)
    assert tunnel.state == "refused"
    golden(tunnel.reason)


def test_a_path_too_long_for_a_socket_is_named(directory: Path) -> None:
    with pytest.raises(AddressError, match="HOPTUI_DIR"):
        Tunnel(Place("gpu07"), directory / ("x" * 90), spawn=Fake).open(0.0)


def test_the_sockets_of_the_dead_are_swept(directory: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getpid()):
        (directory / f"ssh-{pid}-abc").touch()
    sweep(directory)
    assert [path.name for path in directory.iterdir()] == [f"ssh-{os.getpid()}-abc"]


def test_a_child_is_told_first_and_killed_last() -> None:
    polite = SshProcess(["sh", "-c", "echo one; echo no >&2; cat >/dev/null; exit 5"])
    until(lambda: polite.lines() == ["one"])
    until(lambda: (polite.lines(), polite.errors)[1] == "no\n")
    polite.end()
    assert polite.code() == 5
    stubborn = SshProcess(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"])
    until(lambda: stubborn.lines() == ["up"])
    stubborn.end()
    assert stubborn.code() == -9


def test_a_way_that_was_not_set_out_on_leads_nowhere() -> None:
    way = There(Place("gpu07"))
    assert (way.socket, way.user, way.waits_on) == (None, "", [])
    way.again(0.0)
    way.close()


GPU07 = Place("gpu07", "ana", 2222)


@pytest.mark.guarantee("ssh-line")
def test_the_command_line() -> None:
    there = "/tmp/hoptui-via-a/viewers.sock"
    words = tunnel.command(GPU07, Path("/tmp/h/ssh-1-a"), there)
    assert words[0] == "ssh"
    assert words[-3:] == ["--", "ana@gpu07", f"hoptui daemon forward {there}"]
    assert words[words.index("-L") + 1] == f"/tmp/h/ssh-1-a:{there}"
    assert words[words.index("-p") + 1] == "2222"
    options = {word for before, word in pairwise(words) if before == "-o"}
    assert {"BatchMode=yes", "ControlMaster=no", "RemoteCommand=none", "ServerAliveInterval=5"} <= options
    assert {"ForwardAgent=no", "ForwardX11=no", "StreamLocalBindMask=0177"} <= options


@pytest.mark.parametrize(
    ("hoptui", "there"),
    [
        ("/opt/my venv/bin/hoptui", "'/opt/my venv/bin/hoptui' daemon"),
        ("~/v/bin/hoptui", "~/v/bin/hoptui daemon"),
        ("~/a b", "~/'a b' daemon"),
        ("x; rm -rf /", "'x; rm -rf /' daemon"),
    ],
)
def test_the_command_there_is_one_word_of_the_shell(hoptui: str, there: str) -> None:
    assert tunnel.command(GPU07, Path("/l"), "/r", hoptui)[-1].startswith(there)


def test_its_end_in_words(golden: Golden) -> None:
    sentences = {}
    for code, errors, lasting in (
        (255, "ana@gpu07: Permission denied (publickey).", True),
        (255, "ana@gate: Permission denied (publickey).\nConnection closed by UNKNOWN port 65535", True),
        (126, "bash: line 1: /opt/hoptui: Permission denied", True),
        (255, "No ED25519 host key is known\nHost key verification failed.", True),
        (127, "bash: line 1: hoptui: command not found", True),
        (127, "", True),
        (1, "hoptui: Command not found.", True),
        (255, "/bin/sh: 1: nc: not found\nConnection closed by UNKNOWN", False),
        (255, "/bin/sh: 1: nc: not found", False),
        (0, "", False),
        (2, "hoptui: hoptui daemon does not take 'forward'; try hoptui --help", True),
        (255, "ssh: Could not resolve hostname gpu07: Name or service not known", False),
        (255, "kex_exchange\nssh: connect to host gpu07 port 2222: Connection refused", False),
        (3, "hoptui: the daemon could not be started: no disk", False),
        (255, "", False),
    ):
        ended = tunnel.ended(GPU07, code, errors)
        assert ended.lasting == lasting
        assert "\n" not in ended.text
        sentences[f"exit {code}: {errors}"] = ended.text
    golden(sheet(sentences), normalize={re.escape(VERSION): "VERSION"})


@pytest.mark.parametrize("why", ["administratively prohibited: open failed", "connect failed: open failed"])
def test_a_server_that_forbids_sockets_is_named(why: str) -> None:
    assert "AllowStreamLocalForwarding" in tunnel.forbidden(GPU07, f"channel 2: open failed: {why}")


@pytest.mark.parametrize(
    "said", ["bind: Address already in use", "channel 2: open failed: connect failed: Connection refused"]
)
def test_what_else_ssh_says_forbids_nothing(said: str) -> None:
    assert not tunnel.forbidden(GPU07, said)


@pytest.mark.parametrize(
    "line", ["", "Welcome!", "{}", '{"protocol":"1"}', "[1]", '{"protocol":1}', "\x1b[0m{"]
)
def test_what_a_shell_prints_by_itself_is_no_word_of_the_other_end(line: str) -> None:
    assert tunnel.heard(line) is None


def test_the_word_of_the_other_end(golden: Golden) -> None:
    told = tunnel.heard('{"protocol":7,"version":"0.9","user":"ana","new":1}')
    assert told == tunnel.Forwarded(protocol=7, version="0.9", user="ana")
    assert told is not None
    golden(
        tunnel.mismatch(GPU07, told), normalize={re.escape(VERSION): "VERSION", rf"\b{PROTOCOL}\b": "OURS"}
    )
