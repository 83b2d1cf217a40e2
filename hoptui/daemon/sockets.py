"""The daemon's two sockets on the file system: bound under another name and renamed, healed when somebody
removes them."""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import zmq

from hoptui.node.addresses import Addresses
from hoptui.node.credentials import Peer, peer_of
from hoptui.protocol.codec import MAX_BYTES

ZAP_DOMAIN = b"hoptui"
READABLE = int(zmq.POLLIN)
"""A plain number: each `&` with pyzmq's flag makes an enum member anew, and this one is asked for before
every message."""
_peer_of = functools.lru_cache(maxsize=256)(peer_of)


class Doorway:
    """A ROUTER at a path. The path is never without a socket: a new one is renamed over the old one."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: Path) -> None:
        self.path = path
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.router_mandatory = 1  # a peer that is gone or stuck is an error here, not a silent loss
        self.socket.sndhwm, self.socket.rcvhwm = 64, 256
        self.socket.maxmsgsize = MAX_BYTES
        self.socket.zap_domain = ZAP_DOMAIN
        self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._inode = 0
        self.bind()

    def bind(self) -> None:
        """Bind, under a mask that lets nobody else in, and put the socket in its place."""
        new = Path(f"{self.path}.new")
        new.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self.socket.bind(f"ipc://{new}")
        finally:
            os.umask(mask)
        new.rename(self.path)
        self._inode = self.path.stat().st_ino

    def heal(self) -> bool:
        """Bind again if the path is gone or is not ours any more (a cleaner of /tmp); True if that was
        needed."""
        try:
            if self.path.stat().st_ino == self._inode:
                return False
        except OSError:
            pass
        self.bind()
        return True

    @property
    def more(self) -> bool:
        """Whether a message is there."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & READABLE)

    def take(self, most: int) -> Iterator[tuple[bytes, Peer | None, list[bytes]]]:
        """What has come in, without waiting: whom each message is from, who that is as the kernel tells, and
        its frames."""
        while most and self.more:  # to be refused a message would cost more than to ask first
            most -= 1
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                peer = _peer_of(str(frames[-1].get("Peer-Address")))
            except zmq.ZMQError:
                peer = None
            identity, *body = [frame.bytes for frame in frames]
            yield identity, peer, body

    def send(self, identity: bytes, body: bytes) -> bool:
        """Send without waiting; False where the peer is gone or does not read."""
        try:
            self.socket.send_multipart((identity, body), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        return True

    def close(self) -> None:
        """Remove the path if it is still ours."""
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()


class Lock:
    """The daemon's lock: liveness is this, never the socket file. fcntl's, because a forked child must not
    keep it."""

    def __init__(self, where: Addresses) -> None:
        self._file = os.open(where.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise AlreadyRunningError from None
        # systemd-tmpfiles leaves a directory alone that somebody holds a flock on.
        self._directory = os.open(where.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):
            fcntl.flock(self._directory, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        os.close(self._directory)
        os.close(self._file)


class AlreadyRunningError(Exception):
    """Another daemon has the lock."""
