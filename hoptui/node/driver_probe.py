"""Records which GPU the driver is asked about: eight bytes that the GPU sampler shares with its parent.

The sampler writes a little-endian int64 before each call into the driver: the index of a GPU, `DRIVER` or
`IDLE`. It is shared memory, not a message: a sampler that hangs in the driver sends nothing more, and the
parent can still read the word.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

IDLE = -1
"""No call into the driver is in progress."""
DRIVER = -2
"""The driver as a whole: start, list of GPUs, events."""

SetProbe = Callable[[int], None]
"""Takes `IDLE`, `DRIVER` or the index of a GPU before a call into the driver."""


class DriverProbe:
    """The parent's end, which creates the memory. `fd` goes to the child."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("hoptui-probe", os.MFD_CLOEXEC)
        os.pwrite(self.fd, IDLE.to_bytes(8, "little", signed=True), 0)
        self._word = mmap.mmap(self.fd, 8, prot=mmap.PROT_READ)

    def read(self) -> int:
        """Return the child's current call, or the call in which it hung."""
        return int.from_bytes(self._word[:8], "little", signed=True)

    def close(self) -> None:
        """Release this end. A child that cannot be killed keeps its own."""
        self._word.close()
        os.close(self.fd)


class ProbeWriter:
    """The child's end, written through a mapping: 0.1 µs, no system call.

    Args:
        fd: an open file of at least 8 bytes that the parent maps too.

    Raises:
        OSError, ValueError: it is not such a file.
    """

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, 8)
        self._word = memoryview(self._map).cast("q")  # all platforms with NVIDIA drivers are little-endian
        self(IDLE)

    def __call__(self, who: int) -> None:
        self._word[0] = who


def no_probe(who: int) -> None:
    """Used by a sampler without a parent that reads the probe."""
