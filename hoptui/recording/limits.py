"""Limits on what is read from a recording, which may come from anybody.

Only the tables and indexes of the schema are accepted. No trigger, no view of the file and no other feature
of SQL can run. Cells, decompressed bytes, rows of a piece and the time of a statement are bounded.
"""

from __future__ import annotations

import re
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from hoptui.protocol.ranges import MOST_STAMP

MOST_CELL_BYTES = 64 << 20
MOST_RECORD_BYTES = 16 << 20
"""Of the JSON of an event, a command, the run or the node."""
MOST_ROWS = 8192
"""Of an arrival or a block. The writer makes less than 1024."""
MOST_NAMES = 1 << 16
MOST_LEVEL = 16
"""Of a block. Each level has 32 times fewer entries, so no recording has as many."""
MOST_RAW_BYTES = 128 << 20
"""Of an arrival or a block without compression."""
MOST_STATEMENT_S = 1.0
"""CPU time of one statement. Waiting for a disk does not count."""
_OPS = 20_000
_NEVER_READ = frozenset({"event_log", "command_log"})
"""Views for users of sqlite3. hoptui does not read them, so their text does not matter."""
_COMMENT = re.compile(r"--[^\n]*")


class ReaderConnection(sqlite3.Connection):
    """A connection whose statements end with an error once they have taken `MOST_STATEMENT_S` of CPU time.

    A damaged or hostile tree of pages can make a plain SELECT endless.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._until = time.thread_time() + MOST_STATEMENT_S
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_CELL_BYTES)
        self.set_progress_handler(lambda: time.thread_time() > self._until, _OPS)

    def execute(self, *args: Any) -> sqlite3.Cursor:
        self._until = time.thread_time() + MOST_STATEMENT_S
        return super().execute(*args)


def restrict(db: sqlite3.Connection) -> None:
    """Switch off what a schema can start by itself. Call it before the first look at the file."""
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_CELL_BYTES)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")


def check_schema(db: sqlite3.Connection, steps: Sequence[Sequence[str]]) -> None:
    """Compare the objects of a file with those that the migrations `steps` create.

    Raises:
        ValueError: it has others: a trigger, a view or a table of somebody else, or another definition.
    """
    expected = _expected(tuple(map(tuple, steps)))
    most = 4 * len(expected) + 16
    found = db.execute("SELECT type, name, sql FROM main.sqlite_master LIMIT ?", (most,)).fetchall()
    seen = set()
    for kind, name, text in found:
        if (kind == "view" and name in _NEVER_READ) or (kind == "index" and text is None):
            continue
        if not isinstance(text, str) or expected.get((kind, name)) != _normal(text):
            raise ValueError(f"it has the {kind} {str(name)[:40]!r}, which no recording has")
        seen.add((kind, name))
    for kind, name in expected.keys() - seen:
        raise ValueError(f"it lacks the {kind} {name!r}")


@cache
def _expected(steps: tuple[tuple[str, ...], ...]) -> dict[tuple[str, str], str]:
    db = sqlite3.connect(":memory:")
    try:
        for statement in (statement for step in steps for statement in step):
            db.execute(statement)
        rows = db.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    finally:
        db.close()
    return {(kind, name): _normal(text) for kind, name, text in rows if kind != "view"}


def _normal(text: str) -> str:
    """Return SQL without comments and layout, which differ between versions of hoptui.

    What a quote or a bracket would hide from this stays behind as that quote or bracket.
    """
    return " ".join(_COMMENT.sub("", text).split())


def bounded(rows: Iterable[tuple[Any, ...]], most_bytes: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows of a query whose cells together cannot be larger than the file they come from.

    Raises:
        ValueError: they are, so its pages refer to each other in a wrong way.
    """
    for row in rows:
        most_bytes -= sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        if most_bytes < 0:
            raise ValueError("it has more content than bytes")
        yield row


def stamp(value: object) -> int:
    """Return a stamp as read from a cell. Raises ValueError if it is none."""
    if type(value) is not int or not -MOST_STAMP <= value <= MOST_STAMP:
        raise ValueError(f"{value!r:.40} is no stamp")
    return value


def count(value: object, most: int = MOST_STAMP) -> int:
    """Return a number of rows or the like. Raises ValueError if it is negative or beyond `most`."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r:.40} is no number of rows")
    return value


def inflated(blob: bytes, size: int) -> bytes:
    """Decompress zlib to exactly `size` bytes.

    Raises:
        ValueError: the content is damaged, or has another size. Nothing larger is ever made.
    """
    if size > MOST_RAW_BYTES:
        raise ValueError(f"a piece of {size} bytes; the limit is {MOST_RAW_BYTES}")
    return inflated_start(blob, size + 1, exactly=size)


def inflated_start(blob: bytes, most: int, *, exactly: int | None = None) -> bytes:
    """Decompress the first `most` bytes (at least 1). Raises ValueError as `inflated`."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(blob, most)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if exactly is not None and (len(raw) != exactly or not inflater.eof):
        raise ValueError(f"a piece that does not have {exactly} bytes")
    return raw
