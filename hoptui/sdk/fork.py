"""Protection of the run in forked children.

A child must not speak for its parent or keep its parent's connection open. A DataLoader worker that outlives
a killed trainer would otherwise hold the inherited socket, and the daemon would never see that the trainer is
gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import weakref
from pathlib import Path
from typing import Protocol


class Abandonable(Protocol):
    """An object that is switched off in a forked child."""

    def abandon(self) -> None: ...


_guarded: weakref.WeakSet[Abandonable] = weakref.WeakSet()
_directories: set[bytes] = set()


def guard(run: Abandonable) -> None:
    """Switch `run` off in every child that is forked from now on."""
    _guarded.add(run)


def close_in_children(directory: Path) -> None:
    """In every child forked from now on, close the sockets that are connected to paths under `directory`."""
    _directories.add(os.fsencode(directory) + b"/")


def _after_fork_in_child() -> None:
    # No locks here: another thread of the parent may have held them when the process was forked.
    for run in list(_guarded):
        run.abandon()
    if _directories:
        for number in _open_sockets():
            _close_if_ours(number)


def _open_sockets() -> list[int]:
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


def _close_if_ours(number: int) -> None:
    try:
        sock = socket.socket(fileno=number)
    except OSError:
        return
    try:
        peer = sock.getpeername()
    except OSError:
        peer = b""
    sock.detach()
    name = peer if isinstance(peer, bytes) else os.fsencode(peer) if isinstance(peer, str) else b""
    if any(name.startswith(directory) for directory in _directories):
        with contextlib.suppress(OSError):
            os.close(number)


os.register_at_fork(after_in_child=_after_fork_in_child)
