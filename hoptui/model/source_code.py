"""The source of a line of a script, where its file can be read. It reads files: not in the drawing thread."""

from __future__ import annotations

import linecache
import stat
from pathlib import Path

MOST_SOURCE = 4 << 20
"""Bytes of a file whose lines are shown."""


def source_line(file: str, line: int) -> str:
    """Return a line of a file, "" if it is no regular file of reasonable size that can be read here."""
    found = source_around(file, line, 0)
    return found[0][1].strip() if found else ""


def source_around(file: str, line: int, more: int) -> list[tuple[int, str]]:
    """Return a line and `more` lines before and after it, with their numbers. Empty if it cannot be read."""
    try:
        found = Path(file).stat()
    except (OSError, ValueError):
        return []
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_SOURCE:
        return []
    linecache.checkcache(file)
    numbered = ((n, linecache.getline(file, n)) for n in range(max(1, line - more), line + more + 1))
    shown = [(n, text.rstrip("\n")) for n, text in numbered if text]
    return shown if any(n == line for n, _ in shown) else []
