"""A recording of schema 1, kept from when that was the newest: readable as it is, and goes on under a
writer."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hoptui.domain.columns import concatenate, pack
from hoptui.recording import Recording
from hoptui.recording.database import SCHEMA
from hoptui.recording.ingest import Boot

SECOND = 1_000_000_000
ROWS = "SELECT source, sum(rows) FROM blocks GROUP BY 1"
OLD_TABLES = "SELECT count(*) FROM sqlite_master WHERE name LIKE 'chunks%'"
OLD = Path(__file__).parent / "data" / "schema1.hoptui"
SOURCES = {
    "gpu/GPU-0": (100 * SECOND, 1069 * SECOND, 480),
    "host": (100 * SECOND, 1010 * SECOND, 6),
    "run/g1": (100 * SECOND + 1000, 1069 * SECOND + 1000, 480),
}
DIGESTS = {
    "gpu/GPU-0": "6260b09fd8c05013596f567bd0eb8c25d9f701834206cff3561a55367ded0d54",
    "host": "4093f8a8d075e48b7466fd5066458c8f937ecec8653b9015acaa3e89a11319c7",
    "run/g1": "6b48cf59af7b5840c7a2141db0780799393cc5a30bb5fc22417dc6a79503c088",
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.hoptui"
    shutil.copyfile(OLD, path)
    return path


def digest(recording: Recording, source: str, rows: int) -> str:
    """Of the first `rows` rows, their names included."""
    found = concatenate(source, recording.rows(source)).slice(0, rows)
    return hashlib.sha256(
        b"".join((",".join(found.names).encode(), found.t, found.step, *found.values))
    ).hexdigest()


def check(recording: Recording) -> None:
    """All that the old file holds is there."""
    assert {source: digest(recording, source, SOURCES[source][2]) for source in SOURCES} == DIGESTS
    assert [(e.seq, e.t, e.text) for e in recording.events()] == [
        (1, 150 * SECOND, "golden"),
        (3, 1020 * SECOND, "after the reboot"),
    ]
    (command,) = recording.commands()
    assert (command.id, command.before, command.effective, command.settled) == ("c1", 1e-3, 0.5, 152 * SECOND)
    assert recording.recall("run") == b'{"golden":true}'
    assert recording.recall("note") == "text"


def test_a_reader_reads_it_as_it_is(old: Path) -> None:
    before = old.read_bytes()
    with Recording.open(old) as recording:
        assert recording.sources() == SOURCES
        assert recording.span() == (100 * SECOND, 1069 * SECOND + 1000)
        check(recording)
        assert recording.names("run/g1") == ("loss", "lr", "grad_norm")
        assert recording.at("gpu/GPU-0", 1069 * SECOND, 5)["busy"] == 99.0
        found = recording.buckets("gpu/GPU-0", ("busy",), points=50)
        assert found.names == ("busy",)
        assert 20 <= len(found.t) // 8 <= 50
        assert recording.thinned_before is None
    assert old.read_bytes() == before


def test_a_reader_reads_it_in_a_directory_it_may_not_write(old: Path) -> None:
    old.chmod(0o400)
    old.parent.chmod(0o500)
    try:
        with Recording.open(old) as recording:
            check(recording)
    finally:
        old.parent.chmod(0o700)


def test_a_writer_brings_it_forward_and_goes_on(old: Path) -> None:
    with Recording.create(old, boot=Boot("boot-a", 1_700_000_000 * SECOND, 2_000 * SECOND)) as recording:
        assert recording.sources() == SOURCES
        check(recording)
        recording.append(pack("gpu/GPU-0", [((2_000 + i) * SECOND, -1, {"busy": 1.0}) for i in range(600)]))
        recording.flush()
        check(recording)
    with closing(sqlite3.connect(old)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
        assert db.execute(ROWS).fetchall() == [("gpu/GPU-0", 1080)]
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute(OLD_TABLES).fetchone() == (0,)
    with Recording.open(old) as recording:
        check(recording)
        assert recording.sources()["gpu/GPU-0"] == (100 * SECOND, 2_599 * SECOND, 1_080)
