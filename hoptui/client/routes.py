"""The routes to a daemon: this node's, which is started if needed, or another node's through ssh."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple, Protocol

from hoptui.client import tunnel
from hoptui.client.target import Place
from hoptui.client.tunnel import Tunnel
from hoptui.node import processes
from hoptui.node.addresses import Addresses, addresses
from hoptui.node.processes import unstable

QUIET_S = 1.0  # the daemon's lock is checked after this long without a message
START_AGAIN_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
STARTS = 3
"""A start counts as failed after this many attempts without a daemon that keeps running."""


class Trouble(NamedTuple):
    """Why the connection must be reopened, in one sentence. `failed` if a retry alone will not help."""

    reason: str
    failed: bool = False


class Way(Protocol):
    """A route to a daemon. All but `place` belongs to the client's thread once that has begun."""

    @property
    def place(self) -> Place: ...
    @property
    def socket(self) -> Path | None:
        """The daemon's socket, None while there is no route."""

    @property
    def user(self) -> str:
        """The user name on the daemon's node, empty for the local daemon."""

    @property
    def waits_on(self) -> list[int]:
        """File descriptors that should wake the client."""

    def begin(self, now: float) -> None:
        """Begin to connect. May be called again."""

    def check(self, now: float, heard: float, greeted: bool) -> Trouble | None:
        """Return why the connection no longer leads to a live daemon. `heard` is the time of its last
        message."""

    def silent(self, now: float, pid: int | None) -> Trouble:
        """Report that the daemon's answer is overdue. `pid` is the daemon's, if known."""

    def served(self) -> None:
        """A daemon has answered."""

    def again(self, now: float) -> None:
        """Retry now, at a user's request."""

    def wake_at(self, heard: float) -> float:
        """Return when `check` has something to do next."""

    def close(self) -> None: ...


class Here:
    """The daemon of this node. It is started if there is none."""

    place = Place()
    user = ""
    waits_on: list[int] = []

    def __init__(self, where: Addresses, *, start_daemon: bool = True) -> None:
        self._where = where
        self._may_start = start_daemon
        self._check_at = self._start_at = 0.0
        self._starts = 0
        self._failed = ""

    @property
    def socket(self) -> Path:
        return self._where.viewers

    def begin(self, now: float) -> None:
        if not processes.daemon_lives(self._where):
            self._start(now)

    def check(self, now: float, heard: float, greeted: bool) -> Trouble | None:
        if now < self.wake_at(heard):
            return None
        self._check_at = now + QUIET_S / 2
        if processes.daemon_lives(self._where):
            return None
        self._start(now)
        return Trouble(
            self._failed or ("the daemon is gone" if greeted else "no daemon is running"), bool(self._failed)
        )

    def silent(self, now: float, pid: int | None) -> Trouble:
        return Trouble(f"the daemon{f' (pid {pid})' if pid else ''} does not answer")

    def served(self) -> None:
        self._starts = 0

    def again(self, now: float) -> None:
        self._start_at = now

    def wake_at(self, heard: float) -> float:
        return max(self._check_at, heard + QUIET_S)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _start(self, now: float) -> None:
        if not self._may_start or now < self._start_at:
            return
        self._starts = min(self._starts + 1, len(START_AGAIN_S) - 1)
        self._start_at = now + START_AGAIN_S[self._starts]
        self._failed = ""
        try:
            processes.start_daemon(self._where)
        except processes.StartError as error:
            self._failed = str(error)
        else:
            if self._starts > STARTS:
                self._failed = unstable(self._where)
        self._check_at = time.monotonic() + QUIET_S


class There:
    """The daemon of another node. The other end of the tunnel starts it if there is none."""

    def __init__(self, place: Place, *, hoptui: str = "hoptui") -> None:
        self.place = place
        self._hoptui = hoptui
        self._tunnel: Tunnel | None = None
        self._at: tuple[Path | None, int] = (None, 0)  # the socket and the number of the daemon behind it

    @property
    def socket(self) -> Path | None:
        return self._tunnel.socket if self._tunnel else None

    @property
    def user(self) -> str:
        return self._tunnel.user if self._tunnel else ""

    @property
    def waits_on(self) -> list[int]:
        return self._tunnel.waits_on if self._tunnel else []

    def begin(self, now: float) -> None:
        """Start ssh.

        Raises:
            AddressError: there is no directory for its socket.
        """
        if self._tunnel is None:
            where = addresses()
            tunnel.sweep(where.directory)
            self._tunnel = Tunnel(self.place, where.directory, hoptui=self._hoptui)
            self._tunnel.open(now)

    def check(self, now: float, heard: float, greeted: bool) -> Trouble | None:
        way = self._tunnel
        assert way is not None
        way.poll(now)
        if way.state != "open":
            return Trouble(way.reason, way.state == "refused")
        before, self._at = self._at, (way.socket, way.daemons)
        if before[0] == way.socket and before != self._at:
            return Trouble(f"another daemon has begun on {self.place.name}")
        why = "" if greeted else tunnel.forbidden(self.place, way.errors)
        return Trouble(why, failed=True) if why else None

    def silent(self, now: float, pid: int | None) -> Trouble:
        assert self._tunnel is not None
        self._tunnel.lose(now, f"{self.place.name} does not answer")
        return Trouble(self._tunnel.reason)

    def served(self) -> None:
        if self._tunnel is not None:
            self._tunnel.served()

    def again(self, now: float) -> None:
        if self._tunnel is not None:
            self._tunnel.again(now)

    def wake_at(self, heard: float) -> float:
        return self._tunnel.wake_at() if self._tunnel else float("inf")

    def close(self) -> None:
        if self._tunnel is not None:
            self._tunnel.close()
