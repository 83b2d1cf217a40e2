"""Hostile recordings: one sentence within a second, in bounded memory, whoever reads them."""

from __future__ import annotations

import sqlite3
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hoptui.client.replay import Replay
from hoptui.daemon.recordings import History, RetentionLimits
from hoptui.domain.columns import pack
from hoptui.model import report
from hoptui.node.addresses import Addresses
from hoptui.recording import Recording, RecordingError, library, limits, tables
from hoptui.recording.ingest import Boot
from tests.model.recorded_run import BOOT, at, write
from tests.recording import hostile_files
from tests.recording.hostile_files import HOSTILE

MOST_S = 1.0
MOST_MEMORY = 100 << 20
OF_THE_RUN = {"meta_deep", "meta_null_bytes", "node_int", "run_epoch", "run_wall"}
"""What only a reader of the run or the node notices."""
OF_SOME_ROWS = {
    "block_bomb", "block_level", "block_level_huge", "block_level_text", "block_rows", "block_text",
    "body_bomb", "body_text", "names_int", "names_twice",
    "rows_negative",
}  # fmt: skip
"""What only a reader of these rows notices."""


@contextmanager
def bounded() -> Iterator[None]:
    tracemalloc.start()
    began = time.thread_time()
    try:
        yield
        assert time.thread_time() - began < MOST_S
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


def refused(work: Callable[[], object]) -> None:
    with pytest.raises(RecordingError) as error:
        work()
    assert "\n" not in error.value.reason
    assert len(error.value.reason) < 500


def reported(path: Path) -> None:
    with Recording.open(path) as recording:
        report.read(recording)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.guarantee("hostile-file")
@pytest.mark.guarantee("decompression")
@pytest.mark.guarantee("cell-type")
def test_a_hostile_file_is_refused_at_once(name: str, tmp_path: Path) -> None:
    path = hostile_files.make(tmp_path / "rec01.hoptui", name)
    if name not in OF_THE_RUN:
        with bounded():
            refused(lambda: hostile_files.read_all(path))
    if name not in OF_SOME_ROWS:
        with bounded():
            refused(lambda: reported(path))
        with bounded():
            refused(lambda: Replay(path).close())
    with bounded():
        library.entries(tmp_path)
    with bounded():
        list(History(Addresses(tmp_path, tmp_path), RetentionLimits()).restore())


@pytest.mark.parametrize(
    "name", ["trigger", "meta_other", "extra_index", "no_table", "schema_bytes", "schema_name"]
)
@pytest.mark.guarantee("hostile-writer")
def test_a_writer_does_not_touch_a_file_with_another_schema(name: str, tmp_path: Path) -> None:
    path = hostile_files.make(tmp_path / "rec01.hoptui", name)
    before = path.read_bytes()
    refused(lambda: Recording.create(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["block_level", "block_level_huge", "block_level_text"])
def test_a_writer_goes_on_below_blocks_of_a_level_that_none_has(name: str, tmp_path: Path) -> None:
    path = hostile_files.make(tmp_path / "rec01.hoptui", name)
    rows = pack("gpu/GPU-0", [(at(700 + i), -1, {"busy": 1.0}) for i in range(tables.ROWS)])
    with bounded(), Recording.create(path, boot=BOOT) as recording:
        recording.append(rows)
        recording.flush()
        assert recording.refused == 0
        assert recording.last_t("gpu/GPU-0") == rows.times()[-1]


@pytest.mark.guarantee("endless-statement")
def test_a_statement_without_an_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_STATEMENT_S", 0.02)
    with closing(sqlite3.connect(":memory:", factory=limits.ReaderConnection)) as db:
        for _ in range(2):  # each statement has its own time
            with pytest.raises(sqlite3.OperationalError, match="interrupted"):
                db.execute(f"{hostile_files.ENDLESS} count(*) FROM n").fetchone()


@pytest.mark.guarantee("decompression")
def test_more_content_than_bytes_is_refused() -> None:
    found = limits.bounded(iter([("x" * 60,), (b"y" * 60, 5)]), 100)
    assert next(found) == ("x" * 60,)
    with pytest.raises(ValueError, match="more content than bytes"):
        next(found)


def test_views_of_the_file_for_users_do_not_matter(tmp_path: Path) -> None:
    """Their text has changed between versions, and nothing here reads them."""
    path = tmp_path / "rec01.hoptui"
    write(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP VIEW event_log")
        db.execute(f"CREATE VIEW event_log AS {hostile_files.ENDLESS} i FROM n")
    with bounded():
        hostile_files.read_all(path)
    with Recording.create(path, boot=Boot("b", 0, 0)) as recording:
        assert recording.events()
