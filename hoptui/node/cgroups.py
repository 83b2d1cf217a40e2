"""The memory that the control groups of a process leave it: see cgroups(7).

A job of Slurm, Kubernetes or Docker may use less memory than the node has. The kernel kills it at that limit.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LEAST_UNLIMITED = 1 << 60
"""The first version writes a number as large as this where there is no limit."""


class LimitedMemory(NamedTuple):
    """The memory of a control group in bytes: what is used, without files that can be read again, and the
    limit."""

    used_bytes: int
    limit_bytes: int


class _Version(NamedTuple):
    """Where a version of control groups has its files. The name of the statistic is for a whole subtree."""

    line: re.Pattern[str]
    folder: str
    used: str
    limit: str
    reclaimable: str


VERSIONS = (
    _Version(
        re.compile(r"^0::(/.*)$", re.MULTILINE), "sys/fs/cgroup",
        "memory.current", "memory.max", "inactive_file",
    ),
    _Version(
        re.compile(r"^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:(/.*)$", re.MULTILINE), "sys/fs/cgroup/memory",
        "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file",
    ),
)  # fmt: skip


def limited_memory(pid: int, root: Path = Path("/")) -> LimitedMemory | None:
    """Return the memory of the control group around a process that has the least left.

    None if no group around it has a limit, or if they cannot be read.
    """
    try:
        groups = (root / f"proc/{pid}/cgroup").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    found: list[LimitedMemory] = []
    for version in VERSIONS:
        if (named := version.line.search(groups)) is None:
            continue
        top = root / version.folder
        group = top / named[1].lstrip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError, LookupError):  # not there, or without a limit
                found.append(_memory(folder, version))
            if folder == top:
                break
    return min(found, key=lambda each: each.limit_bytes - each.used_bytes, default=None)


def _memory(folder: Path, version: _Version) -> LimitedMemory:
    """Return the memory of one group.

    Raises:
        ValueError: it has no limit.
        OSError, LookupError: it cannot be read.
    """
    limit = int((folder / version.limit).read_text())  # "max" without a limit
    if not 0 < limit < LEAST_UNLIMITED:
        raise ValueError("no limit")
    used = int((folder / version.used).read_text())
    statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return LimitedMemory(max(0, used - int(statistics[version.reclaimable])), limit)
