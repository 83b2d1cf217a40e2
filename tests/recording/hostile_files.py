"""Recordings that somebody made to do harm: each one a small file that a sound recording was changed into."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

from hoptui.domain.columns import pack
from hoptui.recording import Recording
from hoptui.recording.library import RUN
from tests.model.recorded_run import BOOT, LENGTH_S, at, write

Change = Callable[[sqlite3.Connection], object]
HUGE = 300 << 20
"""Bytes that a bomb has without compression."""


def bomb(size: int = HUGE) -> bytes:
    packer = zlib.compressobj(1)
    block = bytes(1 << 24)
    return b"".join([*(packer.compress(block) for _ in range(size >> 24)), packer.flush()])


def directory(text: str) -> bytes:
    head = text.encode()
    return zlib.compress(len(head).to_bytes(4, "little") + head)


def sql(text: str, *values: object) -> Change:
    return lambda db: db.execute(text, values)


def rows_of(db: sqlite3.Connection) -> None:
    """A block of constants that claims to have 10^11 rows."""
    body = directory('{"columns":[' + ",".join(['{"is":"constant","value":1}'] * 12) + '],"order":[]}')
    db.execute("UPDATE blocks SET rows = 100000000000, entries = 100000000000, body = ?", (body,))


def stand_in(table: str, text: str) -> Change:
    """A view or another table in the place of a table."""

    def change(db: sqlite3.Connection) -> None:
        db.execute(f"DROP TABLE {table}")
        db.execute(text)

    return change


def run_json(old: bytes, new: bytes) -> Change:
    def change(db: sqlite3.Connection) -> None:
        (raw,) = db.execute("SELECT value FROM meta WHERE key = 'run'").fetchone()
        assert old in raw
        db.execute("UPDATE meta SET value = ? WHERE key = 'run'", (raw.replace(old, new, 1),))

    return change


def schema(text: str) -> Change:
    """Another definition of the table `meta`. Lone surrogates are bytes that are not UTF-8."""

    def change(db: sqlite3.Connection) -> None:
        db.execute("PRAGMA writable_schema = ON")
        raw = text.encode(errors="surrogateescape")
        db.execute("UPDATE sqlite_master SET sql = CAST(? AS TEXT) WHERE name = 'meta'", (raw,))

    return change


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
ARRIVAL = "i AS id, 'x' AS source, i AS t0, i AS t1, 1 AS rows, 'x' AS names, x'00' AS body"
HOSTILE: dict[str, Change] = {
    "meta_int": sql("UPDATE meta SET value = 5 WHERE key = 'run'"),
    "meta_null_bytes": sql("UPDATE meta SET value = x'00ff' WHERE key = 'run'"),
    "meta_deep": sql("UPDATE meta SET value = ? WHERE key = 'run'", "[" * 100_000),
    "meta_large": sql("UPDATE meta SET value = zeroblob(?) WHERE key = 'run'", 80 << 20),
    "node_int": sql("UPDATE meta SET value = 5 WHERE key = 'node'"),
    "run_epoch": run_json(b'"epoch":1', b'"epoch":18446744073709551615'),
    "run_wall": run_json(b'"exited_wall":1780000600.0', b'"exited_wall":1e300'),
    "body_text": sql("UPDATE arrivals SET body = 'text'"),
    "body_bomb": lambda db: db.execute("UPDATE arrivals SET body = ?", (bomb(),)),
    "block_bomb": lambda db: db.execute("UPDATE blocks SET body = ?", (bomb(),)),
    "block_text": sql("UPDATE blocks SET body = 'text'"),
    "block_rows": rows_of,
    "t_text": sql("UPDATE arrivals SET t0 = 'x', t1 = 'y'"),
    "t_float": sql("UPDATE blocks SET t0 = 0.5, t1 = 1e300"),
    "t_huge": sql("UPDATE blocks SET t1 = 9223372036854775807"),
    "block_level": sql("UPDATE blocks SET level = level + 1000"),
    "block_level_huge": sql("UPDATE blocks SET level = 9223372036854775807"),
    "block_level_text": sql("UPDATE blocks SET level = 'x'"),
    "rows_negative": sql("UPDATE arrivals SET rows = -1"),
    "source_blob": sql("UPDATE arrivals SET source = x'ff'"),
    "names_int": sql("UPDATE arrivals SET names = 7"),
    "names_twice": sql("UPDATE arrivals SET names = replace(names, 'busy', 'power_w')"),
    "boots_text": sql("UPDATE boots SET wall_offset_ns = 'x'"),
    "boots_huge": sql("UPDATE boots SET wall_offset_ns = 9223372036854775807"),
    "boots_float": sql("UPDATE boots SET wall_offset_ns = 1e300"),
    "event_int": sql("UPDATE events SET record = 5"),
    "event_wall": sql("UPDATE events SET record = replace(record, '\"wall\":178', '\"wall\":1e99')"),
    "event_t": sql("UPDATE events SET record = replace(record, '\"t\":', '\"t\":99999999')"),
    "command_blob": sql("UPDATE commands SET record = x'ff00'"),
    "arrivals_endless": stand_in("arrivals", f"CREATE VIEW arrivals AS {ENDLESS} {ARRIVAL} FROM n"),
    "meta_endless": stand_in("meta", f"CREATE VIEW meta AS {ENDLESS} 'run' AS key, i AS value FROM n"),
    "meta_other": stand_in("meta", "CREATE TABLE meta (key, value AS (hex(zeroblob(1000000))))"),
    "trigger": sql("CREATE TRIGGER evil AFTER INSERT ON boots BEGIN DELETE FROM events; END"),
    "extra_view": sql(f"CREATE VIEW more AS {ENDLESS} i FROM n"),
    "extra_index": sql("CREATE INDEX more ON events (json_extract(record, '$.x'))"),
    "no_table": sql("DROP TABLE commands"),
    "schema_bytes": schema("CREATE TABLE meta (key TEXT PRIMARY KEY, value \udcff)"),
    "schema_name": schema("CREATE TABLE \udcff (key TEXT PRIMARY KEY, value BLOB)"),
}  # fmt: skip


def make(path: Path, name: str) -> Path:
    """Write a recording of ten minutes and change it as `HOSTILE` says."""
    write(path)
    with Recording.create(path, boot=BOOT) as recording:  # a few rows that are not in a block yet
        late = [(at(LENGTH_S + i), -1, {"busy": 1.0, "power_w": 2.0}) for i in range(5)]
        recording.append(pack("gpu/GPU-0", late))
    with closing(sqlite3.connect(path)) as db, db:
        HOSTILE[name](db)
    return path


def read_all(path: Path) -> None:
    """Read everything in a recording in every way."""
    with Recording.open(path) as recording:
        recording.span()
        recording.events()
        recording.commands()
        recording.recall(RUN)
        for source in recording.sources():
            recording.names(source)
            recording.buckets(source, points=7)
            for part in recording.rows(source):
                msgspec.msgpack.encode(part)
