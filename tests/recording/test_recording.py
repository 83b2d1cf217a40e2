"""What goes into a recording comes out: rows, events, commands and remembered values, flushed or not, clipped
or whole."""

from __future__ import annotations

import itertools
import sqlite3
import stat
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui.domain.columns import Columns, pack
from hoptui.protocol.messages import CommandRecord, Event
from hoptui.recording import Recording, RecordingError
from hoptui.recording.ingest import Boot
from hoptui.recording.tables import ROWS
from tests import factories

SECOND = 1_000_000_000
MakeRows = Callable[..., Columns]
Plain = list[tuple[int, int, dict[str, float]]]


def plain(parts: Iterable[Columns]) -> Plain:
    """All rows of all parts."""
    return list(itertools.chain.from_iterable(part.rows() for part in parts))


def an_event(seq: int, text: str = "checkpoint written") -> Event:
    return factories.event(seq, "checkpoint", text, t=seq * SECOND, wall=1e6 + seq, run="r1", step=7)


def a_command(seq: int, name: str = "c1") -> CommandRecord:
    return factories.change(
        name,
        "r1",
        epoch=2,
        effective=8.0,
        version=3,
        why="less memory",
        t=5 * SECOND,
        settled=6 * SECOND,
        measured=factories.measured(0.061, 0.012, metric="samples_per_s", settled=False),
        seq=seq,
    )


def test_rows_are_there_before_and_after_a_flush_and_for_another_reader(
    recording: Recording, path: Path, rows: MakeRows
) -> None:
    recording.append(rows(5))
    assert plain(recording.rows("host")) == plain([rows(5)])
    recording.flush()
    recording.append(rows(3, first=6))
    assert plain(recording.rows("host")) == plain([rows(8)])
    with Recording.open(path) as reader:
        assert plain(reader.rows("host")) == plain([rows(5)])
        assert reader.sources() == {"host": (SECOND, 5 * SECOND, 5)}
        recording.flush()
        assert plain(reader.rows("host")) == plain([rows(8)])
    assert recording.sources() == {"host": (SECOND, 8 * SECOND, 8)}


def test_sources_are_kept_apart(recording: Recording, rows: MakeRows) -> None:
    for source, n in (("host", 3), ("gpu/GPU-1", 5), ("run/r1", 2)):
        recording.append(rows(n, source=source))
    recording.flush()
    recording.append(rows(1, first=3, source="run/r1"))
    recording.append(rows(1, source="process/r1"))
    assert {source: n for source, (_, _, n) in recording.sources().items()} == {
        "host": 3,
        "gpu/GPU-1": 5,
        "run/r1": 3,
        "process/r1": 1,
    }
    assert plain(recording.rows("run/r1")) == plain([rows(3)])
    assert plain(recording.rows("run/other")) == []


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize(
    ("t0", "t1", "first", "last"),
    [
        (0, 0, 1, 1500),
        (700, 0, 700, 1500),
        (0, 30, 1, 30),
        (511, 514, 511, 514),
        (2000, 0, 0, -1),
        (9, 8, 0, -1),
    ],
)
def test_rows_are_clipped_to_the_time_asked_for(
    recording: Recording, rows: MakeRows, t0: int, t1: int, first: int, last: int, flushed: bool
) -> None:
    for start in range(1, 1501, 250):
        recording.append(rows(250, first=start))
        if flushed:
            recording.flush()
    steps = [step for _, step, _ in plain(recording.rows("host", t0 * SECOND, t1 * SECOND))]
    assert steps == list(range(first, last + 1))


@pytest.mark.parametrize("flushed", [True, False])
def test_only_the_names_asked_for_are_read(recording: Recording, rows: MakeRows, flushed: bool) -> None:
    recording.append(rows(4))
    recording.append(pack("host", [(9 * SECOND, 9, {"z": 1.5})]))
    if flushed:
        recording.flush()
    assert plain(recording.rows("host", names=("y", "z"))) == [
        (SECOND, 1, {}),
        (2 * SECOND, 2, {}),
        (3 * SECOND, 3, {"y": -1.5}),
        (4 * SECOND, 4, {}),
        (9 * SECOND, 9, {"z": 1.5}),
    ]


def test_rows_sent_again_are_kept_once(recording: Recording, path: Path, rows: MakeRows, boot: Boot) -> None:
    recording.append(rows(10))
    recording.append(rows(10, first=6))
    assert recording.last_t("host") == 15 * SECOND
    recording.flush()
    recording.append(rows(3, first=12))
    recording.close()
    with Recording.create(path, boot=boot) as again:
        assert again.last_t("host") == 15 * SECOND
        assert again.last_t("gpu/GPU-1") == 0
        again.append(rows(20))
        assert plain(again.rows("host")) == plain([rows(20)])


def test_flushing_every_second_makes_few_blocks(recording: Recording, rows: MakeRows) -> None:
    """Ten minutes at 1 Hz and at 20 Hz: a block for every ROWS rows, and the rest as it came."""
    for second in range(600):
        recording.append(rows(1, first=second + 1, source="host"))
        recording.append(rows(20, first=20 * second + 1, every=SECOND // 20, source="run/r1"))
        recording.flush()
    with closing(sqlite3.connect(recording.path)) as db:
        blocks = db.execute("SELECT source, count(*), sum(rows) FROM blocks GROUP BY 1 ORDER BY 1").fetchall()
        arrived = db.execute("SELECT source, count(*), sum(rows) FROM arrivals GROUP BY 1 ORDER BY 1")
        assert blocks == [("host", 1, 512), ("run/r1", 23, 23 * 520)]
        assert arrived.fetchall() == [("host", 88, 88), ("run/r1", 2, 40)]
        assert db.execute("SELECT names FROM layouts").fetchall() == [('["x","y"]',)]
    assert plain(recording.rows("run/r1")) == plain([rows(12_000, every=SECOND // 20)])


def test_many_rows_at_once_are_cut_into_blocks_of_equal_size(recording: Recording, rows: MakeRows) -> None:
    recording.append(rows(7))
    recording.flush()
    recording.append(rows(3 * ROWS + 93, first=8))
    recording.flush()
    assert [len(part) for part in recording.rows("host")] == [545, 545, 546]
    assert plain(recording.rows("host")) == plain([rows(3 * ROWS + 100)])


def test_rows_being_read_do_not_change_when_the_writer_seals_them(
    recording: Recording, rows: MakeRows
) -> None:
    recording.append(rows(600))
    recording.flush()
    recording.append(rows(30, first=601))
    recording.flush()
    reading = recording.rows("host")
    found = [next(reading)]
    recording.append(rows(600, first=631))
    recording.flush()
    assert plain([*found, *reading]) == plain([rows(630)])


@given(
    batches=st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=12),
    t0=st.integers(0, 1500),
    t1=st.integers(0, 1500),
)
@settings(max_examples=25, deadline=None)
def test_any_history_reads_like_a_list(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, bool]], t0: int, t1: int
) -> None:
    file = tmp_path_factory.mktemp("history") / "r.hoptui"
    known: Plain = []
    with Recording.create(file, boot=Boot("b", 0, 0)) as recording:
        for n, flush in batches:
            batch: Plain = [
                (len(known) + i + 1, i, {"x": float(i)} if i % 2 else {"y": 1.0}) for i in range(n)
            ]
            known += batch
            recording.append(pack("s", batch))
            if flush:
                recording.flush()
        expected = [row for row in known if t0 <= row[0] and (not t1 or row[0] <= t1)]
        assert plain(recording.rows("s", t0, t1)) == expected
    with Recording.open(file) as reader:
        assert plain(reader.rows("s", t0, t1)) == expected


def test_events_and_commands_by_number(recording: Recording, path: Path) -> None:
    recording.event(an_event(1))
    recording.event(an_event(2))
    recording.command(a_command(3, "c1"))
    recording.flush()
    recording.command(a_command(5, "c2"))
    recording.command(a_command(6, "c1"))
    recording.event(an_event(2, "checkpoint failed"))
    recording.event(an_event(4))
    expected = [an_event(2, "checkpoint failed"), an_event(4)]
    assert recording.events(after=1) == expected
    assert recording.commands() == [a_command(5, "c2"), a_command(6, "c1")]
    assert recording.commands(after=5) == [a_command(6, "c1")]
    recording.flush()
    with Recording.open(path) as reader:
        assert reader.events() == [an_event(1), *expected]
        assert reader.events(after=4) == []
        assert reader.commands() == [a_command(5, "c2"), a_command(6, "c1")]


def test_what_a_viewer_asks_for_may_be_any_integer(recording: Recording, rows: MakeRows) -> None:
    recording.append(rows(3))
    recording.event(an_event(1))
    recording.command(a_command(2))
    recording.flush()
    for huge in (1 << 64) - 1, 10**30:
        assert plain(recording.rows("host", -huge, huge)) == plain([rows(3)])
        assert plain(recording.rows("host", huge)) == []
        assert recording.events(-huge) + recording.events(huge) == [an_event(1)]
        assert recording.commands(-huge) + recording.commands(huge) == [a_command(2)]


@pytest.mark.parametrize("value", [True, False, 4, 1 << 62, 0.5, 8.0, "bf16", "", None])
def test_a_commands_value_keeps_its_type(
    recording: Recording, value: bool | int | float | str | None
) -> None:
    recording.command(factories.record("c", "r1", wanted=value, seq=1))
    recording.flush()
    (found,) = recording.commands()
    assert found.wanted == value
    assert type(found.wanted) is type(value)


def test_remembered_values_keep_their_type_and_are_replaced(recording: Recording, path: Path) -> None:
    assert recording.recall("run") is None
    recording.remember("run", b"\x00\xff")
    assert recording.recall("run") == b"\x00\xff"
    recording.flush()
    recording.remember("epoch", "12")
    recording.remember("run", b"new")
    assert recording.recall("run") == b"new"
    recording.flush()
    with Recording.open(path) as reader:
        assert (reader.recall("run"), reader.recall("epoch"), reader.recall("other")) == (b"new", "12", None)


@pytest.mark.guarantee("private-recordings")
def test_file_and_directory_are_for_the_user_alone(recording: Recording, path: Path, rows: MakeRows) -> None:
    recording.append(rows(3))
    recording.flush()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    beside = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert beside == {"r1.hoptui": 0o600, "r1.hoptui-wal": 0o600, "r1.hoptui-shm": 0o600}
    recording.close()
    assert [file.name for file in path.parent.iterdir()] == ["r1.hoptui"]


def test_what_waits_is_flushed_at_the_end_and_nothing_can_be_added_after_it(
    recording: Recording, path: Path, rows: MakeRows
) -> None:
    recording.append(rows(3))
    recording.close()
    recording.close()
    writes: list[Callable[[], None]] = [
        lambda: recording.append(rows(1)),
        lambda: recording.event(an_event(1)),
        lambda: recording.command(a_command(1)),
        lambda: recording.remember("run", ""),
    ]
    for write in writes:
        with pytest.raises(RecordingError, match=r"r1\.hoptui is not open for writing"):
            write()
    with pytest.raises(RecordingError, match="closed"):
        recording.sources()
    with Recording.open(path) as reader:
        assert plain(reader.rows("host")) == plain([rows(3)])
        with pytest.raises(RecordingError, match="not open for writing"):
            reader.append(rows(1))


def test_the_span_is_that_of_all_rows_and_events(recording: Recording, path: Path, rows: MakeRows) -> None:
    assert recording.span() == (0, 0)
    recording.append(rows(600, first=5))
    for flushed in (False, True):
        assert recording.span() == (5 * SECOND, 604 * SECOND)
        if not flushed:
            recording.flush()
    recording.append(rows(3, first=700, source="gpu/GPU-1"))
    recording.event(an_event(2))
    assert recording.span() == (2 * SECOND, 702 * SECOND)
    recording.flush()
    with Recording.open(path) as reader:
        assert reader.span() == (2 * SECOND, 702 * SECOND)


def test_the_names_of_a_source(recording: Recording, rows: MakeRows) -> None:
    recording.append(rows(600))
    recording.flush()
    recording.append(pack("host", [(700 * SECOND, -1, {"z": 1.0, "x": 2.0})]))
    assert recording.names("host") == ("x", "y", "z")
    recording.flush()
    assert recording.names("host") == ("x", "y", "z")
    assert recording.names("host", 650 * SECOND) == ("z", "x")
    assert recording.names("nothing") == ()


def test_the_values_at_a_moment(recording: Recording, rows: MakeRows) -> None:
    recording.append(rows(600))
    recording.flush()
    recording.append(rows(10, first=601))
    assert recording.at("host", 400 * SECOND, 10) == {"x": 400.0, "y": -199.5}
    assert recording.at("host", 400 * SECOND + 1, 2) == {"x": 400.0, "y": -199.5}
    assert recording.at("host", 400 * SECOND + 1, 0.5) == {"x": 400.0}
    assert recording.at("host", 605 * SECOND, 3) == {"x": 605.0, "y": -301.5}
    assert recording.at("host", 700 * SECOND, 50) == {}
    assert recording.at("host", 0, 50) == {}
    assert recording.at("nothing", 5 * SECOND, 50) == {}


def test_an_empty_flush_writes_nothing(recording: Recording, path: Path) -> None:
    recording.flush()
    before = path.with_name("r1.hoptui-wal").stat().st_size
    recording.flush()
    assert path.with_name("r1.hoptui-wal").stat().st_size == before
