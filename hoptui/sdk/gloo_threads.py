"""Threads of Gloo that still hold tensors while the process exits.

A thread that frees its last tensor as the interpreter exits needs the interpreter. PyTorch then aborts the
process, or waits for the thread for ever if a DDP module is freed at that time (PyTorch issue 190489). Both
happen without hoptui. They are rare: the thread must be late by the time from the last collective to the end.
"""

from __future__ import annotations

import time
from pathlib import Path

NAME = "pt_gloo_runloop"
"""Of the threads. A release of PyTorch that names them differently is not waited for."""
LIMIT_S = 0.5
LOOK_S = 0.001
QUIET_LOOKS = 10
"""So many looks in turn find all threads asleep. One that waits for the interpreter gets it meanwhile."""
TASKS = Path("/proc/self/task")


def wait_until_idle(limit_s: float = LIMIT_S) -> bool:
    """Wait until all threads of Gloo wait for work, at most `limit_s` seconds. Return whether they do."""
    threads = [task for task in TASKS.iterdir() if _read(task / "comm").strip() == NAME]
    until = time.monotonic() + limit_s
    quiet = 0 if threads else QUIET_LOOKS
    while quiet < QUIET_LOOKS and time.monotonic() < until:
        time.sleep(LOOK_S)  # without the interpreter
        quiet = 0 if any(map(_runs, threads)) else quiet + 1
    return quiet >= QUIET_LOOKS


def _runs(task: Path) -> bool:
    """Whether a thread has a processor or waits for one."""
    return _read(task / "stat").rpartition(")")[2].split()[:1] == ["R"]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # the thread has ended
        return ""
