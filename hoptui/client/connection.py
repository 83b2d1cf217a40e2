"""The socket of a viewer: a DEALER to the daemon's `viewers.sock`, owned by one thread."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from pathlib import Path

import zmq

from hoptui.protocol import codec

MOST_PER_TURN = 64


LAST_WORD_MS = 100
"""How long a viewer that leaves waits for its goodbye to be taken."""


class DaemonConnection:
    """A DEALER to a daemon that can be made anew, and a file descriptor that ends a wait early.

    `path` is the daemon's socket, None while there is none to connect to. A `patient` one comes back more
    slowly, because each attempt goes over a line.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], wake: socket.socket, *, patient: bool = False
    ) -> None:
        self.path: Path | None = None
        self._context = context
        self._wake = wake
        self._patient = patient
        self._socket: zmq.Socket[bytes] | None = None

    def reopen(self, path: Path | None) -> None:
        """A fresh socket: what was queued for a daemon that does not read is not sent to the next."""
        if self._socket is not None:
            self._socket.close(linger=0)
        self.path = path
        self._socket = dealer(self._context, f"ipc://{path}", patient=self._patient) if path else None

    def send(self, frame: bytes) -> None:
        """Send, or drop what cannot be sent or a full queue does not take: the conversation repeats what is
        not answered."""
        if self._socket is not None:
            with contextlib.suppress(zmq.Again):
                self._socket.send(frame, zmq.NOBLOCK)

    def receive(self, timeout: float, waits_on: Iterable[int] = ()) -> list[list[bytes]]:
        """Wait for messages, a wake-up or one of these file descriptors, at most `timeout` seconds; return
        what has come."""
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        for fd in waits_on:
            poller.register(fd, zmq.POLLIN)
        if self._socket is not None:
            poller.register(self._socket, zmq.POLLIN)
        ready = dict(poller.poll(int(min(timeout, 60.0) * 1000) + 1 if timeout else 0))
        if self._wake.fileno() in ready:
            with contextlib.suppress(OSError):
                self._wake.recv(4096)
        found: list[list[bytes]] = []
        with contextlib.suppress(zmq.Again):
            while self._socket is not None and self._socket in ready and len(found) < MOST_PER_TURN:
                found.append(self._socket.recv_multipart(zmq.NOBLOCK))
        return found


def dealer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, *, patient: bool = False
) -> zmq.Socket[bytes]:
    """A DEALER as viewers use it: it comes back by itself within 100 ms (2 s if `patient`) and leaves nothing
    behind."""
    opened = context.socket(zmq.DEALER)
    opened.linger = 0
    opened.reconnect_ivl, opened.reconnect_ivl_max = (200, 2000) if patient else (20, 100)
    opened.maxmsgsize = 4 * codec.MAX_BYTES
    opened.connect(address)
    return opened
