"""The tables of a recording: rows, events, commands, and values that the daemon stores.

Rows are stored as they arrive, then as blocks with a pyramid of summaries above them. Stamps are as stored.
The writer begins and commits transactions, not this module.
"""

from __future__ import annotations

import itertools
import sqlite3
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import le
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hoptui.domain.columns import Columns, concatenate
from hoptui.protocol.messages import CommandRecord, Event
from hoptui.recording import ingest, limits, stack_minutes, stored_json
from hoptui.recording.compression import Packed, pack
from hoptui.recording.database import RecordingError, damage_named, errors_named
from hoptui.recording.ingest import Arrival
from hoptui.recording.pyramid import FACTOR, GroupStats, Summary, coarsen, summarise

ROWS = 512
_STAMPS = 2  # columns before the values: t, step
_GROUPS = 4  # columns before the figures: t, first, step, rows


def encode(columns: Columns) -> bytes:
    """Encode rows: t and step as whole numbers, then one column per name."""
    return pack([columns.times(), columns.steps(), *(array("d", raw) for raw in columns.values)])


def decode(source: str, names: Sequence[str], rows: int, body: bytes, wanted: Collection[str]) -> Columns:
    """Return the rows of a block with only the `wanted` names that it has (none: all).

    Raises:
        ValueError: the block is damaged.
    """
    packed = _opened(body, rows, _STAMPS + len(names))
    kept = [i for i, name in enumerate(names) if not wanted or name in wanted]
    return Columns(
        source=source,
        names=tuple(names[i] for i in kept),
        t=packed.integers(0).tobytes(),
        step=packed.integers(1).tobytes(),
        values=tuple(packed.floats(_STAMPS + i).tobytes() for i in kept),
    )


def encode_summary(summary: Summary) -> bytes:
    """Encode groups: t, first, step and rows, then low, high, mean and known of each name."""
    columns: list[array[float] | array[int]] = [summary.t, summary.first, summary.step, summary.rows]
    for figures in summary.figures:
        columns += figures
    return pack(columns)


def decode_summary(names: Sequence[str], groups: int, body: bytes, wanted: Collection[str]) -> Summary:
    """Return the groups of a summary block. Otherwise as `decode`."""
    packed = _opened(body, groups, _GROUPS + len(GroupStats._fields) * len(names))
    kept = [i for i, name in enumerate(names) if not wanted or name in wanted]
    return Summary(
        names=tuple(names[i] for i in kept),
        t=packed.integers(0),
        first=packed.integers(1),
        step=packed.integers(2),
        rows=packed.integers(3),
        figures=tuple(
            GroupStats(
                packed.floats(at), packed.floats(at + 1), packed.floats(at + 2), packed.integers(at + 3)
            )
            for at in (_GROUPS + len(GroupStats._fields) * i for i in kept)
        ),
    )


def cut(columns: Columns) -> list[Columns]:
    """Split rows into pieces of equal size: at least ROWS and less than 2 × ROWS, or one piece if fewer."""
    n = len(columns)
    count = max(1, n // ROWS)
    edges = [n * i // count for i in range(count + 1)]
    return [columns.slice(a, b) for a, b in itertools.pairwise(edges)]


def _opened(body: bytes, rows: int, columns: int) -> Packed:
    packed = Packed(body, rows)
    if len(packed) != columns:
        raise ValueError(f"a block has {len(packed)} columns instead of {columns}")
    return packed


MOST_AT_ONCE = 16 * ROWS
"""How many rows one flush converts to blocks. A file of schema 1 has all its rows in `arrivals`."""

ARRIVED = -1
"""The level of rows that are not in a block yet."""


class Piece(NamedTuple):
    """Where some rows are stored.

    Only arrivals have `names` and `body`: they may be deleted a moment later.
    """

    id: int
    level: int
    t0: int
    t1: int
    rows: int
    entries: int
    names: str | None
    body: bytes | None


class Tables:
    """The rows of one file."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path = path
        self._db = db
        self._grown: set[str] = set()  # sources with new blocks, which may need a block above them
        self._stuck: set[str] = set()  # sources with damaged rows, which cannot become blocks

    # writing

    def add(self, source: str, columns: Columns) -> None:
        """Store newer rows of a source. Once there are enough, all waiting rows become blocks.

        If a waiting row is damaged, they wait on. A writer that is opened later tries again.
        """
        if source not in self._stuck:
            try:
                self._add(source, columns)
                return
            except RecordingError:
                self._stuck.add(source)
        for part in cut(columns):
            self._arrive(source, part)

    def _add(self, source: str, columns: Columns) -> None:
        waiting = self._number("SELECT sum(rows) FROM arrivals WHERE source = ?", source) or 0
        if waiting + len(columns) < ROWS:
            self._arrive(source, columns)
            return
        older: list[Columns] = []
        taken = last = 0
        oldest = "SELECT id, t0, t1, rows, names, body FROM arrivals WHERE source = ? ORDER BY t1, id"
        for number, *arrival in self._db.execute(oldest, (source,)):
            if taken >= MOST_AT_ONCE:
                break
            older.append(self._arrived(source, Arrival(*arrival)))
            taken += len(older[-1])
            last = number
        if taken < waiting:
            self._arrive(source, columns)
        else:
            older.append(columns)
        self._db.execute("DELETE FROM arrivals WHERE source = ? AND id <= ?", (source, last))
        for part in cut(concatenate(source, older)):
            times = part.times()
            extent = (times[0], times[-1], len(times), len(times))
            self._insert(source, 0, extent, part.names, encode(part))

    @property
    def grown(self) -> bool:
        """Whether there are new blocks, so that a block of the pyramid may be due."""
        return bool(self._grown)

    def raise_one(self) -> bool:
        """Make one block of the pyramid if one is due: FACTOR blocks of a level have none above them.

        A block takes a tenth of a second, and the GPUs of a node become due together. So only one is made per
        call. Returns whether one was made.
        """
        for source in sorted(self._grown):
            levels = "SELECT max(level) FROM blocks WHERE source = ? AND level < ?"
            top = self._number(levels, source, limits.MOST_LEVEL) or 0
            for level in range(top + 1):
                found = self._uncovered(source, level)
                if len(found) >= FACTOR:
                    try:
                        self._raise(source, level, found[:FACTOR])
                    except RecordingError:  # one is damaged: the rows below are read instead
                        break
                    return True
            self._grown.discard(source)
        return False

    def thin(self, most_bytes: int) -> int | None:
        """Delete the oldest rows that the pyramid covers until the file needs at most `most_bytes`.

        Returns the stamp before which rows are deleted now, None if none were deleted.
        """
        before = None
        while self.used_bytes() > most_bytes:
            found = self._db.execute(
                "SELECT b.source, min(b.t1) FROM blocks AS b WHERE level = 1 AND EXISTS (SELECT 1 FROM blocks"
                " WHERE source = b.source AND level = 0 AND t1 <= b.t1) GROUP BY source ORDER BY 2 LIMIT 1"
            ).fetchone()
            if found is None:
                break
            self._db.execute("DELETE FROM blocks WHERE source = ? AND level = 0 AND t1 <= ?", found)
            before = int(found[1]) + 1
        return before

    # reading

    def used_bytes(self) -> int:
        """Return the size of the file without its free pages."""
        pages, free, size = (
            self._number(f"PRAGMA {name}") or 0 for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def newest(self, source: str) -> int | None:
        """Return the stamp of the newest row, None if there is none."""
        of_blocks = self._number("SELECT max(t1) FROM blocks WHERE source = ? AND level = 0", source)
        of_arrivals = self._number("SELECT max(t1) FROM arrivals WHERE source = ?", source)
        return max((limits.stamp(t) for t in (of_blocks, of_arrivals) if t is not None), default=None)

    def span(self) -> tuple[int, int] | None:
        """Return the first and the last stamp of all rows, None if there are none. Takes a few lookups."""
        first: list[int | None] = []
        last: list[int | None] = []
        for source in self._sources():
            for where in ("blocks WHERE source = ? AND level = 1", "blocks WHERE source = ? AND level = 0",
                          "arrivals WHERE source = ?"):  # fmt: skip
                first.append(self._number(f"SELECT t0 FROM {where} ORDER BY t1 LIMIT 1", source))
                last.append(self._number(f"SELECT max(t1) FROM {where}", source))
        if not any(t is not None for t in first):
            return None
        edges = [limits.stamp(t) for t in (*first, *last) if t is not None]
        return min(edges), max(edges)

    def extents(self) -> dict[str, tuple[int, int, int]]:
        """Return the first stamp, the last stamp and the number of rows left of each source."""
        found = self._db.execute(
            "SELECT source, min(t0), max(t1), sum(iif(level = 0, rows, 0)) FROM ("
            "SELECT source, level, t0, t1, rows FROM blocks"
            " UNION ALL SELECT source, 0, t0, t1, rows FROM arrivals) GROUP BY source ORDER BY source"
        )
        return {
            _text(source): (limits.stamp(t0), limits.stamp(t1), limits.count(rows))
            for source, t0, t1, rows in found
        }

    def names(self, source: str, low: int, high: int) -> list[str]:
        """Return the names of the pieces with rows from `low` to `high`, in order of first appearance."""
        found = self._db.execute(
            "SELECT DISTINCT layouts.names FROM blocks JOIN layouts ON layouts.id = layout"
            " WHERE source = ? AND level = 0 AND t1 >= ? AND t0 <= ?"
            " UNION ALL SELECT DISTINCT names FROM arrivals WHERE source = ? AND t1 >= ? AND t0 <= ?",
            (source, low, high, source, low, high),
        ).fetchall()
        with damage_named(self._path):
            return list(dict.fromkeys(name for (text,) in found for name in ingest.decode_names(text)))

    def rows(self, source: str, low: int, high: int, names: tuple[str, ...]) -> Iterator[Columns]:
        """Yield the pieces that have rows from `low` to `high`, oldest first, uncut."""
        for piece in self._listed(source, low, high, " AND level = 0"):
            part = self._part(source, piece, names)
            if isinstance(part, Columns):
                yield part

    def cover(
        self, source: str, low: int, high: int, names: tuple[str, ...], finest_ns: float
    ) -> Iterator[Columns | Summary]:
        """Yield the same range from the pyramid: groups of at most `finest_ns` on average, else rows."""
        levels: dict[int, list[Piece]] = {}
        for piece in self._listed(source, low, high, ""):
            levels.setdefault(piece.level, []).append(piece)
        for piece in self._chosen(source, levels, max(levels, default=ARRIVED), low, high, finest_ns):
            part = self._part(source, piece, names)
            if part is not None:
                yield part

    # internals

    def _size(self) -> int:
        return (self._number("PRAGMA page_count") or 0) * (self._number("PRAGMA page_size") or 0)

    def _number(self, statement: str, *values: object) -> int | None:
        found: tuple[int | None] | None = self._db.execute(statement, values).fetchone()
        return None if found is None else found[0]

    def _sources(self) -> Iterator[str]:
        for (source,) in self._db.execute(
            "WITH RECURSIVE a (source) AS (SELECT min(source) FROM blocks UNION ALL SELECT (SELECT "
            "min(source) FROM blocks WHERE source > a.source) FROM a WHERE a.source NOT NULL), b (source) "
            "AS (SELECT min(source) FROM arrivals UNION ALL SELECT (SELECT min(source) FROM arrivals WHERE "
            "source > b.source) FROM b WHERE b.source NOT NULL) SELECT source FROM a WHERE source NOT NULL "
            "UNION SELECT source FROM b WHERE source NOT NULL"
        ).fetchall():
            yield _text(source)

    def _listed(self, source: str, low: int, high: int, which: str) -> list[Piece]:
        """List pieces in one statement, which sees one state of the file.

        Blocks do not change and are read later. Arrivals are read at once, because the writer may convert
        them to a block meanwhile.
        """
        with damage_named(self._path):
            found = self._db.execute(
                "SELECT id, level, t0, t1, rows, entries, NULL, NULL FROM blocks"
                f" WHERE source = ? AND t1 >= ? AND t0 <= ?{which}"
                f" UNION ALL SELECT id, {ARRIVED}, t0, t1, rows, rows, names, body FROM arrivals"
                " WHERE source = ? AND t1 >= ? AND t0 <= ? ORDER BY 4, 1",
                (source, low, high, source, low, high),
            )
            return [_piece(row) for row in limits.bounded(found, self._size())]

    def _chosen(
        self, source: str, levels: dict[int, list[Piece]], level: int, low: int, high: int, finest_ns: float
    ) -> Iterator[Piece]:
        """Yield the pieces to read for `low` to `high`.

        They are the pieces of `level`. Finer pieces replace those that are too coarse, and fill the part that
        no block of this level covers yet.
        """
        if low > high or level < ARRIVED:
            return
        pieces = levels.get(level, [])
        for piece in pieces[bisect_left(pieces, low, key=lambda p: p.t1) :]:
            if piece.t0 > high:
                break
            if level <= 0 or piece.t1 - piece.t0 <= finest_ns * piece.entries:
                yield piece
            else:
                finer = list(
                    self._chosen(
                        source, levels, level - 1, max(low, piece.t0), min(high, piece.t1), finest_ns
                    )
                )
                yield from finer or ([] if self._has_rows(source, piece) else [piece])
            low = piece.t1 + 1
        yield from self._chosen(source, levels, level - 1, low, high, finest_ns)

    def _has_rows(self, source: str, piece: Piece) -> bool:
        """Return whether the rows below a block of the pyramid still exist. If so, a gap in them is real."""
        with errors_named(self._path):
            return bool(
                self._number(
                    "SELECT EXISTS (SELECT 1 FROM blocks WHERE source = ? AND level = 0 AND t1 BETWEEN ? "
                    "AND ?)",
                    source,
                    piece.t0,
                    piece.t1,
                )
            )

    def _part(self, source: str, piece: Piece, names: tuple[str, ...]) -> Columns | Summary | None:
        """Return the content of a piece, None for a block that was deleted meanwhile."""
        if piece.names is not None and piece.body is not None:
            arrival = Arrival(piece.t0, piece.t1, piece.rows, piece.names, piece.body)
            return ingest.select(self._arrived(source, arrival), names)
        with errors_named(self._path):
            found = self._db.execute(
                "SELECT layouts.names, body FROM blocks JOIN layouts ON layouts.id = layout WHERE "
                "blocks.id = ?",
                (piece.id,),
            ).fetchone()
        if found is None:
            return None
        with damage_named(self._path):
            known = ingest.decode_names(found[0])
            if piece.level:
                summary = decode_summary(known, piece.entries, found[1], names)
                _check_times(piece, summary.t)
                return summary
            part = decode(source, known, piece.entries, found[1], names)
            _check_times(piece, part.times())
            return part

    def _arrived(self, source: str, arrival: Arrival) -> Columns:
        with damage_named(self._path):
            part = ingest.decode(source, arrival)
            _check_times(arrival, part.times())
            return part

    def _arrive(self, source: str, columns: Columns) -> None:
        self._db.execute(
            "INSERT INTO arrivals (source, t0, t1, rows, names, body) VALUES (?, ?, ?, ?, ?, ?)",
            (source, *ingest.encode(columns)),
        )

    def _uncovered(self, source: str, level: int) -> list[Piece]:
        """Return the blocks of a level that no block of the next level covers."""
        covered = self._number("SELECT max(t1) FROM blocks WHERE source = ? AND level = ?", source, level + 1)
        found = self._db.execute(
            "SELECT id, level, t0, t1, rows, entries, NULL, NULL FROM blocks"
            " WHERE source = ? AND level = ? AND (? IS NULL OR t1 > ?) ORDER BY t1",
            (source, level, covered, covered),
        )
        return [_piece(row) for row in found]

    def _raise(self, source: str, level: int, pieces: list[Piece]) -> None:
        parts = [self._part(source, piece, ()) for piece in pieces]
        rows = [part for part in parts if isinstance(part, Columns)]
        groups = [part for part in parts if isinstance(part, Summary)]
        summary = coarsen(groups) if level else summarise(concatenate(source, rows))
        self._insert(
            source,
            level + 1,
            (pieces[0].t0, pieces[-1].t1, sum(piece.rows for piece in pieces), len(summary.t)),
            summary.names,
            encode_summary(summary),
        )

    def _insert(
        self, source: str, level: int, extent: tuple[int, int, int, int], names: tuple[str, ...], body: bytes
    ) -> None:
        """Insert a block. `extent` is its t0, t1, rows and entries."""
        text = ingest.encode_names(names)
        self._db.execute("INSERT OR IGNORE INTO layouts (names) VALUES (?)", (text,))
        self._db.execute(
            "INSERT INTO blocks (source, level, t0, t1, rows, entries, layout, body)"
            " VALUES (?, ?, ?, ?, ?, ?, (SELECT id FROM layouts WHERE names = ?), ?)",
            (source, level, *extent, text, body),
        )
        self._grown.add(source)


def _piece(row: tuple[Any, ...]) -> Piece:
    piece = Piece(*row)
    if type(piece.level) is not int or not ARRIVED <= piece.level <= limits.MOST_LEVEL:
        raise ValueError(f"a block of level {piece.level!r:.40}")
    limits.stamp(piece.t0)
    limits.stamp(piece.t1)
    limits.count(piece.rows)
    limits.count(piece.entries, limits.MOST_ROWS)
    return piece


def _text(cell: object) -> str:
    if not isinstance(cell, str):
        raise ValueError(f"a source is {cell!r:.40}")
    return cell


def _check_times(piece: Piece | Arrival, times: array[int]) -> None:
    """Check that rows rise within the bounds of their piece. Raises ValueError."""
    if times and (times[0] < piece.t0 or times[-1] > piece.t1 or not all(map(le, times, times[1:]))):
        raise ValueError("rows that are out of order")


Record = TypeVar("Record", Event, CommandRecord)


class Records:
    """The records of one file, with stamps as stored. The caller begins the transaction for writes."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self._path = path
        self._db = db

    def write(self, item: Event | CommandRecord | tuple[str, bytes | str]) -> None:
        """Insert one event, command or remembered value."""
        if isinstance(item, Event):
            self.add_events([item])
        elif isinstance(item, CommandRecord):
            self.add_commands([item])
        else:
            self.remember(dict([item]))

    def add_events(self, events: Iterable[Event]) -> None:
        """Insert events. One with the same `seq` is replaced."""
        self._db.executemany(
            "INSERT OR REPLACE INTO events (seq, t, record) VALUES (?, ?, ?)",
            [(e.seq, e.t, _json(e)) for e in events],
        )

    def add_commands(self, commands: Iterable[CommandRecord]) -> None:
        """Insert commands. One with the same `id` is replaced."""
        self._db.executemany(
            "INSERT OR REPLACE INTO commands (id, seq, record) VALUES (?, ?, ?)",
            [(c.id, c.seq, _json(c)) for c in commands],
        )

    def remember(self, values: Mapping[str, bytes | str]) -> None:
        """Store values. A value of the same key is replaced."""
        self._db.executemany("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", values.items())

    def events(self, after: int) -> list[Event]:
        """Return the events numbered above `after`."""
        return self._found("SELECT record FROM events WHERE seq > ?", after, Event)

    def commands(self, after: int) -> list[CommandRecord]:
        """Return the commands whose newest state is numbered above `after`."""
        return self._found("SELECT record FROM commands WHERE seq > ?", after, CommandRecord)

    def number_of(self, command: str) -> int:
        """Return the `seq` of a command, 0 if it is not there."""
        found = self._db.execute("SELECT seq FROM commands WHERE id = ?", (command,)).fetchone()
        return 0 if found is None else limits.stamp(found[0])

    def recall(self, key: str) -> bytes | str | None:
        """Return a stored value, None if there is none."""
        with damage_named(self._path):
            found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            return None if found is None else _json_cell(found[0])

    def minutes(self, first: int) -> tuple[list[int], int]:
        """Return the stamps of stack samples from `first` on, oldest first, and how many keys have none."""
        with damage_named(self._path):
            found = self._db.execute(
                "SELECT key FROM meta WHERE key >= ? AND key < ? ORDER BY key",
                (stack_minutes.key(first), stack_minutes.END),
            ).fetchall()
        stamps = [stack_minutes.stamp(text) for (text,) in found]
        known = [t for t in stamps if t is not None]
        return known, len(stamps) - len(known)

    def minute(self, t: int) -> bytes | None:
        """Return stored stack samples by their stamp; None if there are none, b"" if they are too large."""
        with damage_named(self._path):
            found = self._db.execute(
                "SELECT iif(typeof(value) = 'blob' AND length(value) <= ?, value, x'')"
                " FROM meta WHERE key = ?",
                (stack_minutes.MOST_STORED, stack_minutes.key(t)),
            ).fetchone()
            return None if found is None else bytes(found[0])

    def forget_minutes(self, before: int) -> None:
        """Delete the stack samples with stamps before `before`."""
        self._db.execute(
            "DELETE FROM meta WHERE key >= ? AND key < ?", (stack_minutes.PREFIX, stack_minutes.key(before))
        )

    def span(self) -> tuple[int, int] | None:
        """Return the first and the last stamp of the events, None if there are none."""
        with damage_named(self._path):
            first, last = self._db.execute("SELECT min(t), max(t) FROM events").fetchone()
            return None if first is None else (limits.stamp(first), limits.stamp(last))

    def _found(self, statement: str, after: int, kind: type[Record]) -> list[Record]:
        with damage_named(self._path):
            size = [self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")]
            found = self._db.execute(statement, (after,))
            texts = [_json_cell(text) for (text,) in limits.bounded(found, size[0] * size[1])]
            return [stored_json.decode(text, kind) for text in texts]


def _json_cell(cell: object) -> bytes | str:
    if not isinstance(cell, bytes | str) or len(cell) > limits.MOST_RECORD_BYTES:
        raise ValueError(f"a value is {cell!r:.40}")
    return cell


def _json(record: Event | CommandRecord) -> str:
    return stored_json.encode(record).decode()
