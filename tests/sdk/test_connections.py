"""What a run has sent reaches a daemon that reads it later, although the run has ended meanwhile."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from hoptui.protocol import codec, messages
from hoptui.sdk.connections import HeldConnections, open_sockets, peer_path, unread_bytes
from hoptui.sdk.daemon_link import DaemonLink
from hoptui.sdk.run import Run
from tests.conftest import until
from tests.run_state import run_state

NOTES = 20


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[zmq.Socket[bytes]]:
    """A daemon's socket that stops reading after two messages, until the test takes them."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.ROUTER) as router:
        router.linger, router.rcvhwm = 0, 2
        router.bind(f"ipc://{tmp_path / 'runs.sock'}")
        yield router
    context.destroy(linger=0)


def test_messages_are_read_after_their_sender_has_closed_its_context(
    slow: zmq.Socket[bytes], tmp_path: Path
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sender = context.socket(zmq.DEALER)
    sender.sndhwm = 2
    sender.connect(f"ipc://{tmp_path / 'runs.sock'}")
    for number in range(NOTES):
        assert sender.poll(10_000, zmq.POLLOUT)
        sender.send(b"%d" % number)
    held = HeldConnections(tmp_path)
    context.destroy(linger=10_000)
    release = threading.Thread(target=held.release, args=(time.monotonic() + 30,), daemon=True)
    release.start()
    read: list[int] = []
    while len(read) < NOTES:
        assert slow.poll(10_000), f"{NOTES - len(read)} messages are lost"
        read.append(int(slow.recv_multipart()[1]))
    release.join(10)
    assert not release.is_alive()
    assert read == list(range(NOTES))


def test_a_goodbye_is_read_by_a_daemon_that_had_no_time_for_the_messages_before_it(
    slow: zmq.Socket[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPTUI", "off")
    run = Run("toy")
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path))
    monkeypatch.setattr(DaemonLink, "_ensure_daemon", lambda *_: None)
    link = DaemonLink(run_state(run))
    link.start()
    assert slow.poll(10_000), "no hello"
    identity, frame = slow.recv_multipart()
    assert isinstance(codec.from_run([frame]), messages.RunHello)
    welcome = messages.RunWelcome(protocol=messages.PROTOCOL, pid=1, version="1", epoch=0)
    slow.send_multipart([identity, codec.encode(welcome)])
    until(lambda: link._welcomed, what="a welcome")
    run_state(run).notes.extend(
        messages.Note(text=f"note {n}", level="info", step=n, t=1) for n in range(NOTES)
    )
    released, release = threading.Event(), HeldConnections.release

    def noted(held: HeldConnections, limit: float) -> None:
        released.set()
        release(held, limit)

    monkeypatch.setattr(HeldConnections, "release", noted)
    end = threading.Thread(target=link.close, args=("finished", ""), daemon=True)
    end.start()
    assert released.wait(10), "libzmq did not let go of the messages"
    end.join(10)
    assert not end.is_alive(), "the script waits for a daemon that reads nothing"
    read: list[messages.FromRun] = []
    while not read or not isinstance(read[-1], messages.Bye):
        assert slow.poll(10_000), f"lost after {read[-1:]}"
        read.append(codec.from_run(slow.recv_multipart()[1:]))
    link._thread.join(10)
    assert not link._thread.is_alive()
    assert [each.step for each in read if isinstance(each, messages.Note)] == list(range(NOTES))


def test_unread_bytes_are_those_the_peer_has_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(path))
        server.listen()
        client.connect(str(path))
        there, _ = server.accept()
        with there:
            assert client.fileno() in open_sockets()
            assert peer_path(client.fileno()) == os.fsencode(path)
            assert peer_path(server.fileno()) == b""
            assert unread_bytes(client.fileno()) == 0
            client.sendall(bytes(100))
            assert unread_bytes(client.fileno()) >= 100
            held = HeldConnections(path)
            held.release(time.monotonic())  # nobody reads it: given up
            there.recv(100)
            assert unread_bytes(client.fileno()) == 0
