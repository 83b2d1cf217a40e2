"""What threads of this process have had of the processors, as the kernel counts it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple


class ThreadUse(NamedTuple):
    """Seconds since a thread began: how long it ran, and how long it waited for a processor.

    NaN: unknown.
    """

    ran_s: float = math.nan
    queued_s: float = math.nan

    def since(self, before: ThreadUse) -> ThreadUse:
        """Return what has come since an earlier reading."""
        return ThreadUse(self.ran_s - before.ran_s, self.queued_s - before.queued_s)

    def share(self, passed_s: float) -> ThreadUse:
        """Return both as shares of a time, 0 to 1. The kernel counts a little late."""
        return ThreadUse(
            *(value if math.isnan(value) else min(1.0, max(0.0, value / passed_s)) for value in self)
        )


UNKNOWN = ThreadUse()


def thread_use(thread: int) -> ThreadUse:
    """Return what a thread has had until now.

    A kernel may lack `schedstat` of proc(5), or count nothing in it.

    Args:
        thread: The kernel's number of a thread of this process.
    """
    try:
        ran, queued, _ = map(int, Path(f"/proc/self/task/{thread}/schedstat").read_bytes().split())
    except (OSError, ValueError):  # it has ended, or another kernel
        return UNKNOWN
    return ThreadUse(ran / 1e9, queued / 1e9) if ran else UNKNOWN
