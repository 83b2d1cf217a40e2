"""Whom the driver is being asked about, where a parent can see it: if a call never returns, the mark names the GPU."""

from __future__ import annotations

import mmap
from collections.abc import Callable

IDLE = -1
"""Nothing is being asked."""
DRIVER = -2
"""The driver as a whole: start, list of GPUs, events."""

SetMark = Callable[[int], None]
"""Takes IDLE, DRIVER or the index of a GPU before the driver is asked."""


class Mark:
    """An int64 (little-endian) at the start of a shared file, written through a mapping: 0.1 µs, no system call.

    Args:
        fd: an open file of at least 8 bytes that the parent maps too.

    Raises:
        OSError, ValueError: it is no such file.
    """

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, 8)
        self._word = memoryview(self._map).cast("q")  # all platforms with NVIDIA drivers are little-endian
        self(IDLE)

    def __call__(self, who: int) -> None:
        self._word[0] = who


def no_mark(who: int) -> None:
    """For a sampler that nobody watches."""
