"""The thread that the training thread waits for, and what it runs: a queue has no data because of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType

from hoptui.domain.stacks import THREAD_WAITS

THREADING = threading.__file__
STARTERS = (THREADING, str(Path(THREADING).parent / "concurrent" / "futures" / "thread.py"))
"""Files whose functions start what a thread runs."""
MOST_THREADS = 8
"""With more threads than this that may run, it is unknown which one is waited for."""
STILL_S = 3.0
"""A thread that has been at one instruction for so long counts only if no other one runs."""


def waits_for_thread(code: CodeType) -> bool:
    """Whether a thread in this function waits for another thread."""
    return code.co_name in THREAD_WAITS and code.co_filename == THREADING


class WaitedThread:
    """Finds the thread that the training thread waits for.

    Nothing says which thread puts into a queue. If all that run have been started with the same function, it
    is one of them. A thread that is blocked in C code, such as a read of a socket, may look as if it ran.

    Args:
        waits: Whether a thread in a function waits itself.
        own: The folder of code whose threads do not count.
    """

    def __init__(self, waits: Callable[[CodeType], bool], own: str) -> None:
        self._waits, self._own = waits, own
        self._seen: dict[int, tuple[CodeType, int, float]] = {}  # where a thread is, and since when

    def find(self, threads: Mapping[int, FrameType]) -> FrameType | None:
        """Return its innermost frame. None: no thread runs, or it is unknown which one it is.

        Args:
            threads: The innermost frames of all threads but the one that waits.
        """
        running = {one: frame for one, frame in threads.items() if not self._waits(frame.f_code)}
        if len(running) > MOST_THREADS:
            return None
        now, before = time.monotonic(), self._seen
        self._seen = {}
        found: dict[int, tuple[float, FrameType]] = {}  # by the `id` of the function, the one that moved last
        for one, frame in running.items():
            root = _root(frame)
            if root is None or root.co_filename.startswith(self._own):
                continue
            known, since = before.get(one), now
            if known is not None and known[0] is frame.f_code and known[1] == frame.f_lasti:
                since = known[2]
            self._seen[one] = frame.f_code, frame.f_lasti, since
            if id(root) not in found or since > found[id(root)][0]:
                found[id(root)] = since, frame
        moving = [frame for since, frame in found.values() if now - since < STILL_S]
        if len(found) > 1:
            return moving[0] if len(moving) == 1 else None
        return next((frame for _, frame in found.values()), None)


def _root(frame: FrameType) -> CodeType | None:
    """Return the function that a thread has been started with. None: C code has started it."""
    root = None
    outer: FrameType | None = frame
    while outer is not None:
        frame, outer = outer, outer.f_back
        if frame.f_code.co_filename not in STARTERS:
            root = frame.f_code
    return root if frame.f_code.co_filename == THREADING else None
