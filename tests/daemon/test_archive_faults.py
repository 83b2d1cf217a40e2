"""Faults in the archive cost what they concern, are reported, and leave the rest of history."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.daemon import recordings
from hoptui.daemon.archive import Archive
from hoptui.daemon.recordings import History, RetentionLimits
from hoptui.domain.pacing import Timings
from hoptui.node.addresses import Addresses
from hoptui.recording import Recording, RecordingError, library
from hoptui.recording.library import KnownRun
from tests import factories
from tests.conftest import TestNode, until
from tests.daemon.test_recordings import KNOWN, NODE, SOURCE, STATE, rows
from tests.recording import hostile_files

Start = Callable[..., Archive]
TRAIN = """
import hoptui, time
run = hoptui.connect("toy")
for _ in run.iterations():
    run.log(loss=1.0)
    time.sleep(0.01)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Archive] = []

    def make(
        directory: Path = tmp_path, written: Callable[[str, dict[str, int]], None] = lambda *_: None
    ) -> Archive:
        timings = Timings(flush_s=0.01, first_tidy_s=3600.0)
        where = Addresses(directory, directory)
        archive = Archive(where, RetentionLimits(), lambda *_: None, written, timings=timings)
        archive.start()
        started.append(archive)
        return archive

    yield make
    for archive in started:
        archive.close(5.0)


def kept(directory: Path, known: KnownRun = KNOWN) -> None:
    """A recording of a run."""
    history = History(Addresses(directory, directory), RetentionLimits())
    history.remember(known, NODE)
    history.close(known.state.run)


def dangling(path: Path) -> None:
    path.symlink_to("/nonexistent")


def folder(path: Path) -> None:
    path.mkdir()


def garbage(path: Path) -> None:
    path.write_bytes(b"no database" * 500)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def odd_cell(path: Path) -> None:
    hostile_files.make(path, "meta_int")


@pytest.mark.parametrize("make", [dangling, folder, garbage, pipe, odd_cell])
@pytest.mark.guarantee("unreadable-recording")
def test_a_file_that_cannot_be_read_costs_no_other(
    make: Callable[[Path], None], start: Start, tmp_path: Path
) -> None:
    kept(tmp_path)
    make(tmp_path / "odd.hoptui")
    archive = start()
    (found,) = archive.restore(5.0)
    assert found.state == STATE
    archive.run(structs.replace(KNOWN, state=structs.replace(STATE, run="later")), NODE)
    until((tmp_path / "later.hoptui").exists, what="a recording of the next run")
    assert "odd.hoptui" in archive.problem


@pytest.mark.guarantee("unreadable-recording")
def test_an_unforeseen_error_in_one_file_costs_no_other(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(tmp_path)
    kept(tmp_path, structs.replace(KNOWN, state=structs.replace(STATE, run="other")))
    plain = recordings._found

    def found(recording: Recording) -> object:
        if recording.path.stem == "other":
            raise MemoryError
        return plain(recording)

    monkeypatch.setattr(recordings, "_found", found)
    archive = start()
    assert [each.state.run for each in archive.restore(5.0)] == ["r"]
    assert "other.hoptui cannot be read: MemoryError" in archive.problem


def test_what_is_read_in_time_is_restored_the_runs_that_may_live_first(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = structs.replace(KNOWN, state=structs.replace(STATE, run="live"))
    history = History(Addresses(tmp_path, tmp_path), RetentionLimits())
    history.remember(live, NODE)  # its daemon was killed: nobody closes it
    shutil.copytree(tmp_path, killed := tmp_path / "killed")
    history.close("live")
    for name in ("old", "new"):
        kept(killed, structs.replace(KNOWN, state=structs.replace(STATE, run=name)))
    killed.chmod(0o700)
    free, real = threading.Event(), recordings._found

    def slow(recording: Recording) -> recordings.RecordedRun | None:
        if recording.path.stem != "live":
            free.wait(20)
        return real(recording)

    monkeypatch.setattr(recordings, "_found", slow)
    archive = start(killed)
    until(lambda: archive.restore(0.0), what="the run that may live")
    assert [found.state.run for found in archive.restore(0.0)] == ["live"]
    free.set()
    assert [found.state.run for found in archive.restore(20.0)] == ["old", "new", "live"]


def test_a_left_aside_file_that_is_removed_is_no_problem(tmp_path: Path) -> None:
    history = History(Addresses(tmp_path, tmp_path), RetentionLimits())
    dangling(tmp_path / "odd.hoptui")
    list(history.restore())
    assert "odd.hoptui" in history.left_aside
    (tmp_path / "odd.hoptui").unlink()
    history.tidy(0.0)
    assert history.left_aside == ""


@pytest.mark.guarantee("failed-job")
def test_a_job_that_fails_is_reported(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("odd rows")

    archive = start()
    archive.run(KNOWN, NODE)
    monkeypatch.setattr(History, "append", broken)
    archive.rows(["r"], [rows(1, 3)])
    until(lambda: archive.problem, what="a problem")
    assert "ValueError: odd rows" in archive.problem


@pytest.mark.guarantee("archive-ends")
def test_a_thread_that_ends_is_reported_and_holds_nobody_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: History) -> None:
        raise SystemExit("enough")

    monkeypatch.setattr(History, "restore", broken)
    archive = start()
    assert archive.restore(5.0) == []
    until(lambda: archive.problem, what="a problem")
    assert "SystemExit: enough" in archive.problem
    for _ in range(10):
        archive.rows(["r"], [rows(1, 3)])
    assert not archive._jobs


@pytest.mark.guarantee("problem-of-run")
def test_the_problem_of_one_run_is_not_cleared_by_another(tmp_path: Path) -> None:
    history = History(Addresses(tmp_path, tmp_path), RetentionLimits())
    history.remember(KNOWN, NODE)
    history.append(("r",), [rows(1, 3)])

    def full(*, summarise: bool = True) -> bool:
        raise RecordingError("the disk is full")

    recording = history._open["r"].recording
    assert recording is not None
    recording.flush = full  # type: ignore[method-assign]
    history.flush()
    other = structs.replace(KNOWN, state=structs.replace(STATE, run="other"))
    history.remember(other, NODE)
    assert history.problem == history.problem_of("r") == "the disk is full"
    assert history.problem_of("other") == ""
    assert SOURCE not in history.flushed


@pytest.mark.guarantee("history-shown")
def test_viewers_and_the_command_line_show_it(node: TestNode) -> None:
    node.where.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    dangling(node.where.state / "odd.hoptui")
    node.start(TRAIN)
    viewer = node.viewer()
    run = viewer.run()
    until(lambda: (state := viewer.fetch().node) is not None and "odd.hoptui" in state.history, what="it")
    until((node.where.recording(run.run)).exists, what="the recording of the run")


@pytest.mark.guarantee("unwritable")
def test_what_no_file_can_hold_is_counted_and_shown(tmp_path: Path) -> None:
    history = History(Addresses(tmp_path, tmp_path), RetentionLimits())
    history.remember(KNOWN, NODE)
    history.event(("r",), factories.event(2, t=1 << 64))
    history.append(("r",), [rows(1, 3)])
    history.flush()
    assert history.flushed[SOURCE] == 3_000_000_000
    assert "1 rows, events, commands or stack samples are missing" in history.problem_of("r")
    assert history.problem == history.problem_of("r")


@pytest.mark.guarantee("acknowledged-written")
def test_an_urgent_command_is_reported_once_it_is_on_disk(start: Start, tmp_path: Path) -> None:
    archive = start()
    archive.run(KNOWN, NODE)
    seen: list[tuple[dict[str, int], list[str]]] = []

    def look(_: str, numbers: dict[str, int]) -> None:
        with Recording.open(tmp_path / "r.hoptui") as recording:
            seen.append((numbers, [record.id for record in recording.commands()]))

    archive._history._written = look
    for i in range(3):
        archive.command(factories.record(f"c{i}", "r", stage="rejected", seq=i + 1), urgent=i != 1)
    until(lambda: sum(len(numbers) for numbers, _ in seen) == 2, what="the report")
    assert {name for numbers, _ in seen for name in numbers} == {"c0", "c2"}
    assert all(set(numbers) <= set(on_disk) for numbers, on_disk in seen)


def test_a_slow_disk_gets_the_time_it_needs_at_the_end(start: Start) -> None:
    archive, never = start(), threading.Event()
    written: list[int] = []

    def write() -> None:
        never.wait(0.1)
        written.append(len(written))

    for _ in range(8):
        archive._put(write)
    archive.close(0.3)
    assert written == list(range(8))


def test_a_disk_that_hangs_does_not_keep_the_daemon(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    archive, free, reached = start(), threading.Event(), threading.Event()

    def hang() -> None:
        reached.set()
        free.wait(30.0)

    archive._put(hang)
    archive._put(lambda: None, now=True)
    assert reached.wait(10.0)
    try:
        archive.close(0.1)
        assert "1 jobs of the archive were not done" in caplog.text
    finally:
        free.set()


def test_what_is_to_be_kept_is_known_once_it_is_on_disk(tmp_path: Path, start: Start) -> None:
    archive = start()
    assert archive.restore(5.0) == []
    unknown = archive.keep("unknown")
    archive.run(KNOWN, NODE)
    written = archive.keep(STATE.run)
    until(written, what="the state of the run on disk")
    path = Addresses(tmp_path, tmp_path).recording(STATE.run)
    with Recording.open(path) as recording:
        assert library.known_run(recording) is not None
    assert not unknown()


def test_what_the_disk_refuses_is_never_called_kept(tmp_path: Path, start: Start) -> None:
    in_the_way = tmp_path / "later"
    in_the_way.touch()
    tried: list[str] = []
    archive = start(in_the_way, lambda run, _: tried.append(run))
    archive.run(KNOWN, NODE)
    refused = archive.keep(STATE.run)
    archive.confirm(STATE.run)
    until(lambda: tried, what="the write that is refused, and the one after it")
    assert archive.problem_of(STATE.run)
    in_the_way.unlink()
    in_the_way.mkdir(mode=0o700)
    until(archive.keep(STATE.run), what="a later write")
    assert not refused()
