"""The line to the daemon: when it says hello again, and how it says goodbye. The socket is a stand-in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoptui.node.addresses import Addresses
from hoptui.protocol import codec, messages
from hoptui.sdk.daemon_link import DaemonLink
from hoptui.sdk.run import Run
from tests.run_state import run_state

zmq = pytest.importorskip("zmq")


class Wire:
    """Takes what is sent, but for the first `deaf` times, and reads it as the daemon does."""

    def __init__(self, deaf: int = 0) -> None:
        self.sent: list[messages.FromRun] = []
        self._deaf = deaf

    def send(self, frame: bytes, flags: int) -> None:
        self._deaf -= 1
        if self._deaf >= 0:
            raise zmq.Again
        self.sent.append(codec.from_run([frame]))


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DaemonLink]:
    """Of a run whose directory nobody may use: its thread, once it is started, ends."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    monkeypatch.setenv("HOPTUI_DIR", str(open_to_all))
    monkeypatch.setenv("HOPTUI", "off")
    monkeypatch.setattr(DaemonLink, "_ensure_daemon", lambda *_: None)
    found = DaemonLink(run_state(Run("toy")))
    yield found
    found.start()
    found.close("finished", "")


def test_a_hello_without_a_connection_is_tried_again_soon_and_then_ever_more_rarely(
    link: DaemonLink, tmp_path: Path
) -> None:
    wire, waits = Wire(deaf=8), []
    for _ in range(8):
        link._next_pulse = 0.0
        began = time.monotonic()
        link._send_due(wire, zmq, Addresses(tmp_path, tmp_path))
        waits.append(round(link._next_pulse - began, 2))
    assert waits == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


def test_a_run_that_ends_before_it_is_welcomed_says_goodbye(link: DaemonLink) -> None:
    wire = Wire()
    link._bye = messages.Bye(reason="finished")
    link._farewell(wire, zmq)
    assert wire.sent == [], "nobody has heard of it"
    link._hello(wire, zmq)
    link._farewell(wire, zmq)
    assert [type(said) for said in wire.sent] == [messages.RunHello, messages.Bye]


def test_a_run_that_lives_already_takes_one_other_id_however_often_it_is_asked_to(link: DaemonLink) -> None:
    """A daemon that has much to do answers a hello and its repetition at once."""
    wire, before = Wire(), link._state.id
    error = [codec.encode(messages.Error(code="duplicate_run", text="run x is already live in pid 7"))]
    for _ in range(3):
        link._receive(error, wire, zmq)
    (hello,) = wire.sent
    assert isinstance(hello, messages.RunHello)
    assert hello.run == link._state.id != before
