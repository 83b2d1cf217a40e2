"""What NCCL's RAS service says is evidence in `hoptui stack`; a service that hangs costs a second."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hoptui.cli.support import nccl_ras

Serve = Callable[[socket.socket], None]


@contextmanager
def service(serve: Serve) -> Iterator[int]:
    """A service on a free port that answers one client."""
    with socket.create_server(("localhost", 0)) as server:
        server.settimeout(5)

        def run() -> None:
            connection, _ = server.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            thread.join(10)
        assert not thread.is_alive()


def answering(text: bytes) -> Serve:
    def serve(connection: socket.socket) -> None:
        assert connection.recv(100).startswith(b"SET FORMAT json\n")
        connection.sendall(text)

    return serve


def test_an_answer_in_json() -> None:
    with service(answering(b'OK\n{"communicators": [{"size": 8}]}\n')) as port:
        assert nccl_ras.status(port=port) == {"communicators": [{"size": 8}]}


@pytest.mark.parametrize("text", [b"", b"ERROR: Unknown command\n", b"{nonsense", b"[1]", b"\xff{" * 100])
def test_an_older_or_another_service_says_nothing(text: bytes) -> None:
    with service(answering(text)) as port:
        assert nccl_ras.status(port=port) is None


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
