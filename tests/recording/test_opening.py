"""Files that are no recording, or of another time, give one sentence; a reader needs no more than to read."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hoptui.domain.columns import Columns
from hoptui.recording import Recording, RecordingError
from hoptui.recording.database import APPLICATION_ID, SCHEMA
from hoptui.recording.ingest import Boot
from tests.golden import Golden

MakeRows = Callable[..., Columns]
FOREIGN = ("CREATE TABLE cookies (a)", "PRAGMA user_version = 7", "PRAGMA application_id = 7")
"""Statements that make a database which is not a recording."""


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write everywhere; nobody may not."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def sql(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as db, db:
        yield db


def reason(make: Callable[[Path], Recording], path: Path) -> str:
    with pytest.raises(RecordingError) as error:
        make(path).close()
    assert str(error.value) == error.value.reason
    assert error.value.reason.startswith(f"{path} ")
    assert "\n" not in error.value.reason
    return error.value.reason


def closed(path: Path, rows: Columns) -> None:
    with Recording.create(path, boot=Boot("b", 0, 0)) as recording:
        recording.append(rows)


def text_file(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_bytes(b"not a database, but long enough to look at: " * 40)
    return path


def foreign_database(folder: Path, mark: str) -> Path:
    path = folder / f"{mark.split()[1]}.db"
    with sql(path) as db:
        db.execute(mark)
    return path


def newer_recording(path: Path, rows: Columns) -> Path:
    closed(path, rows)
    with sql(path) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    return path


def test_each_refusal_is_a_sentence(tmp_path: Path, rows: MakeRows, golden: Golden) -> None:
    pipe, empty = tmp_path / "pipe", tmp_path / "empty.hoptui"
    os.mkfifo(pipe)
    empty.touch()
    (link := tmp_path / "link.hoptui").symlink_to(empty)
    others = (
        text_file(tmp_path),
        *(foreign_database(tmp_path, mark) for mark in FOREIGN),
        newer_recording(tmp_path / "newer.hoptui", rows(3)),
        tmp_path,
    )
    absent = tmp_path / "absent.hoptui"
    sentences = [
        *("open", *(reason(Recording.open, path) for path in (absent, pipe, empty, *others))),
        *("create", *(reason(Recording.create, path) for path in (link, *others))),
    ]
    numbers = {rf"\(schema {SCHEMA + 1}, ": "(schema NEWER, ", rf" up to {SCHEMA}\)": " up to OURS)"}
    golden("\n".join([*sentences, ""]), normalize={re.escape(str(tmp_path)): "DIR", **numbers})


def test_a_file_that_is_not_there(path: Path) -> None:
    assert reason(Recording.open, path).endswith(os.strerror(errno.ENOENT))
    assert not path.parent.exists()


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert reason(Recording.open, pipe)


def test_a_directory(tmp_path: Path) -> None:
    assert "directory" in reason(Recording.open, tmp_path)
    assert reason(Recording.create, tmp_path).endswith(os.strerror(errno.EISDIR))


@pytest.mark.parametrize("make", [Recording.open, Recording.create])
def test_a_file_of_something_else_is_refused_and_not_touched(
    tmp_path: Path, make: Callable[[Path], Recording]
) -> None:
    path = text_file(tmp_path)
    before = path.read_bytes()
    assert reason(make, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("make", [Recording.open, Recording.create])
@pytest.mark.parametrize("mark", FOREIGN)
def test_somebody_elses_database_is_refused_and_not_touched(
    tmp_path: Path, make: Callable[[Path], Recording], mark: str
) -> None:
    path = foreign_database(tmp_path, mark)
    before = path.read_bytes()
    assert reason(make, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("make", [Recording.open, Recording.create])
def test_a_newer_schema_says_what_to_do(
    path: Path, rows: MakeRows, make: Callable[[Path], Recording]
) -> None:
    newer_recording(path, rows(3))
    assert f" {SCHEMA + 1}, " in reason(make, path)


def test_a_file_whose_creation_was_cut_short(tmp_path: Path, rows: MakeRows) -> None:
    """Empty: a reader has nothing to read, a writer begins again."""
    path = tmp_path / "r.hoptui"
    path.touch()
    assert reason(Recording.open, path)
    closed(path, rows(3))
    with Recording.open(path) as reader:
        assert reader.sources()["host"][2] == 3


def test_the_schema_is_marked(path: Path, rows: MakeRows) -> None:
    closed(path, rows(3))
    with sql(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    link = tmp_path / "r.hoptui"
    link.symlink_to(target)
    assert reason(Recording.create, link).endswith(os.strerror(errno.ELOOP))
    assert target.read_bytes() == b""


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE arrivals SET body = zeroblob(40)",
        "UPDATE arrivals SET body = substr(body, 1, 20)",
        "UPDATE arrivals SET rows = rows + 1",
        "UPDATE arrivals SET names = '[\"x\"]'",
        "UPDATE arrivals SET names = 'x'",
        "UPDATE arrivals SET names = '[1, 2]'",
    ],
)
def test_damaged_rows_that_have_just_arrived_are_told(path: Path, rows: MakeRows, damage: str) -> None:
    closed(path, rows(3))
    with sql(path) as db:
        db.execute(damage)
    with Recording.open(path) as reader, pytest.raises(RecordingError, match=r"r1\.hoptui is damaged: "):
        list(reader.rows("host"))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE blocks SET body = zeroblob(40)",
        "UPDATE blocks SET body = substr(body, 1, length(body) - 5)",
        "UPDATE blocks SET entries = entries + 1",
        "UPDATE layouts SET names = '[\"x\"]'",
        "UPDATE layouts SET names = '['",
    ],
)
def test_a_damaged_block_is_told(path: Path, rows: MakeRows, damage: str) -> None:
    closed(path, rows(600))
    with sql(path) as db:
        db.execute(damage)
    with Recording.open(path) as reader:
        with pytest.raises(RecordingError, match=r"r1\.hoptui is damaged: "):
            list(reader.rows("host"))
        with pytest.raises(RecordingError, match=r"r1\.hoptui is damaged: "):
            reader.buckets("host")


@pytest.mark.parametrize("record", ["{", "{}", '{"seq": "1"}'])
def test_a_damaged_record_is_told(path: Path, rows: MakeRows, record: str) -> None:
    closed(path, rows(3))
    with sql(path) as db:
        db.execute("INSERT INTO events VALUES (1, 1, ?)", (record,))
        db.execute("INSERT INTO commands VALUES ('c', 1, ?)", (record,))
    with Recording.open(path) as reader:
        with pytest.raises(RecordingError, match=r"r1\.hoptui is damaged: "):
            reader.events()
        with pytest.raises(RecordingError, match=r"r1\.hoptui is damaged: "):
            reader.commands()


def test_a_file_cut_in_half_is_told(path: Path, rows: MakeRows) -> None:
    closed(path, rows(20_000))
    os.truncate(path, path.stat().st_size // 2)

    def read() -> None:
        with Recording.open(path) as reader:
            list(reader.rows("host"))

    with pytest.raises(RecordingError, match=r"r1\.hoptui is damaged"):
        read()


def test_a_path_with_odd_characters(tmp_path: Path, rows: MakeRows) -> None:
    path = tmp_path / "100% of ? #1" / "r é.hoptui"
    closed(path, rows(3))
    with Recording.open(path) as reader:
        assert reader.sources()["host"][2] == 3


def test_a_closed_recording_is_read_where_nothing_can_be_written(rows: MakeRows) -> None:
    """A WAL file's reader wants to write beside it; in an archive it cannot, and need not."""
    directory = Path(tempfile.mkdtemp())
    path = directory / "r.hoptui"
    try:
        closed(path, rows(3))
        path.chmod(0o444)
        directory.chmod(0o555)
        with without_privileges():
            with Recording.open(path) as reader:
                assert reader.sources()["host"][2] == 3
            assert reason(Recording.create, path).endswith(os.strerror(errno.EACCES))
    finally:
        directory.chmod(0o700)
        shutil.rmtree(directory)


def test_a_recording_that_may_not_be_read(rows: MakeRows) -> None:
    directory = Path(tempfile.mkdtemp())
    path = directory / "r.hoptui"
    try:
        closed(path, rows(3))
        path.chmod(0o000)
        directory.chmod(0o755)
        with without_privileges():
            assert reason(Recording.open, path).endswith(os.strerror(errno.EACCES))
    finally:
        shutil.rmtree(directory)
