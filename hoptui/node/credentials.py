"""Who is at the other end of an ipc socket, as the kernel vouches for it (SO_PEERCRED, through libzmq)."""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass

_PEER = re.compile(r"localhost:(\d+):(\d+):(\d+)")


@dataclass(frozen=True)
class Peer:
    """A process on this machine."""

    uid: int
    gid: int
    pid: int

    @property
    def user(self) -> str:
        """The login name, or the number where there is none."""
        return user_name(self.uid)


def peer_of(address: str) -> Peer | None:
    """The peer in libzmq's `Peer-Address`, `localhost:<uid>:<gid>:<pid>`; None where it is of another
    form."""
    found = _PEER.fullmatch(address)
    return Peer(*map(int, found.groups())) if found else None


def user_name(uid: int | None = None) -> str:
    """The login name of a uid (this process's by default), or the number where the system knows none."""
    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
