"""The socket of a viewer: a DEALER to the daemon's `viewers.sock`. One thread owns it."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import zmq

from hoptui.protocol import codec

MOST_PER_TURN = 64
LAST_WORD_MS = 100
"""How long a viewer waits for its goodbye to be sent."""
TAKE_MS = 50
"""How long to wait for the daemon to take messages before the next look at the time."""


class DaemonConnection:
    """A DEALER to a daemon that can be reopened, and a file descriptor that ends a wait early.

    `path` is the daemon's socket, None while there is none. With `patient`, it reconnects less often, because
    each attempt goes over the network.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], wake: socket.socket, *, patient: bool = False
    ) -> None:
        self.path: Path | None = None
        self._context = context
        self._wake = wake
        self._patient = patient
        self._socket: zmq.Socket[bytes] | None = None
        self._unsent: deque[bytes] = deque()

    @property
    def stuck(self) -> bool:
        """Whether messages wait for a daemon that does not read."""
        return bool(self._unsent)

    def reopen(self, path: Path | None) -> None:
        """Open a new socket. Messages queued for a daemon that does not read are not sent to the next."""
        self._unsent.clear()
        if self._socket is not None:
            self._socket.close(linger=0)
        self.path = path
        self._socket = dealer(self._context, f"ipc://{path}", patient=self._patient) if path else None

    def send(self, *frames: bytes) -> None:
        """Send in order. Frames that the socket does not take now wait; without a socket they are dropped."""
        if self._socket is None:
            return
        self._unsent.extend(frames)
        with contextlib.suppress(zmq.Again):
            while self._unsent:
                self._socket.send(self._unsent[0], zmq.NOBLOCK)
                self._unsent.popleft()

    def receive(self, timeout: float, waits_on: Iterable[int] = ()) -> list[list[bytes]]:
        """Wait at most `timeout` seconds for messages, a wake-up, a file descriptor, or room for what waits.
        Return the messages."""
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        for fd in waits_on:
            poller.register(fd, zmq.POLLIN)
        if self._socket is not None:
            poller.register(self._socket, zmq.POLLIN | zmq.POLLOUT if self._unsent else zmq.POLLIN)
        ready = dict(poller.poll(int(min(timeout, 60.0) * 1000) + 1 if timeout else 0))
        if self._wake.fileno() in ready:
            with contextlib.suppress(OSError):
                self._wake.recv(4096)
        found: list[list[bytes]] = []
        with contextlib.suppress(zmq.Again):
            readable = ready.get(self._socket, 0) & zmq.POLLIN
            while self._socket is not None and readable and len(found) < MOST_PER_TURN:
                found.append(self._socket.recv_multipart(zmq.NOBLOCK))
        return found


def dealer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, *, patient: bool = False
) -> zmq.Socket[bytes]:
    """Return a DEALER for a viewer. It reconnects within 100 ms (2 s if `patient`) and does not linger."""
    opened = context.socket(zmq.DEALER)
    opened.linger = 0
    opened.reconnect_ivl, opened.reconnect_ivl_max = (200, 2000) if patient else (20, 100)
    opened.maxmsgsize = codec.MAX_ANSWER_BYTES
    opened.connect(address)
    return opened
