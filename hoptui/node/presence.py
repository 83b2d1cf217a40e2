"""Is there a daemon, and if not, start one: the same few lines for the SDK and for every viewer.

Liveness is the lock, never the socket file: a socket file survives a crash, an fcntl lock does not, and a
forked child that outlives its parent does not keep it (flock would).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
from pathlib import Path

from hoptui.node.addresses import Addresses


def unstable(where: Addresses) -> str:
    """Why it is gone at once: a full or read-only disk, on which it could not tell it either; or see its
    log."""
    ends = "the daemon ends as soon as it is started"
    if where.directory.exists() and not os.access(where.directory, os.W_OK):
        return f"{ends}: {where.directory} cannot be written"
    for place in (where.directory, where.state):
        with contextlib.suppress(OSError):
            if os.statvfs(place).f_bavail == 0:
                return f"{ends}: no space is left under {place}"
    return f"{ends}: {where.log} says why"


class StartError(Exception):
    """The daemon could not be started; its text is one sentence."""


def daemon_lives(where: Addresses) -> bool:
    """Whether some other process holds the daemon's lock.

    It only asks (F_GETLK): to take the lock, however briefly, would turn away a daemon that starts at that
    moment.
    """
    try:
        with where.lock.open("rb") as file:
            held = fcntl.fcntl(file, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    kind: int = _FLOCK.unpack(held)[0]
    return kind != fcntl.F_UNLCK


# Linux's struct flock where off_t has 64 bits: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi")


def start_daemon(where: Addresses) -> None:
    """Start a daemon in the background and return once it has detached; the losers of a race leave by
    themselves.

    The new process is nobody's child: it forks once more and leaves this session, so that it outlives a login
    and this process never has to reap it.

    Raises:
        StartError: it could not even start, with the last line it printed.
    """
    package = Path(__file__).resolve().parents[2]
    environment = dict(os.environ)
    environment["HOPTUI_DIR"] = str(where.directory)
    environment["HOPTUI_STATE_DIR"] = str(where.state)
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(package), os.environ.get("PYTHONPATH", "")))
    )
    for name in ("PYTHONSTARTUP", "PYTHONINSPECT", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hoptui.daemon", "--detach"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise StartError(f"the daemon could not be started: {error}") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise StartError(f"the daemon could not be started: {last[0]}")
