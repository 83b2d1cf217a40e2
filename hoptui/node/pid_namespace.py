"""Are pids counted here as on the whole machine, or has a container a count of its own? See
pid_namespaces(7)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

THE_MACHINES = 0xEFFFFFFC
"""PROC_PID_INIT_INO of linux/proc_ns.h: the inode of the first namespace, which sees every process."""


def whose_pids(proc: Path = Path("/proc")) -> Literal["machine", "container", "unknown"]:
    """By whose count this process and those it sees have their pids.

    Args:
        proc: where the kernel lists processes.
    """
    try:
        inode = str((proc / "self/ns/pid").readlink())  # pid:[4026531836]
    except OSError:
        return "unknown"
    return "machine" if inode == f"pid:[{THE_MACHINES}]" else "container"
