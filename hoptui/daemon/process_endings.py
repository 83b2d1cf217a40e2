"""How a process of a run ended: its exit code or its signal, as far as the kernel says so.

The daemon is not the parent of a run, so it cannot wait for it. While nobody has reaped the process, its exit
code is in /proc. Afterwards the pidfd has it, from Linux 6.15 on. Otherwise it is unknown.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from pathlib import Path
from typing import NamedTuple

_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info of linux/pidfd.h, first version: mask, cgroup, eleven ids, exit code."""
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""PIDFD_GET_INFO: _IOWR(0xFF, 11, struct pidfd_info)."""
_EXIT = 1 << 3
"""PIDFD_INFO_EXIT."""
_STATE, _EXIT_CODE = 0, 49
"""Fields 3 and 52 of /proc/<pid>/stat, after the name."""


class ProcessEnding(NamedTuple):
    """The reason and the detail that viewers show. `known` is False if the kernel does not say."""

    reason: str
    detail: str
    known: bool = True

    @property
    def text(self) -> str:
        """`killed by SIGKILL`, `failed: exit code 3`."""
        between = " " if self.detail.startswith("by ") else ": "
        return f"{self.reason}{between}{self.detail}"

    @property
    def normal(self) -> bool:
        """Whether it may have ended by itself, without an error."""
        return self.reason == "exited"


UNKNOWN = ProcessEnding("exited", "its process ended without a report; its exit code is unknown", False)


def ending_of(pidfd: int, pid: int) -> ProcessEnding:
    """Return how a process ended that the pidfd reports as gone."""
    status = _by_pidfd(pidfd)
    if status is None:
        status = _by_proc(pid)
    if status is None:  # it was reaped in between
        status = _by_pidfd(pidfd)
    return UNKNOWN if status is None else of_status(status)


def of_status(status: int) -> ProcessEnding:
    """Return the ending that the status of wait(2) stands for."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:  # a real-time signal
            name = f"signal {number}"
        return ProcessEnding("killed", f"by {name}")
    code = os.WEXITSTATUS(status)
    if code:
        return ProcessEnding("failed", f"exit code {code}")
    return ProcessEnding("exited", "exit code 0, without a report")


def _by_pidfd(pidfd: int) -> int | None:
    asked = bytearray(_INFO.pack(_EXIT, 0, *[0] * 11, 0))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, asked)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(asked)
    return status if mask & _EXIT else None


def _by_proc(pid: int) -> int | None:
    """Return the status of a process that nobody has reaped.

    The kernel shows 0 to those who may not see it. They may not see the program of the process either.
    """
    folder = Path(f"/proc/{pid}")
    try:
        (folder / "exe").readlink()
        return None
    except FileNotFoundError:  # a dead process has no program
        pass
    except OSError:
        return None
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        return int(fields[_EXIT_CODE]) if fields[_STATE] == "Z" else None
    except (OSError, ValueError, IndexError):
        return None
