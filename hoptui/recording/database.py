"""The SQLite file: its schema, how it is opened, and the conversion of its errors to RecordingError."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hoptui.recording import limits

APPLICATION_ID = 0x686F7074  # "hopt": identifies a recording to file(1) and to hoptui
BUSY_TIMEOUT_MS = 2000
WAL_LIMIT_BYTES = 4 << 20
PAGE_BYTES = 1024  # of a new file: 2 % smaller than with 4096, and one flush per second writes 40 % less

# Entry i migrates a file from schema i to schema i + 1. A released entry never changes. The comments inside
# are for users who open a recording with sqlite3 and type .schema.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE meta (
            -- What the daemon remembers of the run, e.g. its declaration.
            key TEXT PRIMARY KEY,
            value BLOB NOT NULL -- text or bytes, as it was given
        )
        """,
        """
        CREATE TABLE boots (
            -- Uptimes of the node the recording was written in. Every t in this file is monotonic nanoseconds
            -- of the first; later ones are stored with shift_ns added. t + the first wall_offset_ns =
            -- nanoseconds since 1970.
            id INTEGER PRIMARY KEY,
            boot TEXT NOT NULL UNIQUE,
            shift_ns INTEGER NOT NULL,
            wall_offset_ns INTEGER NOT NULL
        )
        """,
        """
        CREATE TABLE chunks (
            -- Rows of one source, rising in t. body is zlib of int64 t[rows], int64 step[rows] (-1: none),
            -- then float64[rows] for each of names (a JSON array; NaN: unknown), all little-endian. Chunks
            -- with sealed = 0 are the newest and will be merged into larger ones.
            id INTEGER PRIMARY KEY,
            source TEXT NOT NULL,
            t0 INTEGER NOT NULL,
            t1 INTEGER NOT NULL,
            rows INTEGER NOT NULL,
            sealed INTEGER NOT NULL,
            names TEXT NOT NULL,
            body BLOB NOT NULL
        )
        """,
        "CREATE INDEX chunks_by_time ON chunks (source, t1, t0, rows)",
        "CREATE INDEX chunks_unsealed ON chunks (source) WHERE NOT sealed",
        """
        CREATE TABLE events (
            seq INTEGER PRIMARY KEY,
            t INTEGER NOT NULL,
            record TEXT NOT NULL -- JSON; see the view event_log
        )
        """,
        """
        CREATE TABLE commands (
            id TEXT PRIMARY KEY,
            seq INTEGER NOT NULL,
            record TEXT NOT NULL -- JSON; see the view command_log
        )
        """,
        "CREATE INDEX commands_by_seq ON commands (seq)",
        """
        CREATE VIEW event_log AS
        SELECT seq, t,
            datetime(json_extract(record, '$.wall'), 'unixepoch') AS utc,
            json_extract(record, '$.level') AS level,
            json_extract(record, '$.kind') AS kind,
            json_extract(record, '$.step') AS step,
            json_extract(record, '$.code') AS code,
            json_extract(record, '$.fields') AS fields,
            json_extract(record, '$.text') AS text
        FROM events ORDER BY seq
        """,
        """
        CREATE VIEW command_log AS
        SELECT seq, id,
            datetime(json_extract(record, '$.wall'), 'unixepoch') AS utc,
            json_extract(record, '$.origin.user') AS user,
            json_extract(record, '$.origin.kind') AS author,
            json_extract(record, '$.verb') AS verb,
            json_extract(record, '$.knob') AS knob,
            json_extract(record, '$.before') AS before,
            json_extract(record, '$.wanted') AS wanted,
            json_extract(record, '$.effective') AS effective,
            json_extract(record, '$.stage') AS stage,
            json_extract(record, '$.step') AS step,
            json_extract(record, '$.measured.gain') AS gain,
            json_extract(record, '$.code') AS code,
            json_extract(record, '$.fields') AS fields,
            json_extract(record, '$.reason') AS reason,
            json_extract(record, '$.why') AS why,
            json_extract(record, '$.purpose') AS purpose
        FROM commands ORDER BY seq
        """,
    ),
    (
        """
        CREATE TABLE arrivals (
            -- The newest rows of each source, rising in t, until there are enough of them for a block. body
            -- is zlib of int64 t[rows], int64 step[rows] (-1: none), then float64[rows] for each of names (a
            -- JSON array; NaN: unknown), all little-endian.
            id INTEGER PRIMARY KEY,
            source TEXT NOT NULL,
            t0 INTEGER NOT NULL,
            t1 INTEGER NOT NULL,
            rows INTEGER NOT NULL,
            names TEXT NOT NULL,
            body BLOB NOT NULL
        )
        """,
        "INSERT INTO arrivals SELECT id, source, t0, t1, rows, names, body FROM chunks ORDER BY id",
        "DROP TABLE chunks",
        "CREATE INDEX arrivals_by_time ON arrivals (source, t1, t0, rows)",
        """
        CREATE TABLE layouts (
            -- The names of a block's columns, as a JSON array.
            id INTEGER PRIMARY KEY,
            names TEXT NOT NULL UNIQUE
        )
        """,
        """
        CREATE TABLE blocks (
            -- Level 0: rows of one source, rising in t. Level 1: the same rows in groups of up to 32, level
            -- 2: groups of up to 32 groups, and so on; at most one block of a level covers a moment of a
            -- source. The oldest blocks of level 0 may have been deleted to save space (meta has
            -- thinned_before then).
            --
            -- Columns of a block, entries numbers each. Level 0: t, step (-1: none), then one for each of the
            -- layout's names. Above: t, first (stamps of a group's last and first row), step (of the last
            -- row), rows (in the group), then for each name four: low, high, mean, known (how many of the
            -- rows have the name). The named four are int64, as are t, step and known; the others float64
            -- (NaN: unknown).
            --
            -- body is zlib of: uint32 little-endian length of the directory, the directory (JSON), planes. A
            -- plane has one byte an entry. Each column takes its planes in turn, lowest byte first; the
            -- planes lie in the order of directory.order, by number. Column i is what directory.columns[i]
            -- says it is:
            -- {"is": "constant", "value": v}  v in every entry (null: unknown); no planes
            -- {"is": "bits", "planes": 4 or 8}  float32, or the column's own 8 bytes, little-endian
            -- {"is": "whole", ...}  whole numbers n, or n / 10^digits for floats. z is read from the planes,
            --     unsigned, and stands for d = z / 2 if even, -(z + 1) / 2 if odd. With slope: n = previous n
            --     + slope + unit * d, and start is previous to the first; without: n = start + unit * d. With
            --     gaps: true, one more plane precedes the others: 0 where the value is unknown, else 1. Left
            --     out: digits 0, unit 1, no slope, no gaps.
            id INTEGER PRIMARY KEY,
            source TEXT NOT NULL,
            level INTEGER NOT NULL,
            t0 INTEGER NOT NULL,
            t1 INTEGER NOT NULL,
            rows INTEGER NOT NULL, -- of the source, in all entries
            entries INTEGER NOT NULL,
            layout INTEGER NOT NULL REFERENCES layouts,
            body BLOB NOT NULL
        )
        """,
        "CREATE INDEX blocks_by_time ON blocks (source, level, t1, t0, rows, entries)",
    ),
)
SCHEMA = len(MIGRATIONS)

# Temporary views that show a file of schema 1 as one of this schema, without writing to it.
STANDINS = (
    "PRAGMA temp_store = MEMORY",
    "CREATE TEMP VIEW arrivals AS SELECT id, source, t0, t1, rows, names, body FROM main.chunks",
    "CREATE TEMP VIEW layouts AS SELECT NULL AS id, NULL AS names WHERE 0",
    """
    CREATE TEMP VIEW blocks AS
    SELECT NULL AS id, NULL AS source, NULL AS level, NULL AS t0, NULL AS t1, NULL AS rows, NULL AS entries,
        NULL AS layout, NULL AS body
    WHERE 0
    """,
)


class RecordingError(Exception):
    """A recording cannot do what was asked. `reason` is one sentence that names the file."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Convert an error of SQLite or the system to a RecordingError about `path`."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one
        raise RecordingError(f"{path} {_PHRASES.get(code, f'cannot be used: {error}')}") from None
    except OSError as error:
        raise RecordingError(f"{path} cannot be used: {error.strerror or error}") from None


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """As `errors_named`, and convert what unexpected content of a file leads to: wrong types, huge numbers.

    Reading code runs in it. Any of these errors there comes from the file.
    """
    try:
        with errors_named(path):
            yield
    except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__} in its content"
        raise RecordingError(f"{path} is damaged: {what[:200]}") from None


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end, roll back on any exception."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite rolls back by itself on some errors, such as a full disk
            db.execute("ROLLBACK")
        raise


WRITER_LEAVES_S = 5.0
"""How long a writer waits for another one to close the file: the daemon that it replaces needs a moment."""
WRITER_POLL_S = 0.05


def open_for_writing(path: Path) -> tuple[sqlite3.Connection, int]:
    """Return a connection to the recording at `path`, and a descriptor with the lock of its only writer.

    Creates or migrates the file as needed. Close the connection first: closing the descriptor releases the
    locks that SQLite has on the file (fcntl locks belong to the process).

    Raises:
        RecordingError: it cannot be opened, or another writer has it.
    """
    with damage_named(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _lock(path, lock)
            return _writer(path, lock), lock
        except BaseException:
            os.close(lock)
            raise


def _lock(path: Path, file: int) -> None:
    """Lock a recording against other writers. A file system without locks has none."""
    end = time.monotonic() + WRITER_LEAVES_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise RecordingError(f"{path} is being written by another process") from None
        except OSError:
            return
        time.sleep(WRITER_POLL_S)


def _writer(path: Path, lock: int) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000, check_same_thread=False)
    try:
        limits.restrict(db)
        schema = _schema(db, path)  # SQLite has opened it now, by its name
        if not os.path.samestat(path.lstat(), os.fstat(lock)):
            raise RecordingError(f"{path} is being replaced by another process")
        if schema < SCHEMA:
            db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # has no effect on a file that has tables
            _migrate(db, path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
    except BaseException:
        db.close()
        raise
    return db


def open_for_reading(path: Path, *, still: bool = False) -> sqlite3.Connection:
    """Return a read-only connection to the recording at `path`, which another process may be writing.

    `still` promises that no process writes it and that it has no log. Then SQLite creates no files beside it.
    """
    with damage_named(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is not a regular file")  # a pipe would wait for its writer
        with path.open("rb"):
            pass  # SQLite reports only "unable to open database file"; the system gives the reason
        try:
            db, schema = _reader(path, "immutable=1" if still else "mode=ro")
        except sqlite3.OperationalError as error:
            # A reader of a WAL file has to create its -shm. In a read-only directory, a file that was closed
            # properly (no -wal beside it) can still be opened as immutable.
            # An error of Python's module, such as a text that is not UTF-8, has no code.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            forbidden = code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if not forbidden or path.with_name(f"{path.name}-wal").exists():
                raise
            db, schema = _reader(path, "immutable=1")
        try:
            if not schema:
                raise RecordingError(f"{path} does not hold a recording")
            if schema == 1:
                for statement in STANDINS:
                    db.execute(statement)
            db.execute("PRAGMA query_only = ON")
        except BaseException:
            db.close()
            raise
    return db


def _reader(path: Path, how: str) -> tuple[sqlite3.Connection, int]:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?{how}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_TIMEOUT_MS / 1000,
        check_same_thread=False,
        factory=limits.ReaderConnection,
    )
    try:
        limits.restrict(db)
        return db, _schema(db, path)
    except BaseException:
        db.close()
        raise


def _schema(db: sqlite3.Connection, path: Path) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or version or tables):
        raise RecordingError(f"{path} is a database of another program, not a recording")
    if version > SCHEMA:
        raise RecordingError(
            f"{path} was written by a newer hoptui (schema {version}, this one reads up to {SCHEMA}): "
            "update hoptui"
        )
    if version > 0:
        try:
            limits.check_schema(db, MIGRATIONS[:version])
        except ValueError as error:
            raise RecordingError(f"{path} is not a recording: {error}") from None
    elif application or tables:
        raise RecordingError(f"{path} is not a recording: it has no version")
    return int(version)


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    with transaction(db):
        for step in MIGRATIONS[_schema(db, path) :]:  # read again: no other process can write now
            for statement in step:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")


_PHRASES = {
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written: input/output error",
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_READONLY: "cannot be written: it is read-only",
    sqlite3.SQLITE_NOTADB: "is not a recording",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_TOOBIG: f"is damaged: a value in it is larger than {limits.MOST_CELL_BYTES >> 20} MiB",
    sqlite3.SQLITE_INTERRUPT: f"is damaged: a look at it takes more than {limits.MOST_STATEMENT_S:g} s",
}
