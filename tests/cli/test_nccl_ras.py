"""What NCCL's RAS service says is evidence in `hoptui stack`; a service that hangs costs a second."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from hoptui.cli.support import nccl_ras
from hoptui.cli.support.nccl_ras import Uneven
from tests.cli.ras_service import Serve, answer, replaying, service


def answering(text: bytes) -> Serve:
    """A service of any kind that answers everything with this text."""

    def serve(connection: socket.socket) -> None:
        assert connection.recv(100) == b"SET FORMAT json\n"
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(100):
            pass

    return serve


def test_the_answer_of_the_service_as_it_is() -> None:
    asked: list[str] = []
    with service(replaying(answer((411, 412)), asked=asked)) as port:
        assert nccl_ras.status(port=port) == json.loads(answer((411, 412)))
    assert asked == ["set format json", "timeout 1", "verbose status"]


def test_a_service_without_json_is_not_asked_for_its_status() -> None:
    """Before NCCL 2.26.5 it may end the training by that."""
    asked: list[str] = []
    with service(replaying("NCCL version 2.26.2\n", formats=("text",), asked=asked)) as port:
        assert nccl_ras.status(port=port) is None
    assert asked == ["set format json"]


@pytest.mark.parametrize(
    "text", [b"", b"ERROR: Unknown command\n", b"OK\n{nonsense", b"OK\nOK\n[1]", b"\xff{" * 100]
)
def test_an_older_or_another_service_says_nothing(text: bytes) -> None:
    with service(answering(text)) as port:
        assert nccl_ras.status(port=port) is None


def test_the_rank_that_has_left_out_a_collective() -> None:
    found = json.loads(answer((411, 412)))
    assert nccl_ras.uneven(found, {411: 0, 412: 1}) == [Uneven("AllReduce", {6: [0], 5: [1]})]
    assert nccl_ras.uneven(found, {411: 0, 413: 1}) == []  # the other process is of another run
    found["communicators"][0]["ranks"][1]["host"] = "10.0.0.8"  # the same pid on another node
    assert nccl_ras.uneven(found, {411: 0, 412: 1}) == []
    for odd in (
        {},
        {"communicators": 3},
        {"communicators": [{"ranks": [4, {"pid": 411, "collective_counts": 7}]}]},
    ):
        assert nccl_ras.uneven(odd, {411: 0}) == []


def test_a_service_that_hangs_costs_no_more_than_the_limit() -> None:
    done = threading.Event()
    began = time.monotonic()
    with service(lambda _: (done.wait(10), None)[1]) as port:
        assert nccl_ras.status(port=port, limit_s=0.2) is None
        done.set()
    assert time.monotonic() - began < 5


def test_a_service_that_drips_costs_no_more_than_the_limit() -> None:
    done = threading.Event()

    def drip(connection: socket.socket) -> None:
        while not done.wait(0.02):
            try:
                connection.sendall(b"{")
            except OSError:
                return

    with service(drip) as port:
        began = time.monotonic()
        assert nccl_ras.status(port=port, limit_s=0.2) is None
        assert time.monotonic() - began < 5
        done.set()


def test_without_a_service_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("NCCL_RAS_ADDR", f"localhost:{port}")
    assert nccl_ras.status() is None
