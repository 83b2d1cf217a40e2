"""What only the kernel can do: cut sockets, suspend one thread, choose the next pid, full and failing disks.

Each needs a right that a machine may not give. `denied` returns those that are missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_PIDFD_GETFD = 438
_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000
_WAITING = (7, 23, 232, 270, 271, 281)
"""System calls of x86-64 that wait: poll, select, epoll_wait, pselect6, ppoll, epoll_pwait."""
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
MiB = 1 << 20


def cut(pid: int, path: Path) -> int:
    """Shut down the connections of a process to the Unix socket at `path`. Return how many.

    The process still has the file descriptors and sees the end of the connection.

    Raises:
        OSError: it may not be traced, or is gone.
    """
    wanted, done = {os.fsencode(path), os.fsencode(f"{path}.new")}, 0
    process = os.pidfd_open(pid)
    try:
        for number in [int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()]:
            copy = _libc.syscall(_PIDFD_GETFD, process, number, 0)
            if copy < 0:
                if ctypes.get_errno() == 1:
                    raise PermissionError("file descriptors of other processes cannot be copied")
                continue
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(copy)) as found:
                if found.family == socket.AF_UNIX and os.fsencode(found.getpeername()) in wanted:
                    found.shutdown(socket.SHUT_RDWR)
                    done += 1
            os.close(copy)
    finally:
        os.close(process)
    return done


@contextlib.contextmanager
def suspended(tid: int) -> Iterator[bool]:
    """Suspend one thread while it waits in the kernel, so that it holds no lock of the interpreter.

    Yields whether it was suspended. The other threads of its process go on.
    """
    _ptrace(_SEIZE, tid)
    held = False
    try:
        for _ in range(50):
            _ptrace(_INTERRUPT, tid)
            os.waitpid(tid, _WALL)
            call = Path(f"/proc/{tid}/syscall").read_text().split()[0]
            if call.lstrip("-").isdigit() and int(call) in _WAITING:
                held = True
                break
            _ptrace(7, tid)  # PTRACE_CONT
            time.sleep(0.002)
        yield held
    finally:
        with contextlib.suppress(OSError):
            if not held:
                _ptrace(_INTERRUPT, tid)
                os.waitpid(tid, _WALL)
            _ptrace(_DETACH, tid)


def _ptrace(request: int, tid: int) -> None:
    if _libc.ptrace(request, tid, None, None) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


@contextlib.contextmanager
def small_disk(place: Path, size: int, *, inodes: int = 0) -> Iterator[Path]:
    """Mount a tmpfs of so many bytes, and of so many inodes.

    Raises:
        OSError: it may not be mounted.
    """
    place.mkdir(mode=0o700, exist_ok=True)
    options = f"size={size},mode=0700" + (f",nr_inodes={inodes}" if inodes else "")
    _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place))
    try:
        yield place
    finally:
        _unmount(place)


@contextlib.contextmanager
def failing_disk(place: Path, size: int = 64 * MiB) -> Iterator[Callable[[], object]]:
    """Mount a disk at `place`. Calling what is yielded breaks it for good: it answers EIO, then is read-only.

    It is an ext4 on a sparse file, on a tmpfs without room.

    Raises:
        OSError: it may not be mounted.
    """
    back = place.with_name(f"{place.name}.back")
    with small_disk(back, size + 8 * MiB):
        image = back / "image"
        with image.open("wb") as file:
            file.truncate(size)
        _run("mkfs.ext4", "-q", "-F", str(image))
        place.mkdir(mode=0o700, exist_ok=True)
        _run("mount", "-o", "loop", str(image), str(place))
        place.chmod(0o700)
        try:
            yield partial(fill, back)
        finally:
            _unmount(place)


def fill(place: Path, name: str = "ballast", leave: int = 0) -> Path:
    """Fill a file system with one file, but for `leave` bytes. Return the file."""
    ballast = place / name
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while (free := shutil.disk_usage(place).free - leave) > 0:
            file.write(bytes(min(free, MiB)))
    return ballast


def set_next_pid(pid: int) -> None:
    """Let the next process have this pid, unless another process of the machine is quicker.

    Raises:
        OSError: the kernel does not allow it.
    """
    LAST_PID.write_text(str(pid - 1))


def denied(base: Path) -> dict[str, str]:
    """Return which faults this machine does not allow, and why."""
    found = {}
    trials: dict[str, Callable[[], object]] = {
        "full disk": lambda: _try(small_disk(base / "try", MiB)),
        "failing disk": lambda: _try(failing_disk(base / "try-io", 8 * MiB)),
        "reused pid": lambda: LAST_PID.write_text(LAST_PID.read_text()),
        "cut": lambda: _with_child(lambda pid: cut(pid, base)),
        "frozen link": lambda: _with_child(_try_suspending),
    }
    for name, trial in trials.items():
        try:
            trial()
        except OSError as error:
            found[name] = str(error.strerror or error)
    return found


def _try(mount: contextlib.AbstractContextManager[object]) -> None:
    with mount:
        pass


def _try_suspending(pid: int) -> None:
    with suspended(pid):
        pass


def _with_child(trial: Callable[[int], object]) -> None:
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
    try:
        trial(child.pid)
    finally:
        child.kill()
        child.wait()


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise OSError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")


def _unmount(place: Path) -> None:
    with contextlib.suppress(OSError):
        _run("umount", "-l", str(place))
