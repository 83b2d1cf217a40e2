"""What comes to a recording is on disk, waits for the disk, or is counted as missing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hoptui.daemon import archive as archives
from hoptui.daemon.archive import Archive
from hoptui.daemon.recording_writer import RecordingWriter
from hoptui.daemon.recordings import MOST_ENDED, RetentionLimits
from hoptui.daemon.state.stack_windows import StackBatch
from hoptui.domain.columns import Columns, pack
from hoptui.domain.pacing import Timings
from hoptui.domain.run_notes import RunNote
from hoptui.domain.stacks import StackFrame
from hoptui.domain.stacks import pack as pack_stacks
from hoptui.node.addresses import Addresses
from hoptui.recording import Recording, database, recording
from hoptui.recording.library import RUN, known_run
from hoptui.recording.stack_minutes import MINUTE_BYTES
from hoptui.recording.tables import Tables
from hoptui.recording.timed_states import JOB, PROCESSES
from tests import factories
from tests.conftest import until
from tests.daemon.test_recordings import KNOWN, NODE, STATE, S, make, rows
from tests.recording.test_failures import full_disk

OURS, HOST = "run/r", "host"


class FaultyDisk:
    """What an open recording asks of the disk fails while the fault is on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.opens = self.reads = self.writes = True
        self._let(patch, database, "_writer", lambda: self.opens, sqlite3.SQLITE_FULL)
        self._let(patch, Tables, "newest", lambda: self.reads, sqlite3.SQLITE_IOERR)
        self._let(patch, recording, "transaction", lambda: self.writes, sqlite3.SQLITE_FULL)

    def _let(
        self, patch: pytest.MonkeyPatch, owner: object, name: str, works: Callable[[], bool], code: int
    ) -> None:
        real = getattr(owner, name)

        def perhaps(*arguments: object) -> object:
            if works():
                return real(*arguments)
            error = sqlite3.OperationalError("no disk")
            error.sqlite_errorcode = code
            raise error

        patch.setattr(owner, name, perhaps)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(monkeypatch)


def stamps(directory: Path, source: str = OURS) -> list[int]:
    """The rows on disk, in seconds."""
    with Recording.open(directory / "r.hoptui") as reader:
        return [t // S for part in reader.rows(source) for t in part.times()]


def missing(directory: Path) -> int:
    with Recording.open(directory / "r.hoptui") as reader:
        return reader.missing


@pytest.mark.guarantee("disk-unread")
def test_rows_that_come_before_the_newest_could_be_read_are_kept(tmp_path: Path, disk: FaultyDisk) -> None:
    before = make(tmp_path)
    before.remember(KNOWN, NODE)
    before.append(("r",), [rows(1, 5, HOST)])
    before.close("r")
    history = make(tmp_path)
    history.remember(KNOWN, NODE)
    disk.reads = False
    history.append(("r",), [rows(3, 4, HOST)])
    history.append(("r",), [rows(7, 2, HOST)])
    history.flush()
    assert "input/output error" in history.problem_of("r")
    assert HOST not in history.flushed
    disk.reads = True
    history.flush()
    assert (history.problem, history.flushed[HOST]) == ("", 8 * S)
    assert stamps(tmp_path, HOST) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_what_earlier_writers_have_stored_is_known_once_the_recording_is_open(tmp_path: Path) -> None:
    before = make(tmp_path)
    before.remember(KNOWN, NODE)
    before.append(("r",), [rows(1, 5, OURS)])
    before.close("r")
    history = make(tmp_path)
    assert "r" not in history.stored
    history.remember(KNOWN, NODE)
    history.append(("r",), [rows(7, 2, OURS)])
    history.flush()
    assert (before.stored, history.stored) == ({"r": 0}, {"r": 5 * S})


def test_notes_of_a_run_that_this_daemon_does_not_know_stay_in_its_recording(tmp_path: Path) -> None:
    old, new = (
        RunNote(wall=wall, by="ana", text=text) for wall, text in ((1.0, "bad shard"), (2.0, "better"))
    )
    for notes in ((old,), (), (new,)):
        recordings = make(tmp_path)
        state = structs.replace(KNOWN.state, notes=notes)
        recordings.remember(structs.replace(KNOWN, state=state), NODE)
        assert recordings.flush()
        recordings.close(KNOWN.state.run)
    with Recording.open(Addresses(tmp_path, tmp_path).recording(KNOWN.state.run)) as recorded:
        known = known_run(recorded)
    assert known is not None
    assert known.state.notes == (old, new)


def test_a_source_that_cannot_be_read_holds_no_other_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = Tables.newest

    def damaged(self: Tables, source: str) -> int | None:
        if source == OURS:
            raise ValueError("odd")
        return newest(self, source)

    monkeypatch.setattr(Tables, "newest", damaged)
    history = make(tmp_path)
    history.remember(KNOWN, NODE)
    history.append(("r",), [rows(1, 5, OURS), rows(1, 3, "host")])
    history.flush()
    assert "is damaged: odd" in history.problem_of("r")
    assert stamps(tmp_path, "host") == [1, 2, 3]


@pytest.mark.guarantee("full-at-start-or-end")
def test_a_run_that_starts_while_the_disk_is_full_loses_nothing(tmp_path: Path, disk: FaultyDisk) -> None:
    disk.opens = False
    history = make(tmp_path)
    history.remember(KNOWN, NODE)
    history.append(("r",), [rows(1, 5, OURS)])
    history.event(("r",), factories.event(2, run="r"))
    history.command(factories.record("c", "r", stage="applied", seq=3))
    history.flush()
    assert "the disk is full" in history.problem_of("r")
    disk.opens = True
    history.flush()
    assert history.problem == ""
    with Recording.open(tmp_path / "r.hoptui") as reader:
        assert reader.recall(RUN) is not None
        assert [event.seq for event in reader.events()] == [2]
        assert [record.id for record in reader.commands()] == ["c"]
    assert stamps(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.guarantee("full-at-start-or-end")
def test_a_run_that_ends_while_the_disk_is_full_loses_nothing(tmp_path: Path) -> None:
    history = make(tmp_path)
    history.remember(KNOWN, NODE)
    history.append(("r",), [rows(1, 500, OURS)])
    with full_disk((tmp_path / "r.hoptui-wal").stat().st_size):
        history.finish("r")
        history.flush()
        assert "r.hoptui cannot" in history.problem_of("r")
    assert history.open == ("r",)
    history.flush()
    assert "r" not in history.open
    assert history.problem == ""
    assert stamps(tmp_path) == list(range(1, 501))


def test_a_run_that_comes_back_before_its_end_was_written_goes_on(tmp_path: Path, disk: FaultyDisk) -> None:
    history = make(tmp_path)
    history.remember(KNOWN, NODE)
    disk.writes = False
    history.append(("r",), [rows(1, 5, OURS)])
    history.finish("r")
    history.remember(KNOWN, NODE)
    history.append(("r",), [rows(6, 5, OURS)])
    disk.writes = True
    history.flush()
    assert history.open == ("r",)
    assert stamps(tmp_path) == list(range(1, 11))


def test_few_recordings_of_ended_runs_wait_for_the_disk(tmp_path: Path, disk: FaultyDisk) -> None:
    history = make(tmp_path)
    names = [f"r{i}" for i in range(MOST_ENDED + 3)]
    for name in names:
        history.remember(structs.replace(KNOWN, state=structs.replace(STATE, run=name)), NODE)
        history.append((name,), [rows(1, 4, f"run/{name}")])
    disk.writes = False
    for name in names:
        history.finish(name)
    assert history.open == tuple(names[3:])
    assert all(
        "4 rows, events, commands or stack samples are missing" in history.problem_of(name)
        for name in names[:3]
    )


@pytest.mark.guarantee("lost-counted")
def test_what_could_not_be_written_at_the_end_is_counted_in_the_file_later(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    history = make(tmp_path)
    history.remember(KNOWN, NODE)
    disk.writes = False
    history.append(("r",), [rows(1, 5, OURS)])
    history.close("r")
    assert "5 rows, events, commands or stack samples are missing in" in history.problem_of("r")
    assert history.problem == history.problem_of("r")
    disk.writes = True
    history.remember(KNOWN, NODE)
    assert missing(tmp_path) == 5
    assert "5 rows, events, commands or stack samples are missing in" in history.problem_of("r")
    history.close("r")
    later = make(tmp_path)
    assert [found.state.run for found in later.restore()] == ["r"]
    assert later.problem_of("r") == "5 rows, events, commands or stack samples are missing"
    assert later.problem == "", "history is being kept"
    later.remember(KNOWN, NODE)
    assert "5 rows, events, commands or stack samples are missing in" in later.problem_of("r")


@pytest.mark.guarantee("lost-counted")
def test_rows_beyond_the_bound_are_counted(tmp_path: Path, disk: FaultyDisk) -> None:
    disk.opens = False
    history = make(tmp_path)
    history.remember(KNOWN, NODE)
    many = 200_000
    for first in range(1, 4 * many, many):
        history.append(("r",), [rows(first, many, OURS)])
    disk.opens = True
    history.flush()
    found = stamps(tmp_path)
    assert found[-1] == 4 * many
    assert 0 < missing(tmp_path) == 4 * many - len(found)
    assert f"{missing(tmp_path)} rows, events, commands or stack samples are missing" in history.problem


@pytest.mark.guarantee("lost-counted")
def test_what_the_queue_refuses_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "JOBS", 2)
    archive = Archive(
        Addresses(tmp_path, tmp_path), RetentionLimits(), lambda *_: None, timings=Timings(flush_s=0.01)
    )  # its thread takes nothing yet
    archive.run(KNOWN, NODE)
    for second in range(1, 6):
        archive.rows(("r",), [rows(second, 1, OURS)])
    archive.command(factories.record("c", "r", seq=1))
    archive.finish("nobody")  # is not refused
    archive.start()
    try:
        until(lambda: not archive._jobs, what="an empty queue")
        archive.rows(("r",), [rows(6, 1, OURS)])
        until(lambda: (tmp_path / "r.hoptui").exists() and missing(tmp_path), what="the count")
        until(lambda: stamps(tmp_path) == [1, 6], what="the rows")
        assert missing(tmp_path) == 5
    finally:
        archive.close(5.0)


FAULTS = ("opens", "reads", "writes")
STEPS = st.lists(
    st.sampled_from(("rows", "rows", "flush", "finish", "start", "daemon", *FAULTS)), max_size=40
)


@pytest.mark.slow
@pytest.mark.guarantee("lost-counted")
@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_rows_on_disk_and_rows_counted_are_the_rows_that_came(
    steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("d", numbered=True)
    with pytest.MonkeyPatch.context() as patch:
        disk = FaultyDisk(patch)
        history = make(directory)
        history.remember(KNOWN, NODE)
        came, uncounted = 0, 0
        for step in steps:
            match step:
                case "rows":
                    if "r" in history.open:
                        history.append(("r",), [part(came)])
                        came += 3
                case "flush":
                    history.flush()
                case "finish":
                    history.finish("r")
                case "start":
                    history.remember(KNOWN, NODE)
                case "daemon":
                    history.close("r")
                    uncounted += history._unrecorded.get("r", (0, ""))[0]
                    history = make(directory)
                    history.remember(KNOWN, NODE)
                case _:
                    setattr(disk, step, not getattr(disk, step))
        disk.opens = disk.reads = disk.writes = True
        history.remember(KNOWN, NODE)
        history.close("r")
    found = stamps(directory)
    assert found == sorted(set(found))
    assert len(found) + missing(directory) + uncounted == came


def part(came: int) -> Columns:
    return pack(OURS, [((came + i + 1) * S, -1, {"x": 1.0}) for i in range(3)])


def test_stack_samples_wait_for_the_disk_as_rows_do(tmp_path: Path, disk: FaultyDisk) -> None:
    history = make(tmp_path)
    history.remember(KNOWN, NODE)
    disk.writes = False
    samples = pack_stacks({(StackFrame("train.py", "main", 1),): 7}, 0, 60_000_000_000)
    for minute in (1, 2):
        t = 60_000_000_000 * minute
        history.stacks("r", StackBatch(t, {0: [samples]}, 7, MINUTE_BYTES))
    history.flush()
    assert "r.hoptui cannot" in history.problem_of("r")
    disk.writes = True
    history.flush()
    assert history.problem == ""
    with Recording.open(tmp_path / "r.hoptui") as recording:
        assert len(recording.minutes()[0]) == 2


def test_stack_samples_that_are_lost_are_counted(tmp_path: Path, disk: FaultyDisk) -> None:
    history = make(tmp_path)
    history.remember(KNOWN, NODE)
    disk.writes = False
    samples = pack_stacks({(StackFrame("train.py", "main", 1),): 7}, 0, 60_000_000_000)
    history.stacks("r", StackBatch(60_000_000_000, {0: [samples]}, 7, MINUTE_BYTES))
    history.close("r")
    assert "7 rows, events, commands or stack samples are missing" in history.problem_of("r")


def test_states_wait_for_the_file_the_newest_of_each_kind(tmp_path: Path, disk: FaultyDisk) -> None:
    writer = RecordingWriter("r", tmp_path / "r.hoptui")
    disk.opens = False
    for t, body in ((60, b"older"), (61, b"newer")):
        writer.state(JOB, t * S, body)
        writer.state(PROCESSES, t * S, body + b" processes")
    assert not writer.flush(1 << 30)
    disk.opens = True
    assert writer.flush(1 << 30)
    writer.close()
    with Recording.open(tmp_path / "r.hoptui") as reader:
        kept = {kind: [one.body for one in reader.states(kind)] for kind in (JOB, PROCESSES)}
    assert kept == {JOB: [b"newer"], PROCESSES: [b"newer processes"]}
