"""The kernel's text files: a node's kept open and read with one call, a process's read as they are
(proc(5))."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Rate:
    """The rate of one counter between two readings of it.

    It is unknown at the first reading, after a reading that failed, and when the counter went back (a device
    was reset or replaced): a rate over such a gap would be a number that nobody measured.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def update(self, t: int, counter: float | None) -> float | None:
        """Counts per second since the reading before this one.

        Args:
            t: when the counter was read, monotonic ns.
            counter: its value, None where it could not be read.
        """
        before, self._last = self._last, None if counter is None else (t, counter)
        if before is None or counter is None or counter < before[1] or t <= before[0]:
            return None
        return (counter - before[1]) * 1e9 / (t - before[0])


TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PIECE = 1 << 14
"""More than the kernel gives at once of a file that is a list."""
ENDED = (b"Z", b"X", b"x")
_IO = re.compile(rb"^read_bytes: (\d+)\nwrite_bytes: (\d+)$", re.M)


class ProcFile:
    """A file of `/proc` that is there as long as the node is. It stays open: a reading is a `pread`, where
    opening it anew for each would cost three times as much.

    Args:
        path: it may be missing; whoever reads it is told.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def head(self, size: int) -> bytes:
        """Its first bytes, at most `size`.

        Raises:
            OSError: it cannot be read; the next reading opens it again.
        """
        return self._pread(size, 0)

    def whole(self) -> bytes:
        """All of it, however long the list is; raises as `head`."""
        found = b""
        while piece := self._pread(PIECE, len(found)):
            found += piece
        return found

    def close(self) -> None:
        """Let go of the file; the next reading opens it again."""
        if self._fd is not None:
            with suppress(OSError):
                os.close(self._fd)
        self._fd = None

    def _pread(self, size: int, at: int) -> bytes:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(self._fd, size, at)
        except OSError:
            self.close()
            raise


class Stat(NamedTuple):
    """One process: who started it, how long it ran (s, of all its threads), what it holds. `started` (ticks
    since boot) and the pid together name a process for ever."""

    parent: int
    started: int
    cpu_s: float
    threads: int
    rss_bytes: int


def stat_of(proc: Path, pid: int) -> Stat | None:
    """A process as `/proc/<pid>/stat` tells of it, None if there is none, or only its zombie."""
    try:
        fields = (
            _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
        )  # its name may hold spaces and brackets
        if fields[0] in ENDED:
            return None
        cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        return Stat(int(fields[1]), int(fields[19]), cpu_s, int(fields[17]), int(fields[21]) * PAGE_BYTES)
    except (OSError, IndexError, ValueError):  # gone; or cut off, because it is going
        return None


def io_of(proc: Path, pid: int) -> tuple[int, int] | None:
    """Bytes that a process has read from disks and written to them, None where it does not let us know."""
    try:
        found = _IO.search(_read(f"{proc}/{pid}/io"))
    except OSError:
        return None
    return (int(found[1]), int(found[2])) if found else None


def pids(proc: Path) -> list[int]:
    """All processes there are."""
    return [int(name) for name in os.listdir(proc) if name.isdecimal()]  # noqa: PTH208 - thousands, and no Path of each


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
