"""Eight bytes that the GPU sampler shares with its parent: what it is asking the driver for at this moment."""

from __future__ import annotations

import mmap
import os

NOTHING = -1
"""The sampler is not in the driver."""
DRIVER = -2
"""It asks the driver as a whole: initialisation, the list of GPUs, events."""


class Mark:
    """A little-endian int64 in shared memory, written by the child: `NOTHING`, `DRIVER`, or the index of a GPU.

    It is memory and not a message, because a child that hangs in the driver sends nothing more. `fd` goes to the child.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("hoptui-mark", os.MFD_CLOEXEC)
        os.pwrite(self.fd, NOTHING.to_bytes(8, "little", signed=True), 0)
        self._word = mmap.mmap(self.fd, 8, prot=mmap.PROT_READ)

    def read(self) -> int:
        """What the child is asking now, or was when it hung."""
        return int.from_bytes(self._word[:8], "little", signed=True)

    def close(self) -> None:
        """Let go of this end; a child that cannot be killed keeps its own."""
        self._word.close()
        os.close(self.fd)
