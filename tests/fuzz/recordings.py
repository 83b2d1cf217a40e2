"""Recordings that somebody changed: opened, replayed, reported, exported, listed, restored and continued.

An input is a msgpack array: the number of a sound recording, then edits of it. A cell is replaced in SQLite,
bytes are replaced in the file, or its end is cut. Bytes that are no such array are the file themselves.
"""

from __future__ import annotations

import contextlib
import io
import sqlite3
import tempfile
import zlib
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from hoptui.cli.report import html, markdown
from hoptui.cli.report import page as pages
from hoptui.client.replay import Replay
from hoptui.daemon.recordings import History, RetentionLimits
from hoptui.domain.columns import pack
from hoptui.model import report
from hoptui.model.recorded.store import RecordedStore
from hoptui.node.addresses import Addresses
from hoptui.recording import Recording, RecordingError, library, tables
from hoptui.recording import export as writers
from tests.fuzz.harness import Harness
from tests.fuzz.messages import sentences_of_run
from tests.fuzz.mutation import mutated_bytes, mutated_list, mutated_tree, scalar
from tests.model.recorded_run import BOOT, GPU, NODE_STATE, at, gpu_rows, run_rows, write
from tests.recording.hostile_files import HOSTILE

NOW_S = 1_780_001_000.0
OLD = Path(__file__).parents[1] / "recording/data/schema1.hoptui"
TABLES = ("meta", "boots", "arrivals", "layouts", "blocks", "chunks", "events", "commands")
MOST_EDITS = 8


class Cell(NamedTuple):
    """A cell of a recording."""

    table: str
    rowid: int
    column: str
    value: Any


class Recordings(Harness):
    """Recordings with changed bytes and cells."""

    name, unit = "recordings", "recordings"

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="hoptui-fuzz-")
        self._home = Path(self._directory.name)
        self._home.chmod(0o700)
        self._files = [self._made(), self._made(node=None, events=(), commands=()), OLD.read_bytes()]
        self._cells = [cells(data) for data in self._files]

    def close(self) -> None:
        self._directory.cleanup()

    def seeds(self) -> list[bytes]:
        found: list[list[Any]] = [[number] for number in range(len(self._files))]
        for number in range(len(self._files)):
            found += [[number, ["cell", index, None]] for index in range(0, len(self._cells[number]), 7)]
            found += [[number, ["bytes", 16 + i, b"\xff"]] for i in range(0, 100, 9)]
        return [*map(msgspec.msgpack.encode, found), *self._hostile()]

    def mutated(self, data: bytes, random: Random) -> bytes:
        edits = _edits(data)
        if edits is None or not 0 <= edits[0] < len(self._files):
            return mutated_bytes(data, random)
        number, *rest = edits
        if random.random() < 0.1:
            number, rest = random.randrange(len(self._files)), []
        if rest and random.random() < 0.3:
            rest = mutated_list(rest, random, rest)
        else:
            rest.append(self._edit(number, random))
        return msgspec.msgpack.encode([number, *rest[-MOST_EDITS:]])

    def run(self, data: bytes) -> int:
        path = self._home / "rec01.hoptui"
        try:
            path.write_bytes(self._changed(data))
            read(path, as_csv=zlib.crc32(data) % 2 == 0)
            continued(path)
        finally:
            for left in self._home.iterdir():
                left.unlink()
        return 1

    def _made(self, **fields: Any) -> bytes:
        """Return a small recording that has blocks, groups of them, and rows that are in none.

        Small blocks make it small. They are as valid as those that hoptui writes.
        """
        path = self._home / "made.hoptui"
        parts = (run_rows(30), pack("host", [(at(i), -1, {"cpu": float(i)}) for i in range(20)]))
        with mock.patch.multiple(tables, ROWS=16, FACTOR=3):
            write(path, rows=parts, **fields)
            with Recording.create(path, boot=BOOT) as recording:
                gpu = gpu_rows(12)
                for i in range(0, 120, 20):
                    recording.append(gpu.slice(i, i + 20))
                    recording.flush()
        with Recording.create(path, boot=BOOT) as recording:
            recording.append(pack(f"gpu/{GPU.uuid}", [(at(700 + i), -1, {"busy": 1.0}) for i in range(5)]))
        found = path.read_bytes()
        path.unlink()
        return found

    def _hostile(self) -> list[bytes]:
        """Return the files of `hostile_files` that are changes of cells."""
        found = []
        for change in (
            change for name, change in HOSTILE.items() if "bomb" not in name and "large" not in name
        ):
            with closing(sqlite3.connect(":memory:")) as db:
                db.deserialize(_without_log(self._files[0]))
                with contextlib.suppress(sqlite3.Error, AssertionError):
                    change(db)
                    db.commit()
                    if len(changed := db.serialize()) < 1 << 16:
                        found.append(changed)
        return found

    def _changed(self, data: bytes) -> bytes:
        edits = _edits(data)
        if edits is None or not 0 <= edits[0] < len(self._files):
            return data
        number, *rest = edits
        file = self._files[number]
        values = [edit for edit in rest if edit[0] == "cell"]
        if values:
            file = _replaced(
                file, [(self._cells[number][i % len(self._cells[number])], v) for _, i, v in values]
            )
        changed = bytearray(file)
        for kind, where, new in (edit for edit in rest if edit[0] != "cell"):
            offset = where % (len(changed) + 1)
            if kind == "cut":
                del changed[offset:]
            else:
                changed[offset : offset + len(new)] = new
        return bytes(changed)

    def _edit(self, number: int, random: Random) -> list[Any]:
        size = len(self._files[number])
        kind = random.random()
        if kind < 0.3:  # most structures of SQLite are at the start of a page
            page = random.randrange(size >> 12) << 12
            offset = page + random.randrange(100) if random.random() < 0.5 else random.randrange(size)
            return ["bytes", offset, random.randbytes(random.choice((1, 1, 2, 4, 16)))]
        if kind < 0.35:
            return ["cut", random.randrange(size), b""]
        index = random.randrange(len(self._cells[number]))
        return ["cell", index, _mutated_cell(self._cells[number][index].value, random)]


def read(path: Path, *, as_csv: bool) -> None:
    """Read a file in every way in which hoptui reads recordings of others. Only `RecordingError` is right."""
    with contextlib.suppress(RecordingError):
        library.entries(path.parent)
    list(History(Addresses(path.parent, path.parent), RetentionLimits()).restore())
    with contextlib.suppress(RecordingError), Recording.open(path) as recording:
        with contextlib.suppress(RecordingError):
            document = pages.page(report.read(recording), NOW_S)
            markdown.write(document)
            html.write(document)
        write_rows = writers.write_csv if as_csv else writers.write_jsonl
        write_rows(recording, io.StringIO(newline=""))
    with contextlib.suppress(RecordingError), closing(Replay(path)) as replay:
        replayed(replay)


def replayed(replay: Replay) -> None:
    """Look at a recording from several moments, as the dashboard does."""
    store = replay.store
    start, end = store.span
    for t in (start, start + (end - start) // 2, end):
        replay.seek(t)
        _looked_at(store, end)
    replay.step_event(-1)
    with contextlib.suppress(ValueError):
        replay.find("#10")
    with contextlib.suppress(ValueError):
        replay.find("14:05")
    replay.play()
    replay.advance()


def _looked_at(store: RecordedStore, end: int) -> None:
    node, vitals = store.node, store.vitals
    for run in node.runs if node is not None else ():
        sentences_of_run(run, vitals.get(run.run))
    for source in list(store.pages.sources)[:4]:
        store.latest(source)
        for name in store.names(source)[:3]:
            series = store.series(source, name)
            if series is not None:
                series.window(store.span[0], end, 20)


def continued(path: Path) -> None:
    """Go on with a recording, as a daemon does whose run goes on."""
    with contextlib.suppress(RecordingError), Recording.create(path, boot=BOOT) as recording:
        recording.append(pack(f"gpu/{GPU.uuid}", [(at(800), -1, {"busy": 2.0})]))
        recording.remember(library.NODE, library.encode_node(NODE_STATE))
        recording.flush()


def cells(data: bytes) -> list[Cell]:
    """Return all cells of the tables of a recording."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(_without_log(data))
        there = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        found = []
        for table in (table for table in TABLES if table in there):
            cursor = db.execute(f"SELECT rowid, * FROM {table}")
            names = [column[0] for column in cursor.description]
            for rowid, *values in cursor:
                found += [
                    Cell(table, rowid, name, value) for name, value in zip(names[1:], values, strict=True)
                ]
        return found


def _replaced(data: bytes, values: list[tuple[Cell, Any]]) -> bytes:
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(_without_log(data))
        for cell, value in values:
            with contextlib.suppress(sqlite3.Error, OverflowError):  # SQLite cannot hold every value
                db.execute(f"UPDATE {cell.table} SET {cell.column} = ? WHERE rowid = ?", (value, cell.rowid))
        db.commit()
        return db.serialize()


def _without_log(data: bytes) -> bytes:
    """Return a file that does not ask for a write-ahead log, which a database in memory cannot have."""
    return data[:18] + b"\1\1" + data[20:]


def _edits(data: bytes) -> list[Any] | None:
    """Return the content of an input, None if the input is a file itself."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = msgspec.msgpack.decode(data, type=list[Any])
        sound = all(
            isinstance(edit, list) and len(edit) == 3 and isinstance(edit[1], int)
            and edit[0] in ("cell", "bytes", "cut") and (edit[0] == "cell" or isinstance(edit[2], bytes))
            for edit in found[1:]
        )  # fmt: skip
        if found and isinstance(found[0], int) and sound:
            return [found[0], *found[1 : MOST_EDITS + 1]]
    return None


def _mutated_cell(value: Any, random: Random) -> Any:
    """Return a cell with another value, or the same kind of value with another content."""
    if random.random() < 0.15:
        found = scalar(random)
        return found if isinstance(found, int | float | str | bytes | None) else None
    raw = value.encode() if isinstance(value, str) else value
    if isinstance(raw, bytes):
        with contextlib.suppress(zlib.error):
            return zlib.compress(mutated_bytes(zlib.decompress(raw), random, 1 << 20), 1)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            tree = mutated_tree(msgspec.json.decode(raw), random)
            with contextlib.suppress(TypeError, ValueError):
                encoded = msgspec.json.encode(tree)
                return encoded if isinstance(value, bytes) else encoded.decode()
        return mutated_bytes(raw, random) if isinstance(value, bytes) else value + random.choice("]}\0\x1b9")
    if isinstance(value, int):
        return value + random.choice((-1, 1, 10, -1000, 10**9, 1 << 40, -(1 << 62)))
    return scalar(random) if not isinstance(value, float) else value * random.choice((-1.0, 1e30, 0.0))
