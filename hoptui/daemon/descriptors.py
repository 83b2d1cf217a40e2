"""File descriptors of the daemon: libzmq aborts the process if a connection finds none left.

A run takes about six: its connection, its process and the files of its recording. So the limit is raised to
the most that the system allows. Near the limit, runs and viewers are refused with a reason. Even nearer, the
sockets accept no connection until there is room again.
"""

from __future__ import annotations

import os
import resource

LEAST = 128
"""A daemon does not start with a lower limit: it has about 30 open before the first run."""
REFUSE = 48
"""New runs and viewers are refused with fewer free descriptors than this."""
SHUT = 32
"""The sockets are shut with fewer free descriptors than this: so many can connect at once before they are."""
RECORDING = 4
"""An open recording takes so many: SQLite's three files and the lock."""
OPEN = "/proc/self/fd"


class DescriptorsError(Exception):
    """There are too few file descriptors. The text is one sentence with the remedy."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one. Return the limit.

    Raises:
        DescriptorsError: it is too low for a daemon.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # more than the kernel's fs.nr_open
            pass
    if 0 <= soft < LEAST:
        raise DescriptorsError(
            f"this process may have {soft} open files and the daemon needs {LEAST}: "
            "raise the limit (ulimit -Hn)"
        )
    return soft


def free() -> int:
    """Return how many more files this process can open. Listing the open ones takes one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return REFUSE
    try:
        return soft - len(os.listdir(OPEN))  # noqa: PTH208 - paths would take longer, at every tick
    except OSError:
        return 0


def refusal() -> str:
    """Return why nothing more can connect, one sentence."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"the daemon has no room for another connection: nearly all of the {soft} files that it may have are "
        "open; raise the limit (ulimit -Hn), then 'hoptui daemon stop' (runs survive)"
    )
