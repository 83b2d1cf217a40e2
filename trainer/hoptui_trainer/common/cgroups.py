"""The memory that a container or a Slurm job leaves to this process.

A process that exceeds the limit of its control group is killed, so the limit must be known before. psutil
reports the machine alone. Files: the kernel's Documentation/admin-guide, cgroup-v2.rst and
cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

MEMBERSHIP, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class Version(NamedTuple):
    """What a version of control groups calls things; `given_up` are the pages of files that the kernel gives
    up first."""

    controller: str
    below: str
    limit: str
    used: str
    given_up: str


class Room(NamedTuple):
    """The limit of a control group, and what of it is not in use, in bytes."""

    limit: int
    left: int


VERSIONS = (
    Version("", ".", "memory.max", "memory.current", "inactive_file"),
    Version("memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def left_bytes(membership: Path = MEMBERSHIP, mounted: Path = MOUNTED) -> int | None:
    """The least that a group of this process, or one above it, leaves it; None where none of them has a
    limit."""
    return min((room.left for room in _rooms(membership, mounted)), default=None)


def granted_bytes(membership: Path = MEMBERSHIP, mounted: Path = MOUNTED) -> int | None:
    """The least limit of a group of this process, or of one above it; None where none of them has one."""
    return min((room.limit for room in _rooms(membership, mounted)), default=None)


def _rooms(membership: Path, mounted: Path) -> Iterator[Room]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        yield from _rooms_of(line, mounted)


def _rooms_of(line: str, mounted: Path) -> Iterator[Room]:
    """The room of each group that one line of /proc/self/cgroup names: `number:controllers:path`, without
    controllers for version 2."""
    _, controllers, path = line.split(":", 2)
    own = PurePosixPath(path)
    for version in VERSIONS:
        if version.controller not in controllers.split(","):
            continue
        # A container may have its own group mounted as the root, and read the path that the machine sees.
        for group in (own, *own.parents):
            folder = mounted / version.below / group.relative_to("/")
            try:
                limit = int((folder / version.limit).read_text())
                used = int((folder / version.used).read_text())
                counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield Room(limit, max(0, limit - used + int(counts[version.given_up])))
            except (OSError, ValueError, KeyError):  # not mounted, or the limit is "max": there is none
                continue
