"""Directories, disks and sockets."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from hoptui.cli.doctor import Check
from hoptui.cli.support.recordings import size
from hoptui.node.addresses import AddressError, Addresses, secure
from hoptui.node.processes import lock_holder, whose_pids
from hoptui.presentation import numbers
from hoptui.presentation.numbers import counted

LEAST_FREE = 1 << 30
NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "9p",
    "afs",
    "fuse.sshfs",
    "fuse.gluster",
)


def runtime_directory(where: Addresses) -> Check:
    """The daemon makes its lock, its log and its sockets there; whose it is has been looked at."""
    if not os.access(where.directory, os.W_OK):
        advice = "set HOPTUI_DIR to a directory of your own"
        return Check("runtime-directory", "failed", f"{where.directory} cannot be written", advice)
    return Check("runtime-directory", "ok", f"{where.directory} is yours alone")


def state_directory(where: Addresses, mounts: Path = Path("/proc/self/mounts")) -> Check:
    """Recordings are SQLite files, which must not live on a network file system."""
    elsewhere = "set HOPTUI_STATE_DIR to a directory of your own"
    try:
        secure(where.state)
    except AddressError as error:
        return Check("state-directory", "failed", str(error), elsewhere)
    if not os.access(where.state, os.W_OK):
        return Check("state-directory", "failed", f"{where.state} cannot be written", elsewhere)
    kind = file_system(where.state, mounts.read_text())
    detail = f"{where.state} is yours alone, {kind}"
    if kind.startswith(NETWORK):
        advice = "recordings need a local disk: set HOPTUI_STATE_DIR"
        return Check("state-directory", "warning", detail, advice)
    return Check("state-directory", "ok", detail)


def disk(where: Addresses) -> Check:
    """Room for recordings, and for the daemon's own few files."""
    rooms, tight = [], []
    for directory in dict.fromkeys((where.state, where.directory)):
        if not directory.exists():
            continue
        free, found = shutil.disk_usage(directory).free, os.statvfs(directory)
        rooms.append(f"{directory}: {size(free)} free")
        least = LEAST_FREE if directory == where.state else LEAST_FREE >> 6
        if free < least:
            tight.append(f"make room on the disk of {directory}")
        elif found.f_files and not found.f_favail:
            tight.append(f"the disk of {directory} has no inodes left: delete files there")
    if tight:
        return Check(
            "disk", "warning", ", ".join(rooms), f"{'; '.join(tight)} (a full disk keeps no history)"
        )
    return Check("disk", "ok", ", ".join(rooms))


def recordings(where: Addresses, environ: Mapping[str, str]) -> Check:
    """How many there are, and what they take of what they may."""
    from hoptui.daemon.recordings import GB, limits, refused
    from hoptui.recording import library

    entries = library.entries(where.state) if where.state.is_dir() else []
    most = limits(environ).keep_bytes
    count = counted(len(entries), "recording")
    used = sum(entry.size_bytes for entry in entries)
    detail = f"{count}, {size(used)} of {most / GB:g} GB"
    if complaints := refused(environ):
        advice = "set it where the daemon starts, then hoptui daemon stop (runs survive)"
        return Check(
            "recordings", "warning", f"{detail}; {numbers.clean('; '.join(complaints), 200)}", advice
        )
    damaged = [entry for entry in entries if entry.problem]
    if damaged:
        which = ", ".join(numbers.clean(entry.run, 40) for entry in damaged[:3])
        more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
        advice = "hoptui ls --all says what is wrong, hoptui rm RUN deletes one"
        return Check("recordings", "warning", f"{detail}; cannot be read: {which}{more}", advice)
    if used > most:
        advice = "the daemon deletes the oldest of exited runs; hoptui rm does it now"
        return Check("recordings", "warning", detail, advice)
    return Check("recordings", "ok", detail)


def sockets(where: Addresses, answer_s: float) -> Check:
    """Both of the daemon's sockets are where they belong, closed to others, and the viewers' one answers."""
    gone = [path for path in (where.runs, where.viewers) if not _is_socket(path)]
    if gone:
        advice = "the daemon puts it back within 5 s; if not: hoptui daemon stop (runs survive)"
        return Check("sockets", "warning", f"{gone[0]} is not there", advice)
    open_to = [path for path in (where.runs, where.viewers) if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if open_to:
        detail = f"{open_to[0]} is open to others (mode {stat.S_IMODE(open_to[0].stat().st_mode):o})"
        return Check("sockets", "warning", detail, f"chmod 600 {open_to[0]}")
    return Check("sockets", "ok", f"{where.viewers} answers in {numbers.seconds(answer_s)}")


def lock(where: Addresses, pid: int) -> Check:
    """The daemon that answers, `pid`, holds the lock that keeps it the only one."""
    holder = lock_holder(where)
    detail = advice = ""
    if holder is None:
        detail = f"{where.lock} was deleted, or is not the file of the daemon (pid {pid})"
        advice = "the daemon makes it again within 2 s; keep jobs that clean up out of this directory"
    elif holder > 0 and holder != pid and whose_pids() == "machine":
        detail = f"two daemons: pid {holder} holds {where.lock}, and pid {pid} answers"
        advice = f"the one without the lock ends within 2 s; if not: kill {pid} (runs survive)"
    if detail:
        return Check("lock", "warning", detail, advice)
    return Check("lock", "ok", f"{where.lock} is held by the daemon that answers")


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that holds `path`, given the text of /proc/self/mounts."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        _, point, its_kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = path.resolve().is_relative_to(point)
        if inside and len(point) >= len(best):
            best, kind = point, its_kind
    return kind


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False
