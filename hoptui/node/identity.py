"""Which node this is: two processes are on the same one if they reach the same daemon."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path

from hoptui.node.addresses import AddressError, addresses

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def node_identity() -> str:
    """Return what the processes of a node have in common, and those of other nodes do not.

    That is the kernel that runs, and the directory of the daemon: containers of one machine have several.
    "" if the directory cannot be used.
    """
    try:
        return _identity(addresses().directory)
    except (AddressError, OSError):
        return ""


@cache
def _identity(directory: Path) -> str:
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        boot = platform.node()
    place = directory.stat()
    return hashlib.sha256(f"{boot} {place.st_dev} {place.st_ino}".encode()).hexdigest()[:16]
