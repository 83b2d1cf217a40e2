"""The daemon's sockets and its pid file: what is taken at once, idle runs, what a killed daemon leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from hoptui.daemon import sockets
from hoptui.daemon.server import BURST
from hoptui.daemon.sockets import Authenticator, Doorway
from hoptui.domain.columns import pack
from hoptui.node import processes
from hoptui.node.processes import Peer
from hoptui.protocol import codec, messages
from hoptui.recording import Recording, RecordingError
from tests.conftest import TestNode, over, until
from tests.impatient import brisk_command, impatient_daemon

ROWS = 3 * BURST


@contextmanager
def dealer(path: Path) -> Iterator[zmq.Socket[bytes]]:
    """A socket at the other end."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sock = context.socket(zmq.DEALER)
    sock.linger = 0
    sock.connect(f"ipc://{path}")
    try:
        yield sock
    finally:
        context.destroy(linger=0)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[tuple[Doorway, Authenticator]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield Doorway(context, tmp_path / "d.sock"), Authenticator(context)
    context.destroy(linger=0)


def test_messages_are_taken_in_order_and_no_more_than_asked_for(door: tuple[Doorway, Authenticator]) -> None:
    there, gate = door
    assert (there.more, list(there.take(5))) == (False, [])
    with dealer(there.path) as sock:
        assert gate.socket.poll(10_000)
        gate.answer()
        for number in range(5):
            sock.send(b"%d" % number)
        taken: list[tuple[bytes, Peer | None, list[bytes]]] = []
        while len(taken) < 3:
            until(lambda: there.more, what="a message")
            taken += there.take(3 - len(taken))
        until(lambda: there.more, what="the rest")
        while len(taken) < 5:
            until(lambda: there.more, what="the rest")
            taken += there.take(5)
        assert there.send(taken[0][0], b"answer")
        assert sock.poll(10_000)
        assert sock.recv() == b"answer"
    assert [body for _, _, body in taken] == [[b"0"], [b"1"], [b"2"], [b"3"], [b"4"]]
    assert {peer.pid for _, peer, _ in taken if peer is not None} == {os.getpid()}
    assert not there.send(b"nobody", b"answer")


def test_messages_that_the_daemon_has_no_time_for_wait_where_they_come_from(tmp_path: Path) -> None:
    """With 64 runs of 256 KB a message, those in the daemon filled gigabytes."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    there, gate = Doorway(context, tmp_path / "d.sock", most_waiting=2), Authenticator(context)
    sent = 0
    with dealer(there.path) as sock:
        sock.sndhwm = 1
        assert gate.socket.poll(10_000)
        gate.answer()
        while sock.poll(500, zmq.POLLOUT):
            assert sent < 20
            sock.send(bytes(256 << 10))
            sent += 1
        taken = 0
        while taken < sent:
            until(lambda: there.more, what="a message")
            taken += len(list(there.take(BURST)))
    context.destroy(linger=0)


def test_a_run_that_nobody_looks_at_is_heard_to_its_last_row(node: TestNode) -> None:
    impatient_daemon(node, welcome_s=0.0)
    with dealer(node.where.runs) as sock:
        hello = messages.RunHello(
            protocol=messages.PROTOCOL,
            run="quietrun",
            name="quiet",
            epoch=1,
            nonce="n",
            pid=os.getpid(),
            started=0,
        )
        sock.send(codec.encode(hello))
        assert sock.poll(10_000), "no welcome without a viewer"
        assert isinstance(codec.to_run([sock.recv()]), messages.RunWelcome)
        for step in range(ROWS):
            row = pack("run/quietrun", [(time.monotonic_ns(), step, {"loss": 1.0})])
            sock.send(codec.encode(messages.Rows(parts=(row,))))
        sock.send(codec.encode(messages.Bye(reason="finished")))
        until(
            lambda: recorded(node.where.recording("quietrun")) == list(range(ROWS)), what="every row on disk"
        )


def recorded(path: Path) -> list[int]:
    """The iterations that a recording has."""
    try:
        with Recording.open(path) as recording:
            return [step for part in recording.rows(f"run/{path.stem}") for step in part.steps()]
    except RecordingError:  # not there yet
        return []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "daemon.json"


def test_the_address_is_left_behind(path: Path) -> None:
    assert sockets.metrics_left_behind(path) == ""
    sockets.write(path, "127.0.0.1:9400")
    assert sockets.metrics_left_behind(path) == "127.0.0.1:9400"
    assert [entry.name for entry in path.parent.iterdir()] == ["daemon.json"]
    sockets.write(path, "")
    assert sockets.metrics_left_behind(path) == ""


def test_what_was_served_before_the_machine_was_started_anew_is_past(path: Path) -> None:
    sockets.write(path, ":9400")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"boot": "another"}))
    assert sockets.metrics_left_behind(path) == ""


@pytest.mark.parametrize("raw", ["", "{", "[]", "7", '{"pid": 7}', '{"boot": 1}', "\xff"])
def test_a_file_that_makes_no_sense_tells_nothing(path: Path, raw: str) -> None:
    path.write_bytes(raw.encode("latin-1"))
    assert sockets.metrics_left_behind(path) == ""


@pytest.mark.guarantee("sockets-removed")
def test_a_deleted_lock_is_made_again(node: TestNode) -> None:
    impatient_daemon(node)
    pid = node.daemon_pid()
    node.where.lock.unlink()
    until(lambda: processes.lock_holder(node.where) == pid, what="the lock of the same daemon")
    assert not over(pid)


def test_a_deleted_directory_is_made_again(node: TestNode) -> None:
    impatient_daemon(node)
    pid = node.daemon_pid()
    shutil.rmtree(node.where.directory)
    until(lambda: node.daemon_pid() == pid, what="the lock, the sockets and the file of the same daemon")
    assert node.viewer().state().pid == pid


@pytest.mark.guarantee("sockets-removed")
def test_a_daemon_whose_lock_another_one_has_ends(node: TestNode) -> None:
    """It must leave no second daemon, and the recording of a live run must have one writer."""
    impatient_daemon(node, tick_s=0.6, still_tick_s=0.6, latest_tick_s=0.6)
    node.start()
    first = node.daemon_pid()
    run = node.viewer().run().run
    until(lambda: recorded(node.where.recording(run)), what="rows on disk")
    os.kill(first, signal.SIGSTOP)  # it cannot see at once that its lock is gone
    node.where.lock.unlink()
    node.spawn(brisk_command())
    second = until(lambda: (pid := node.daemon_pid()) not in (0, first) and pid, what="a second daemon")
    os.kill(first, signal.SIGCONT)
    until(lambda: over(first), what="the end of the first daemon")
    assert node.daemon_pid() == second
    assert json.loads(node.where.info.read_text())["pid"] == second
    viewer = node.viewer("after")
    until(lambda: viewer.run().run == run and viewer.run().exited_wall == 0, what="the run at the second")
    before = max(recorded(node.where.recording(run)))
    until(lambda: max(recorded(node.where.recording(run))) > before, what="rows of the second daemon")
    assert viewer.state().history == ""


def test_a_pipe_in_place_of_the_file_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    assert sockets.metrics_left_behind(path) == ""
    sockets.write(path, "")
    assert path.is_file()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_log_that_cannot_be_written_is_named(node: TestNode, make: Callable[[Path], None]) -> None:
    make(node.where.log)
    with pytest.raises(processes.StartError, match=r"daemon\.log"):
        processes.start_daemon(node.where)
