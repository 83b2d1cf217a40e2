"""What to say of a daemon that can be started and does not stay."""

from __future__ import annotations

import contextlib
import os

from hoptui.node.addresses import Addresses


def unstable(where: Addresses) -> str:
    """Why it is gone at once: a full or read-only disk, on which it could not tell it either; or see its log."""
    ends = "the daemon ends as soon as it is started"
    if where.directory.exists() and not os.access(where.directory, os.W_OK):
        return f"{ends}: {where.directory} cannot be written"
    for place in (where.directory, where.state):
        with contextlib.suppress(OSError):
            if os.statvfs(place).f_bavail == 0:
                return f"{ends}: no space is left under {place}"
    return f"{ends}: {where.log} says why"
