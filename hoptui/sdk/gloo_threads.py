"""Threads of Gloo that still hold tensors while the process exits.

A thread that frees its last tensor as the interpreter exits needs the interpreter. PyTorch then aborts the
process, or waits for the thread for ever if a DDP module is freed at that time (PyTorch issue 190489). Both
happen without hoptui. They are rare: the thread must be late by the time from the last collective to the end.
"""

from __future__ import annotations

import time
from contextlib import suppress

from hoptui.sdk.thread_sleep import TASKS, ThreadSleep

NAME = "pt_gloo_runloop"
"""Of the threads. A release of PyTorch that names them differently is not waited for."""
LIMIT_S = 0.5
LOOK_S = 0.001
QUIET_LOOKS = 10
"""So many looks in turn find all threads asleep. One that waits for the interpreter gets it meanwhile."""


def wait_until_idle(limit_s: float = LIMIT_S) -> bool:
    """Wait until no thread of Gloo runs, at most `limit_s` seconds. Return whether none does."""
    threads = _threads()
    sleep = ThreadSleep()
    until = time.monotonic() + limit_s
    quiet = 0 if threads else QUIET_LOOKS
    while quiet < QUIET_LOOKS and time.monotonic() < until:
        time.sleep(LOOK_S)  # without the interpreter
        quiet = 0 if any(sleep.look(thread) is False for thread in threads) else quiet + 1
    sleep.close()
    return quiet >= QUIET_LOOKS


def _threads() -> list[int]:
    """Return the kernel's numbers of the threads of Gloo."""
    found: list[int] = []
    with suppress(OSError):  # no /proc
        for task in TASKS.iterdir():
            with suppress(OSError):  # it has ended
                if (task / "comm").read_text("utf-8", "replace").strip() == NAME:
                    found.append(int(task.name))
    return found
