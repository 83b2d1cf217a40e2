"""Whether a thread sleeps, as the kernel says.

A thread that computes gradients on the CPU sleeps only while it waits, if it computes alone. Under
DistributedDataParallel it waits for other ranks then, in C++, where its stack does not show it. Where torch
computes in several threads, the thread also waits for these. Gradients on a GPU are computed in another
thread of torch, and the one that called it sleeps all the time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TASKS = Path("/proc/self/task")
RUNS, SLEEPS = b"R", b"S"
"""States of proc(5). In `R` a thread runs, or waits for a processor."""
START_OF_STAT = 96
"""Bytes of `stat` that hold the name of a thread, which has at most 15, and its state."""
ENGINE_THREADS = "pt_autograd"
"""How torch names the threads that compute gradients for a GPU."""


class ThreadSleep:
    """Whether a thread of this process sleeps. One file stays open for it."""

    def __init__(self) -> None:
        self._opened = 0
        self._file = -1

    def look(self, thread: int) -> bool | None:
        """Return whether a thread sleeps, None if that is unknown. It takes 3 to 20 µs.

        Args:
            thread: The kernel's number of it. 0: none.
        """
        try:
            if thread != self._opened:
                self.close()
                self._file = os.open(TASKS / str(thread) / "stat", os.O_RDONLY)
                self._opened = thread
            known = os.pread(self._file, START_OF_STAT, 0) if thread else b""
        except OSError:  # it has ended
            return None
        state = known.rpartition(b") ")[2][:1]
        return state == SLEEPS if state in (RUNS, SLEEPS) else None

    def close(self) -> None:
        """Close what is open."""
        file, self._file, self._opened = self._file, -1, 0
        if file >= 0:
            os.close(file)


class EngineThreads:
    """Whether torch has threads that compute gradients for a GPU."""

    def __init__(self) -> None:
        self._known: set[Path] = set()
        self._found = False

    def look(self) -> bool:
        """Look at the names of threads that are new."""
        with suppress(OSError):
            tasks = set(TASKS.iterdir())
            new = tasks - self._known
            self._known = tasks
            for task in new:
                with suppress(OSError):  # it has ended
                    name = (task / "comm").read_text("utf-8", "replace")
                    self._found = self._found or name.startswith(ENGINE_THREADS)
        return self._found
