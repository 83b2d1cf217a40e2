"""The daemon's two sockets, who may connect to them, and the file that names the daemon's process.

A socket is bound under another name and renamed, and bound again if its file was removed. ZAP decides who may
connect (RFC 27, https://rfc.zeromq.org/spec/27): the kernel names the user of a peer, and only this user
passes. `daemon.json` names the process of the daemon and what the next one takes over. A daemon removes it
when it ends in good order, so a file that is found is from a daemon that was killed.
"""

from __future__ import annotations

import fcntl
import functools
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import zmq

from hoptui.node.addresses import Addresses, secure
from hoptui.node.files import replaced
from hoptui.node.processes import Peer, peer_of
from hoptui.protocol import VERSION
from hoptui.protocol.codec import MAX_BYTES
from hoptui.protocol.messages import PROTOCOL
from hoptui.recording.ingest import this_boot

log = logging.getLogger("hoptui.daemon")

ZAP_DOMAIN = b"hoptui"
BACKLOG = 16
"""Connections that wait to be accepted. They are accepted even after the socket is off its path."""
READABLE = int(zmq.POLLIN)
"""A plain number: each `&` with pyzmq's flag creates an enum member, and this runs before every message."""
_peer_of = functools.lru_cache(maxsize=256)(peer_of)


class Doorway:
    """A ROUTER at a path. The path is never without a socket: a new one is renamed over the old one.

    A message of more than `most_bytes` ends its connection. Of each peer, `most_waiting` messages wait here.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        path: Path,
        most_bytes: int = MAX_BYTES,
        most_waiting: int = 256,
    ) -> None:
        self.path = path
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.router_mandatory = 1  # a peer that is gone or stuck is an error here, not a silent loss
        self.socket.sndhwm, self.socket.rcvhwm = 64, most_waiting
        self.socket.backlog = BACKLOG
        self.socket.maxmsgsize = most_bytes
        self.socket.zap_domain = ZAP_DOMAIN
        self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._inode = 0
        self.shut = False
        self.bind()

    def bind(self) -> None:
        """Bind with a mask that excludes other users, and move the socket into place."""
        new = Path(f"{self.path}.new")
        new.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self.socket.bind(f"ipc://{new}")
        finally:
            os.umask(mask)
        new.rename(self.path)
        self._inode = self.path.stat().st_ino

    def shut_out(self) -> None:
        """Take the socket off its path, so that nobody new can connect. Connections that exist go on.

        To unbind it would close them: in libzmq they belong to the listener.
        """
        self.path.rename(f"{self.path}.shut")
        self.shut = True

    def let_in(self) -> None:
        """Put the socket back on its path."""
        Path(f"{self.path}.shut").rename(self.path)
        self.shut = False

    def heal(self) -> bool:
        """Bind again if the path is gone or was replaced (a cleaner of /tmp). True if that was needed."""
        if self.shut:
            return False
        try:
            if self.path.stat().st_ino == self._inode:
                return False
        except OSError:
            pass
        self.bind()
        return True

    @property
    def more(self) -> bool:
        """Whether a message is waiting."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & READABLE)

    def take(self, most: int) -> Iterator[tuple[bytes, Peer | None, list[bytes]]]:
        """Yield waiting messages: the sender's identity, its peer as reported by the kernel, and the
        frames."""
        while most and self.more:  # a failed receive would cost more than this check
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
        """Send without waiting. False if the peer is gone or does not read."""
        try:
            self.socket.send_multipart((identity, body), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        return True

    def close(self) -> None:
        """Remove the path if it is still ours."""
        for path in (self.path, Path(f"{self.path}.shut")):
            with suppress(OSError):
                if path.stat().st_ino == self._inode:
                    path.unlink()


class Lock:
    """The daemon's lock, which shows that it lives. The socket file does not.

    It is an fcntl lock, because a forked child must not keep it.
    """

    def __init__(self, where: Addresses) -> None:
        self._where = where
        self._file = self._taken()
        self._directory = self._spare()

    def held(self) -> bool:
        """Return whether the lock file is still this daemon's. Take another one if it was deleted.

        A second daemon can start while the file is gone. It is False if one has, and this one must end.

        Raises:
            AddressError, OSError: the file is gone, and its directory cannot be used.
        """
        if self._in_place():
            return True
        secure(self._where.directory)
        try:
            file = self._taken()
        except AlreadyRunningError:
            return False
        os.close(self._file)
        os.close(self._directory)
        self._file, self._directory = file, self._spare()
        return True

    @property
    def inode(self) -> int:
        """The inode of the lock file that this daemon has open."""
        return os.fstat(self._file).st_ino

    def _in_place(self) -> bool:
        try:
            return os.path.samestat(self._where.lock.lstat(), os.fstat(self._file))
        except OSError:
            return False

    def _taken(self) -> int:
        """Return the lock file, locked. Raises AlreadyRunningError."""
        file = os.open(self._where.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise AlreadyRunningError from None
        return file

    def _spare(self) -> int:
        """Return the directory, open with a flock: systemd-tmpfiles spares it then."""
        directory = os.open(self._where.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return directory

    def close(self) -> None:
        os.close(self._directory)
        os.close(self._file)


class AlreadyRunningError(Exception):
    """Another daemon has the lock."""


ENDPOINT = "inproc://zeromq.zap.01"


class Authenticator:
    """Answers every ZAP request, also invalid ones: an unanswered request would leave the peer hanging."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ENDPOINT)
        self.refused = 0
        self._uid = os.getuid()

    def answer(self) -> None:
        """Receive one request and answer it."""
        frames = self.socket.recv_multipart()
        self.socket.send_multipart(self.judge(frames))

    def judge(self, frames: Sequence[bytes]) -> list[bytes]:
        """Return the reply to a request: 200 for this user's processes, 400 for others."""
        if len(frames) < 6:
            return [b"1.0", frames[1] if len(frames) > 1 else b"", b"500", b"malformed request", b"", b""]
        version, request, _, address = frames[:4]
        peer = peer_of(address.decode("ascii", "replace"))
        if peer is not None and peer.uid == self._uid:
            return [version, request, b"200", b"OK", str(peer.uid).encode(), b""]
        self.refused += 1
        who = (
            f"{peer.user} (uid {peer.uid}, pid {peer.pid})"
            if peer
            else address.decode("ascii", "replace")[:80]
        )
        log.warning("refused a connection of %s", who)
        return [version, request, b"400", b"only the owner may connect", b"", b""]


def write(path: Path, metrics: str) -> None:
    """Write who the daemon is and where it was asked to serve metrics ("": nowhere).

    The file is replaced in one step, because others may read it.
    """
    info = {
        "pid": os.getpid(),
        "version": VERSION,
        "protocol": PROTOCOL,
        "started": time.time(),
        "boot": this_boot().id,
        "metrics": metrics,
    }
    with replaced(path, 0o600) as file:
        file.write(json.dumps(info).encode())


def metrics_left_behind(path: Path) -> str:
    """Return where a daemon that was killed since the boot served metrics, "" if nowhere."""
    try:
        if not path.is_file():  # a pipe would block
            return ""
        info = json.loads(path.read_text())
        return str(info["metrics"]) if info["boot"] == this_boot().id else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
