"""Processes of a node: the peer of a socket, the namespace of PIDs, and the daemon.

The kernel vouches for the peer of an ipc socket (SO_PEERCRED, through libzmq). A container may count PIDs
separately; see pid_namespaces(7).

A daemon is started if there is none. The lock shows that a daemon lives, never the socket file. A socket file
survives a crash, an fcntl lock does not. Unlike a flock lock, it is not kept by a forked child that outlives
its parent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hoptui.node.addresses import Addresses

_PEER = re.compile(r"localhost:(\d+):(\d+):(\d+)")


@dataclass(frozen=True)
class Peer:
    """A process on this machine."""

    uid: int
    gid: int
    pid: int

    @property
    def user(self) -> str:
        """The login name, or the uid if there is none."""
        return user_name(self.uid)


def peer_of(address: str) -> Peer | None:
    """Parse libzmq's `Peer-Address`, `localhost:<uid>:<gid>:<pid>`. None for any other form."""
    found = _PEER.fullmatch(address)
    return Peer(*map(int, found.groups())) if found else None


def user_name(uid: int | None = None) -> str:
    """Return the login name of a uid (default: this process's), or the number if it has none."""
    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


THE_MACHINES = 0xEFFFFFFC
"""PROC_PID_INIT_INO of linux/proc_ns.h: the inode of the first namespace, which sees every process."""


def whose_pids(proc: Path = Path("/proc")) -> Literal["machine", "container", "unknown"]:
    """Return which PID namespace this process is in.

    Args:
        proc: where the kernel lists processes.
    """
    try:
        inode = str((proc / "self/ns/pid").readlink())  # pid:[4026531836]
    except OSError:
        return "unknown"
    return "machine" if inode == f"pid:[{THE_MACHINES}]" else "container"


def ends_with_daemon(environ: Mapping[str, str]) -> bool:
    """Return whether the daemon may be killed as soon as this process has ended.

    Slurm kills what a step leaves behind, and the kernel kills what is left of a container.
    """
    return bool(environ.get("SLURM_JOB_ID")) or whose_pids() == "container"


def unstable(where: Addresses, ends: str = "the daemon ends as soon as it is started") -> str:
    """Return one sentence on why a daemon ends at once, or what else it does, as `ends` says.

    The cause is a read-only or full disk, on which it cannot log a reason. Otherwise the sentence points to
    its log.
    """
    if where.directory.exists() and not os.access(where.directory, os.W_OK):
        return f"{ends}: {where.directory} cannot be written"
    for place in (where.directory, where.state):
        with contextlib.suppress(OSError):
            if os.statvfs(place).f_bavail == 0:
                return f"{ends}: no space is left under {place}"
    return f"{ends}: {where.log} says why"


def process_started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot (proc(5), field 22 of stat). None if it is
    gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def process_state(pid: int) -> str:
    """Return the state of a process as one letter: R, S, D, T (stopped), t (traced), Z (proc(5), field 3 of
    stat). "" if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


class StartError(Exception):
    """The daemon could not be started. The text is one sentence."""


def daemon_lives(where: Addresses) -> bool:
    """Return whether another process holds the daemon's lock.

    It only queries (F_GETLK). Taking the lock, however briefly, would make a daemon that starts at that
    moment exit.
    """
    return lock_holder(where) is not None


def lock_holder(where: Addresses) -> int | None:
    """Return the pid of the process that holds the daemon's lock, None if there is none.

    The kernel gives 0 or less if that process is not visible here, as in another container.
    """
    try:
        file = os.open(where.lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            held = fcntl.fcntl(file, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        finally:
            os.close(file)
    except OSError:
        return None
    kind, _, _, _, pid = _FLOCK.unpack(held)
    return None if kind == fcntl.F_UNLCK else int(pid)


# Linux's struct flock with a 64-bit off_t: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi")


INJECTION = "_HOPTUI_RUN"
"""What `hoptui run` gives to its processes, in JSON. `python` is its own interpreter."""
INJECTION_SITE = str(Path(__file__).resolve().parents[1] / "injection" / "site")


def without_injection(environ: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the environment without what `hoptui run` added, and the interpreter for a daemon.

    A script of `hoptui run` may use an interpreter that lacks what a daemon needs.
    """
    found = dict(environ)
    given = found.pop(INJECTION, "")
    if not given:
        return found, sys.executable
    places = found.get("PYTHONPATH", "").split(os.pathsep)
    found["PYTHONPATH"] = os.pathsep.join(place for place in places if place != INJECTION_SITE)
    with contextlib.suppress(ValueError, AttributeError):
        python = json.loads(given).get("python")
        if isinstance(python, str) and os.access(python, os.X_OK):
            return found, python
    return found, sys.executable


def start_daemon(where: Addresses) -> None:
    """Start a daemon in the background and return once it has detached. Losers of a race exit by themselves.

    The new process has no parent to wait for it: it forks once more and leaves this session. So it outlives a
    login, and this process never has to reap it.

    Raises:
        StartError: it could not start; the text has the last line it printed.
    """
    package = Path(__file__).resolve().parents[2]
    environment, python = without_injection(os.environ)
    environment["HOPTUI_DIR"] = str(where.directory)
    environment["HOPTUI_STATE_DIR"] = str(where.state)
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(package), environment.get("PYTHONPATH", "")))
    )
    for name in ("PYTHONSTARTUP", "PYTHONINSPECT", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    try:
        done = subprocess.run(
            [python, "-m", "hoptui.daemon", "--detach"],
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
