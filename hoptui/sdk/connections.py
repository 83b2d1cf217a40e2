"""The connections of this process to sockets of the file system, and how much of them has not been read."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import stat
import termios
import time
from pathlib import Path

LOOK_S, LONGEST_LOOK_S = 0.005, 0.5
"""The first and the longest wait between two checks that everything has been read. The kernel does not report
it."""


def open_sockets() -> list[int]:
    """Return the file descriptors of this process that are sockets."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 (allocates little)
    except OSError:
        return []
    found = []
    for number in numbers:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                found.append(number)
    return found


def peer_path(number: int) -> bytes:
    """Return the path that a socket is connected to, empty if there is none."""
    try:
        sock = socket.socket(fileno=number)
    except OSError:
        return b""
    try:
        peer = sock.getpeername()
    except OSError:
        peer = b""
    sock.detach()
    return peer if isinstance(peer, bytes) else os.fsencode(peer) if isinstance(peer, str) else b""


def unread_bytes(number: int) -> int:
    """Return how many bytes that were written to a socket its peer has not read.

    Raises:
        OSError: the descriptor is not a socket.
    """
    count = array.array("i", [0])
    fcntl.ioctl(number, termios.TIOCOUTQ, count)
    return count[0]


class HeldConnections:
    """Keeps the connections to a path open after libzmq has closed its own descriptors of them.

    libzmq stops reading a connection while the application has no time for its messages. If the other end
    closes the connection then, the messages that the kernel still has are lost.
    """

    def __init__(self, path: Path) -> None:
        """Hold the connections to all sockets whose path begins with `path`."""
        name = os.fsencode(path)
        self._held = []
        for number in open_sockets():
            if peer_path(number).startswith(name):
                with contextlib.suppress(OSError):
                    self._held.append(os.dup(number))

    def release(self, until: float) -> None:
        """Close them once everything has been read, at the latest at `until` (monotonic seconds)."""
        for number in self._held:
            wait_s = LOOK_S
            with contextlib.suppress(OSError):
                while unread_bytes(number) and time.monotonic() < until:
                    time.sleep(wait_s)
                    wait_s = min(2 * wait_s, LONGEST_LOOK_S)
            with contextlib.suppress(OSError):
                os.close(number)
        self._held.clear()
