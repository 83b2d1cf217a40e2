"""The socket of a viewer: a DEALER to the daemon's `viewers.sock`, owned by one thread."""

from __future__ import annotations

import contextlib
import socket

import zmq

from hoptui.wire import codec
from hoptui.wire.addresses import Addresses

MOST_PER_TURN = 64


LAST_WORD_MS = 100
"""How long a viewer that leaves waits for its goodbye to be taken."""


class Connection:
    """A DEALER to the daemon that can be made anew, and a file descriptor that ends a wait early."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], where: Addresses, wake: socket.socket
    ) -> None:
        self._context = context
        self._address = f"ipc://{where.viewers}"
        self._wake = wake
        self._socket: zmq.Socket[bytes] | None = None
        self._poller = zmq.Poller()
        self._poller.register(wake, zmq.POLLIN)
        self.reopen()

    def reopen(self) -> None:
        """A fresh socket: what was queued for a daemon that does not read is not sent to the next."""
        if self._socket is not None:
            self._poller.unregister(self._socket)
            self._socket.close(linger=0)
        self._socket = dealer(self._context, self._address)
        self._poller.register(self._socket, zmq.POLLIN)

    def send(self, frame: bytes) -> None:
        """Send, or drop what a full queue does not take: the conversation repeats what is not answered."""
        assert self._socket is not None
        with contextlib.suppress(zmq.Again):
            self._socket.send(frame, zmq.NOBLOCK)

    def receive(self, timeout: float) -> list[list[bytes]]:
        """Wait for messages or a wake-up, at most `timeout` seconds, and return what has come."""
        assert self._socket is not None
        ready = dict(self._poller.poll(int(min(timeout, 60.0) * 1000) + 1 if timeout else 0))
        if self._wake.fileno() in ready:
            with contextlib.suppress(OSError):
                self._wake.recv(4096)
        found: list[list[bytes]] = []
        with contextlib.suppress(zmq.Again):
            while self._socket in ready and len(found) < MOST_PER_TURN:
                found.append(self._socket.recv_multipart(zmq.NOBLOCK))
        return found


def dealer(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    """A DEALER as viewers use it: it comes back by itself within 100 ms, and leaves nothing behind when closed."""
    opened = context.socket(zmq.DEALER)
    opened.linger = 0
    opened.reconnect_ivl, opened.reconnect_ivl_max = 20, 100
    opened.maxmsgsize = 4 * codec.MAX_BYTES
    opened.connect(address)
    return opened
