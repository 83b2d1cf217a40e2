"""A writer that is killed, a disk that is full: what was flushed stays, what waits goes on waiting."""

from __future__ import annotations

import re
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from hoptui.domain.columns import Columns
from hoptui.recording import Recording, RecordingError, database
from hoptui.recording.ingest import Boot, Pending
from tests import factories
from tests.golden import Golden

MakeRows = Callable[..., Columns]

WRITER = """
import sys
from pathlib import Path
from hoptui.recording import Recording
from hoptui.domain.columns import pack
recording = Recording.create(Path(sys.argv[1]))
t = recording.last_t("run/r1")
while True:
    recording.append(pack("run/r1", [(t + i + 1, t + i + 1, {"x": float(t + i + 1)}) for i in range(100)]))
    recording.flush()
    t += 100
    print(t, flush=True)
"""

BUSY_WRITER = WRITER.replace("range(100)", "range(700)").replace("t += 100", "t += 700")


def killed_writer(path: Path, flushes: int) -> int:
    """Write in another process, kill it in the middle of it, and return the last row it said was on disk."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(flushes)]
        writer.kill()
        told += [int(line) for line in writer.stdout if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    return told[-1]


def test_what_was_flushed_survives_a_kill_and_the_next_writer_goes_on(path: Path) -> None:
    told = 0
    for flushes in (3, 40):
        told = killed_writer(path, flushes)
        with Recording.open(path) as reader:
            steps = [step for part in reader.rows("run/r1") for step in part.steps()]
        assert len(steps) >= told
        assert steps == list(range(1, len(steps) + 1))
    with Recording.create(path) as recording:
        assert recording.last_t("run/r1") >= told
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_killed_at_any_moment(path: Path) -> None:
    """While rows arrive, while blocks are made of them, and while the pyramid grows: whole flushes, and no
    damage."""
    told = 0
    ends = time.monotonic() + 2.0
    kills = 0
    while time.monotonic() < ends or kills < 3:
        with subprocess.Popen(
            [sys.executable, "-c", BUSY_WRITER, str(path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            told = max(told, int(writer.stdout.readline()))
            kills += 1
            # Somewhere between two flushes: how far it comes differs each time.
            select.select([writer.stdout], [], [], 0.013 * (kills % 7))
            writer.kill()
            told = max([told, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        with Recording.open(path) as reader:
            steps = [step for part in reader.rows("run/r1") for step in part.steps()]
            assert len(steps) >= told
            assert steps == list(range(1, len(steps) + 1))
            assert len(steps) % 700 == 0
            (whole,) = array("d", reader.buckets("run/r1", ("x",), points=1).high[0])
            assert whole == len(steps)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_reader_beside_a_busy_writer_sees_whole_flushes_that_only_grow(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        try:
            writer.stdout.readline()
            seen = [0]
            with Recording.open(path) as reader:
                for _ in range(30):
                    steps = [step for part in reader.rows("run/r1") for step in part.steps()]
                    assert steps == list(range(1, len(steps) + 1))
                    assert len(steps) % 100 == 0
                    seen.append(len(steps))
                    writer.stdout.readline()
            assert seen == sorted(seen)
            assert seen[-1] > seen[1]
        finally:
            writer.kill()


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond `size` bytes: the kernel refuses the write, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.guarantee("full-disk")
def test_a_full_disk_loses_nothing_and_recovers(path: Path, boot: Boot, rows: MakeRows) -> None:
    with Recording.create(path, boot=boot) as recording:
        recording.append(rows(300))
        recording.flush()
        recording.append(rows(3000, first=301))
        recording.event(factories.event(text="still here"))
        with full_disk(path.with_name("r1.hoptui-wal").stat().st_size):
            for _ in range(2):
                with pytest.raises(RecordingError, match=r"r1\.hoptui cannot (grow|be)"):
                    recording.flush()
        assert recording.sources()["host"][2] == 3300
        recording.append(rows(10, first=3301))
        recording.flush()
        assert recording.dropped == 0
    with Recording.open(path) as reader:
        assert [s for part in reader.rows("host") for s in part.steps()] == list(range(1, 3311))
        assert [event.text for event in reader.events()] == ["still here"]


def test_a_disk_that_fills_up_while_blocks_are_made(path: Path, boot: Boot, long_rows: MakeRows) -> None:
    """Again and again, a little later each time: what was flushed stays readable, what waits gets there in
    the end."""
    with Recording.create(path, boot=boot) as recording:
        last = 1
        for more in range(12):
            recording.append(long_rows(1500, first=last))
            last += 1500
            with (
                full_disk(path.with_name("r1.hoptui-wal").stat().st_size + 3000 * more),
                suppress(RecordingError),
            ):
                recording.flush()
            with Recording.open(path) as reader:
                steps = [step for part in reader.rows("gpu/GPU-1") for step in part.steps()]
            assert steps == list(range(1, len(steps) + 1))
        recording.flush()
        assert recording.dropped == 0
        assert recording.sources()["gpu/GPU-1"][2] == last - 1
    with Recording.open(path) as reader:
        assert [s for part in reader.rows("gpu/GPU-1") for s in part.steps()] == list(range(1, last))
        assert {part.names for part in reader.rows("gpu/GPU-1")} == {("power_w", "total")}
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_reason_of_a_full_disk_says_so(
    recording: Recording, path: Path, rows: MakeRows, golden: Golden
) -> None:
    recording._db.execute("PRAGMA max_page_count = 20")
    recording.append(rows(50_000))
    with pytest.raises(RecordingError) as error:
        recording.flush()
    golden(f"{error.value.reason}\n", normalize={re.escape(str(path)): "PATH"})
    recording._db.execute("PRAGMA max_page_count = 100000")
    recording.flush()
    assert recording.sources()["host"][2] == 50_000


def test_a_close_that_cannot_flush_says_so_and_closes(
    recording: Recording, path: Path, rows: MakeRows, golden: Golden
) -> None:
    recording.append(rows(10))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        recording._db.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RecordingError) as error:
            recording.close()
        golden(f"{error.value.reason}\n", normalize={re.escape(str(path)): "PATH"})
        other.execute("ROLLBACK")
    assert [file.name for file in path.parent.iterdir()] == ["r1.hoptui"]


@pytest.mark.guarantee("full-disk")
def test_what_waits_is_bounded_and_the_oldest_goes_first(rows: MakeRows) -> None:
    hundred = rows(100).size_bytes
    pending = Pending(max_bytes=3 * hundred, max_records=2)
    for first in range(1, 1001, 100):
        pending.add(rows(100, first=first))
    assert pending.dropped == 700
    assert [part.steps()[0] for part in pending.rows("host")] == [701, 801, 901]
    for seq in (1, 2, 3):
        pending.add_event(factories.event(seq, t=0))
    assert list(pending.events) == [2, 3]
    for name in ("a", "b", "a", "c"):
        pending.add_command(factories.record(name, "r", verb="pause"))
    assert list(pending.commands) == ["a", "c"]
    assert pending.dropped == 702
    pending.clear()
    assert not pending
    assert pending.dropped == 702


def test_a_batch_larger_than_the_bound_is_kept(rows: MakeRows) -> None:
    pending = Pending(max_bytes=10)
    pending.add(rows(5))
    pending.add(rows(7, first=6))
    assert [len(part) for part in pending.rows("host")] == [7]
    assert pending.dropped == 5


def test_a_recording_has_one_writer(
    recording: Recording, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WRITER_LEAVES_S", 0.0)
    with pytest.raises(RecordingError, match="another process"):
        Recording.create(path)
    recording.close()
    Recording.create(path).close()


def test_a_file_that_is_replaced_while_it_is_opened_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hoptui record -o` in a directory of others: a link put there meanwhile must not be followed."""
    path, victim = tmp_path / "node.hoptui", tmp_path / "victim.hoptui"
    victim.touch()

    def swapped(*_: object) -> None:
        path.unlink()
        path.symlink_to(victim)

    monkeypatch.setattr(database, "_lock", swapped)
    with pytest.raises(RecordingError, match="replaced"):
        Recording.create(path)
    assert victim.stat().st_size == 0
