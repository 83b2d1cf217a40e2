"""Processes of a node: the peer of a socket, the namespace of PIDs, and the lock as liveness."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hoptui.node import processes
from hoptui.node.addresses import Addresses
from hoptui.node.processes import Peer, StartError, daemon_lives, peer_of, start_daemon, user_name, whose_pids
from tests.golden import Golden

# Takes the lock as the daemon does and waits; with "fork", a child of it that does nothing outlives it.
HOLDER = """
import fcntl, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
child = 0
if sys.argv[2] == "fork":
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
print(child, flush=True)
time.sleep(60)
"""


@contextmanager
def holder(where: Addresses, how: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the lock, and the pid of its child; both are gone afterwards."""
    command = [sys.executable, "-c", HOLDER, str(where.lock), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = 0
        try:
            child = int(process.stdout.readline())
            yield process, child
        finally:
            if child:
                os.kill(child, signal.SIGKILL)
            process.kill()


def test_no_lock_file_is_no_daemon_and_none_is_made(where: Addresses) -> None:
    assert not daemon_lives(where)
    assert not where.lock.exists()


def test_a_lock_file_alone_is_no_daemon(where: Addresses) -> None:
    where.lock.touch()
    where.viewers.touch()
    assert not daemon_lives(where)


def test_the_lock_of_another_process_is_a_daemon_until_it_is_killed(where: Addresses) -> None:
    with holder(where) as (process, _):
        assert daemon_lives(where)
        assert daemon_lives(where)  # to look does not change it
        process.kill()
        process.wait()
        assert not daemon_lives(where)


def test_a_forked_child_that_survives_does_not_keep_the_lock(where: Addresses) -> None:
    with holder(where, "fork") as (process, child):
        assert daemon_lives(where)
        process.kill()
        process.wait()
        os.kill(child, 0)
        assert not daemon_lives(where)


def test_looking_does_not_keep_a_daemon_from_starting(
    where: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a viewer is in the middle of looking, another process can take the lock."""
    where.lock.touch()
    taken = []
    ask: Callable[[int, int, bytes], bytes] = fcntl.fcntl

    def look_slowly(fd: int, request: int, argument: bytes) -> bytes:
        found = ask(fd, request, argument)
        with holder(where) as (process, _):
            taken.append(process.poll() is None)
        return found

    monkeypatch.setattr(fcntl, "fcntl", look_slowly)
    assert not daemon_lives(where)
    assert taken == [True]


def daemon_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a `hoptui.daemon` of our own in the place of the real one."""
    package = tmp_path / "hoptui"
    (package / "daemon").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "daemon" / "__init__.py").touch()
    (package / "daemon" / "__main__.py").write_text(body)
    monkeypatch.setattr(processes, "__file__", str(package / "wire" / "presence.py"))


def test_a_daemon_is_started_apart_and_told_where(
    where: Addresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon_module(
        tmp_path,
        monkeypatch,
        "import json, os, sys\n"
        "names = ('HOPTUI_DIR', 'HOPTUI_STATE_DIR', 'RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'PYTHONSTARTUP')\n"
        "told = {n: os.environ.get(n) for n in names}\n"
        "told |= {'argv': sys.argv[1:], 'cwd': os.getcwd(), 'leads': os.getsid(0) == os.getpid()}\n"
        "open(os.environ['HOPTUI_DIR'] + '/told', 'w').write(json.dumps(told))\n",
    )
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, "3")
    start_daemon(where)
    assert json.loads((where.directory / "told").read_text()) == {
        "HOPTUI_DIR": str(where.directory),
        "HOPTUI_STATE_DIR": str(where.state),
        "RANK": None,
        "LOCAL_RANK": None,
        "WORLD_SIZE": None,
        "PYTHONSTARTUP": None,
        "argv": ["--detach"],
        "cwd": "/",
        "leads": True,
    }


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import sys; sys.exit('no space left\\non this disk')", "on this disk"),
        ("import sys; sys.exit(3)", ""),
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
    ],
    ids=["exit", "silence", "exception"],
)
def test_a_daemon_that_cannot_start_says_why(
    where: Addresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, says: str, golden: Golden
) -> None:
    daemon_module(tmp_path, monkeypatch, body)
    with pytest.raises(StartError) as error:
        start_daemon(where)
    assert str(error.value).endswith(f": {says}" if says else "")
    golden(str(error.value))


def test_an_interpreter_that_is_gone(
    where: Addresses, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(StartError) as error:
        start_daemon(where)
    golden(str(error.value))


NO_SUCH_UID = 4_000_000_123


def test_the_address_that_libzmq_gives() -> None:
    assert peer_of("localhost:1000:100:4121") == Peer(uid=1000, gid=100, pid=4121)
    assert peer_of("localhost:0:0:1") == Peer(0, 0, 1)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        "localhost:1000",
        "localhost:1000:100",
        "localhost:1000:100:4121:5",
        "localhost:1000:100:4121\n",
        " localhost:1000:100:4121",
        "localhost:-1:100:4121",
        "localhost:root:0:1",
        "localhost:::",
        "127.0.0.1",
        "10.0.0.7:1000:100:4121",
    ],
)
def test_an_address_of_another_form_is_nobody(address: str) -> None:
    assert peer_of(address) is None


def test_a_uid_has_a_name_or_is_a_number() -> None:
    mine = pwd.getpwuid(os.getuid()).pw_name
    assert user_name() == mine
    assert user_name(os.getuid()) == mine
    assert user_name(0) == "root"
    assert user_name(NO_SUCH_UID) == str(NO_SUCH_UID)
    assert Peer(NO_SUCH_UID, 0, 1).user == str(NO_SUCH_UID)
    assert Peer(os.getuid(), 0, 1).user == mine


@pytest.mark.parametrize(
    ("link", "whose"), [("pid:[4026531836]", "machine"), ("pid:[4026532281]", "container"), ("", "unknown")]
)
@pytest.mark.guarantee("peer-user")
def test_the_kernel_tells(tmp_path: Path, link: str, whose: str) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    if link:
        (tmp_path / "self/ns/pid").symlink_to(link)
    assert whose_pids(tmp_path) == whose


def test_a_job_and_a_container_end_with_their_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.ends_with_daemon({"SLURM_JOB_ID": "7"})
    for whose in ("machine", "container"):
        monkeypatch.setattr(processes, "whose_pids", lambda whose=whose: whose)
        assert processes.ends_with_daemon({}) == (whose == "container")
