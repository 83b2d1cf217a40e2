"""ssh's command line, and what its end means in words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from hoptui.client import tunnel
from hoptui.client.target import Place
from hoptui.protocol.messages import PROTOCOL
from hoptui.protocol.version import VERSION

GPU07 = Place("gpu07", "ana", 2222)


def test_the_command_line() -> None:
    words = tunnel.command(GPU07, Path("/tmp/h/ssh-1-a"), "/tmp/hoptui-via-a/viewers.sock")
    assert words[0] == "ssh"
    assert words[-3:] == ["--", "ana@gpu07", "hoptui daemon forward /tmp/hoptui-via-a/viewers.sock"]
    assert words[words.index("-L") + 1] == "/tmp/h/ssh-1-a:/tmp/hoptui-via-a/viewers.sock"
    assert words[words.index("-p") + 1] == "2222"
    options = {word for before, word in pairwise(words) if before == "-o"}
    assert {"BatchMode=yes", "ControlMaster=no", "RemoteCommand=none", "ServerAliveInterval=5"} <= options


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


@pytest.mark.parametrize(
    ("code", "errors", "words", "lasting"),
    [
        (255, "ana@gpu07: Permission denied (publickey).", "until `ssh -p 2222 ana@gpu07 true`", True),
        (255, "ana@gate: Permission denied (publickey).\nConnection closed by UNKNOWN port 65535", "(ana@gate: ", True),
        (126, "bash: line 1: /opt/hoptui: Permission denied", "cannot be run: bash: line 1: /opt/hoptui", True),
        (255, "No ED25519 host key is known\nHost key verification failed.", "run `ssh -p 2222 ana@gpu07`", True),
        (127, "bash: line 1: hoptui: command not found", "say where it is with --hoptui", True),
        (127, "", "there is no hoptui on the PATH of ana@gpu07:2222", True),
        (1, "hoptui: Command not found.", "say where it is with --hoptui", True),
        (255, "/bin/sh: 1: nc: not found\nConnection closed by UNKNOWN", "ana@gpu07:2222: Connection closed", False),
        (255, "/bin/sh: 1: nc: not found", "ana@gpu07:2222: /bin/sh: 1: nc: not found", False),
        (0, "", "the hoptui of ana@gpu07:2222 ended without a word", False),
        (2, "hoptui: hoptui daemon does not take 'forward'; try hoptui --help", f"install version {VERSION}", True),
        (255, "ssh: Could not resolve hostname gpu07: Name or service not known", "Could not resolve", False),
        (255, "kex_exchange\nssh: connect to host gpu07 port 2222: Connection refused", "Connection refused", False),
        (3, "hoptui: the daemon could not be started: no disk", "could not be started: no disk", False),
        (255, "", "ssh ended with code 255", False),
    ],
)  # fmt: skip
def test_its_end_in_words(code: int, errors: str, words: str, lasting: bool) -> None:
    ended = tunnel.ended(GPU07, code, errors)
    assert words in ended.text
    assert ended.lasting == lasting
    assert "\n" not in ended.text


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


def test_the_word_of_the_other_end() -> None:
    told = tunnel.heard('{"protocol":7,"version":"0.9","user":"ana","new":1}')
    assert told == tunnel.Forwarded(protocol=7, version="0.9", user="ana")
    assert told is not None
    assert f"protocol 7 and this one ({VERSION}) {PROTOCOL}" in tunnel.mismatch(GPU07, told)
