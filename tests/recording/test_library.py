"""What lies on the shelf, damaged or not, and what is taken off it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hoptui.domain.columns import Columns
from hoptui.domain.facts import fact
from hoptui.recording import Recording, RecordingError, library
from hoptui.recording.ingest import Boot
from hoptui.recording.library import RUN, KnownRun, decode_node, encode_node
from tests import factories
from tests.golden import Golden

SECOND = 1_000_000_000
MakeRows = Callable[..., Columns]
Record = Callable[..., Path]


@pytest.fixture
def record(tmp_path: Path, rows: MakeRows) -> Record:
    """record(run, modified=…, count=…): a closed recording of a run."""

    def make(run: str, modified: float = 0.0, count: int = 5) -> Path:
        path = tmp_path / f"{run}.hoptui"
        with Recording.create(path, boot=Boot("b", 1_000_000 * SECOND, 0)) as recording:
            state = factories.run(run, f"name of {run}")
            known = KnownRun(state=state, nonce="n", process_started=1)
            recording.remember(RUN, msgspec.json.encode(known))
            if count:
                recording.append(rows(count))
        if modified:
            os.utime(path, (modified, modified))
        return path

    return make


def names(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


def test_entries_come_newest_first_with_what_they_say_of_themselves(tmp_path: Path, record: Record) -> None:
    record("old", modified=2e6)
    new = record("new", modified=3e6, count=700)
    record("empty", modified=1e6, count=0)
    (tmp_path / "notes.txt").write_text("not looked at")
    found = library.entries(tmp_path)
    assert [(e.run, e.modified, e.problem) for e in found] == [
        ("new", 3e6, ""),
        ("old", 2e6, ""),
        ("empty", 1e6, ""),
    ]
    first = found[0]
    assert (first.path, first.size_bytes) == (new, new.stat().st_size)
    assert first.state is not None
    assert first.state.name == "name of new"
    assert (first.first_wall, first.last_wall) == (1_000_001.0, 1_000_700.0)
    assert (found[2].first_wall, found[2].last_wall) == (0.0, 0.0)
    assert names(tmp_path) == {
        "old.hoptui",
        "new.hoptui",
        "empty.hoptui",
        "notes.txt",
    }  # a look leaves no trace


def test_an_entry_says_how_much_its_recording_lacks(tmp_path: Path, record: Record) -> None:
    with Recording.create(record("lossy")) as recording:
        recording.lose(3)
    [entry] = library.entries(tmp_path)
    assert entry.state is not None
    assert entry.state.recording == "3 rows, events, commands or stack samples are missing"


def test_one_that_is_being_written_is_read_with_its_log(
    tmp_path: Path, record: Record, rows: MakeRows
) -> None:
    path = record("live")
    with Recording.create(path, boot=Boot("b", 1_000_000 * SECOND, 0)) as recording:
        recording.append(rows(50, first=100))
        recording.flush()
        (found,) = library.entries(tmp_path)
        assert found.last_wall == 1_000_149.0
        assert found.size_bytes == path.stat().st_size + path.with_name(f"{path.name}-wal").stat().st_size


def test_damaged_files_are_entries_with_a_problem(
    tmp_path: Path, record: Record, rows: MakeRows, golden: Golden
) -> None:
    (tmp_path / "text.hoptui").write_text("no database at all " * 99)
    (tmp_path / "nothing.hoptui").touch()
    (tmp_path / "folder.hoptui").mkdir()
    os.truncate(record("half", count=5000), 4096)
    with Recording.create(tmp_path / "silent.hoptui") as recording:
        recording.append(rows(3))
    with Recording.create(tmp_path / "garbled.hoptui") as recording:
        recording.remember(RUN, b"\xff{")
    (tmp_path / "dangling.hoptui").symlink_to(tmp_path / "gone")
    found = {entry.run: entry for entry in library.entries(tmp_path)}
    assert {run: entry.state for run, entry in found.items()} == dict.fromkeys(
        ["text", "nothing", "folder", "half", "silent", "garbled"]
    )
    problems = "".join(f"{found[run].problem}\n" for run in sorted(found))
    # The damage is described by SQLite and msgspec.
    golden(problems, normalize={re.escape(str(tmp_path)): "DIR", "is damaged: .+": "is damaged: CAUSE"})


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    for look in (library.entries, lambda where: library.tidy(where, frozenset(), 0, 0, 0)):
        with pytest.raises(RecordingError, match="No such file"):
            look(tmp_path / "missing")


def test_remove_takes_all_of_a_recordings_files(tmp_path: Path, record: Record) -> None:
    path = record("a")
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).touch()
    other = record("ab")
    library.remove(path)
    assert names(tmp_path) == {other.name}
    library.remove(path)


def test_tidy_by_age(tmp_path: Path, record: Record, golden: Golden) -> None:
    day, now = 86_400.0, 100 * 86_400.0
    for age in (1, 29, 31, 40):
        record(f"r{age}", modified=now - age * day)
    size = (tmp_path / "r40.hoptui").stat().st_size
    removed = library.tidy(tmp_path, frozenset({"r40"}), 1e12, 30 * day, now)
    assert [(r.path.name, r.size_bytes) for r in removed] == [("r31.hoptui", size)]
    golden(f"{removed[0].why}\n")
    assert names(tmp_path) == {"r1.hoptui", "r29.hoptui", "r40.hoptui"}


def test_a_log_that_a_reader_has_left_does_not_make_a_recording_younger(
    tmp_path: Path, record: Record
) -> None:
    day, now = 86_400.0, 100 * 86_400.0
    path = record("read", modified=now - 40 * day)
    path.with_name(f"{path.name}-wal").touch()
    (entry,) = library.entries(tmp_path)
    assert entry.modified == now - 40 * day
    assert [r.path for r in library.tidy(tmp_path, frozenset(), 1e12, 30 * day, now)] == [path]
    assert names(tmp_path) == set()


def test_tidy_by_size_takes_the_oldest_and_never_one_to_keep(
    tmp_path: Path, record: Record, golden: Golden
) -> None:
    for modified in range(1, 6):
        record(f"r{modified}", modified=float(modified))
    size = (tmp_path / "r1.hoptui").stat().st_size
    removed = library.tidy(tmp_path, frozenset({"r1", "r4"}), 3 * size, 1e9, 10.0)
    assert [r.path.name for r in removed] == ["r2.hoptui", "r3.hoptui"]
    golden(f"{removed[0].why}\n", normalize={rf"\b{3 * size / 1e9:.3g}\b": "LIMIT"})
    assert library.tidy(tmp_path, frozenset({"r1", "r4"}), 3 * size, 1e9, 10.0) == []
    library.tidy(tmp_path, frozenset({"r1", "r4"}), 0, 1e9, 10.0)
    assert names(tmp_path) == {"r1.hoptui", "r4.hoptui"}


def test_one_that_cannot_be_deleted_is_not_counted_as_freed(tmp_path: Path, record: Record) -> None:
    folder = tmp_path / "folder.hoptui"
    folder.mkdir()
    os.utime(folder, (1.0, 1.0))
    record("r1", modified=2.0)
    assert [r.path.name for r in library.tidy(tmp_path, frozenset(), 0, 1e9, 10.0)] == ["r1.hoptui"]


def test_two_hundred_recordings_are_looked_through_quickly(tmp_path: Path, record: Record) -> None:
    """0.15 s on one core of a small machine."""
    raw = record("r0", count=600).read_bytes()
    for i in range(1, 200):
        (tmp_path / f"r{i}.hoptui").write_bytes(raw)
    began = time.process_time()
    found = library.entries(tmp_path)
    assert time.process_time() - began < 2
    assert len(found) == 200
    assert all(entry.last_wall == 1_000_600.0 for entry in found)


def test_the_node_of_an_older_recording_keeps_its_sentences() -> None:
    gpu = {"uuid": "GPU-a", "index": 0, "name": "H100", "reason": "GPU is lost", "missing": {"gpm": "no"}}
    known = {"host": "gpu07", "pid": 1, "version": "0.1.0", "started_wall": 0.0, "wall_offset_ns": 0}
    node = decode_node(
        json.dumps({**known, "gpu_reason": "one is lost", "gpus": [gpu, {**gpu, "reason": ""}]})
    )
    assert node.gpu_problem == fact("recorded", text="one is lost")
    assert [gpu.problem for gpu in node.gpus] == [fact("recorded", text="GPU is lost"), None]
    assert node.gpus[0].missing_because == {"gpm": fact("recorded", text="no")}
    assert decode_node(encode_node(node)) == node
    for damaged in ("[]", "{}", json.dumps({**known, "gpus": [1]}), json.dumps({**known, "gpus": 1})):
        with pytest.raises(msgspec.DecodeError):
            decode_node(damaged)
