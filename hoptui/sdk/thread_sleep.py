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
START_OF_CALL = 24
"""Bytes of `syscall` that hold the number of a call."""
RUNNING = -2
"""Stands for a thread that is in no system call, or can run. The kernel has -1 for one that is stopped."""
FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
"""The system call in which a thread waits for a lock, and so for the interpreter. None on other machines."""
ENGINE_THREADS = "pt_autograd"
"""How torch names the threads that compute gradients for a GPU."""


class _TaskFile:
    """A file of proc(5) of a thread of this process. That of one thread stays open."""

    def __init__(self, name: str, most_bytes: int) -> None:
        self._name, self._most_bytes = name, most_bytes
        self._opened = 0
        self._file = -1

    def read(self, thread: int) -> bytes:
        """Return how the file begins, nothing if the thread has ended or the kernel does not tell.

        Args:
            thread: The kernel's number of the thread. 0: none.
        """
        try:
            if thread != self._opened:
                self.close()
                self._file = os.open(TASKS / str(thread) / self._name, os.O_RDONLY)
                self._opened = thread
            return os.pread(self._file, self._most_bytes, 0) if thread else b""
        except OSError:
            return b""

    def close(self) -> None:
        """Close what is open."""
        file, self._file, self._opened = self._file, -1, 0
        if file >= 0:
            os.close(file)


class ThreadSleep(_TaskFile):
    """Whether a thread of this process sleeps."""

    def __init__(self) -> None:
        super().__init__("stat", START_OF_STAT)

    def look(self, thread: int) -> bool | None:
        """Return whether a thread sleeps, None if that is unknown. It takes 3 to 20 µs.

        Args:
            thread: The kernel's number of it. 0: none.
        """
        state = self.read(thread).rpartition(b") ")[2][:1]
        return state == SLEEPS if state in (RUNS, SLEEPS) else None


class ThreadCall(_TaskFile):
    """The system call that a thread of this process sleeps in."""

    def __init__(self) -> None:
        super().__init__("syscall", START_OF_CALL)

    def look(self, thread: int) -> int | None:
        """Return the number of the call, None if it is unknown. It takes 5 to 25 µs.

        It is `RUNNING` while the thread runs or waits for a processor.

        Args:
            thread: The kernel's number of it. 0: none.
        """
        known = self.read(thread).split()
        if not known:
            return None
        return RUNNING if known[0] == b"running" else int(known[0])


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
