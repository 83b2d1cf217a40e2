"""Recordings as the daemon keeps them: answers from memory or disk, limits, what a new daemon reads."""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.daemon.archive import REFUSED_SHOWN_S, Archive
from hoptui.daemon.recordings import History, RetentionLimits, limits, refused
from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import GpuInfo
from hoptui.domain.pacing import Timings
from hoptui.node.addresses import AddressError, Addresses
from hoptui.protocol.messages import Buckets, CommandRecord, Event, NodeState, Query, RunState
from hoptui.recording import Recording, RecordingError
from hoptui.recording.ingest import this_boot
from hoptui.recording.library import RUN, KnownRun, decode_node
from tests.conftest import until

S = 1_000_000_000
NODE = NodeState(host="gpu07", pid=1, version="0", started_wall=0.0, wall_offset_ns=0)
STATE = RunState(run="r", name="toy", epoch=1, pid=9, started_wall=0.0, gpus=("a",))
KNOWN = KnownRun(state=STATE, nonce="n", process_started=7)
SOURCE = "gpu/a"


def rows(first: int, count: int, source: str = SOURCE, **values: float) -> Columns:
    """One a second."""
    return pack(source, [((first + i) * S, -1, values or {"x": float(first + i)}) for i in range(count)])


def make(directory: Path, limits: RetentionLimits | None = None) -> History:
    return History(Addresses(directory, directory), limits or RetentionLimits())


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = make(tmp_path)
    made.remember(KNOWN, NODE)
    yield made
    for run in made.open:
        made.close(run)


def query(t0: int = 0, t1: int = 0, source: str = SOURCE, run: str = "", points: int = 512) -> Query:
    return Query(id=1, source=source, run=run, t0=t0 * S, t1=t1 * S, points=points)


def seconds(found: Buckets) -> list[int]:
    return [t // S for t in array("q", found.t)]


def test_a_new_recording_says_at_once_whose_it_is(history: History, tmp_path: Path) -> None:
    """Its daemon may be killed before the first flush."""
    with Recording.open(tmp_path / "r.hoptui") as recording:
        assert recording.recall(RUN) is not None


def test_what_is_in_memory_is_answered_from_memory(history: History) -> None:
    live = [rows(100, 50)]
    assert seconds(history.answer(query(100, 120), live)) == list(range(100, 121))


def test_what_reaches_further_back_is_answered_from_the_recording(history: History) -> None:
    history.append(("r",), [rows(1, 149)])
    live = [rows(100, 50)]  # the ring has let go of the beginning
    assert seconds(history.answer(query(50, 60), live)) == list(range(50, 61))
    assert seconds(history.answer(query(), live)) == list(range(1, 150))
    assert seconds(history.answer(query(run="r"), live)) == list(range(1, 150))


def test_memory_that_is_older_than_the_recording_counts(history: History) -> None:
    """The node was watched before the run began."""
    history.append(("r",), [rows(140, 10)])
    assert seconds(history.answer(query(90), [rows(100, 50)])) == list(range(100, 150))


def test_a_source_that_nobody_has_is_empty(history: History) -> None:
    found = history.answer(query(source="gpu/none", run="r"), [])
    assert (found.id, len(found.t)) == (1, 0)
    assert len(history.answer(query(run="../../etc/passwd"), []).t) == 0


def test_a_run_that_is_over_is_read_from_its_file(history: History, tmp_path: Path) -> None:
    history.append(("r",), [rows(1, 20)])
    history.close("r")
    assert history.open == ()
    assert seconds(history.answer(query(run="r"), [])) == list(range(1, 21))


def test_a_new_daemon_is_told_what_the_last_one_knew(history: History, tmp_path: Path) -> None:
    history.append(
        ("r",),
        [
            pack("run/r", [(5 * S, 3, {"loss": 0.5})]),
            rows(1, 5, "derived/r", energy_j=1234.5, power_w=1.0),
            rows(1, 5, energy_j=999.0),
        ],
    )
    history.close("r")
    [found] = make(tmp_path).restore()
    assert (found.state, found.nonce, found.process_started) == (STATE, "n", 7)
    assert (found.energy_j, found.counters) == (1234.5, {"a": 999.0})
    assert found.newest is not None
    assert found.newest.last() == {"loss": 0.5}
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["clock.json", "r.hoptui"], "a look leaves nothing of SQLite"


def test_a_run_of_today_is_known_where_the_clock_jumps_ahead(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.append(("r",), [rows(1, 5)])
    history.close("r")
    assert len(list(make(tmp_path).restore())) == 1
    later = time.time() + 5 * 86400
    monkeypatch.setattr("hoptui.daemon.recordings.time.time", lambda: later)
    assert len(list(make(tmp_path).restore())) == 1


def test_a_damaged_recording_is_left_aside(tmp_path: Path) -> None:
    (tmp_path / "x.hoptui").write_bytes(b"no database at all" * 100)
    assert list(make(tmp_path).restore()) == []


def test_the_node_is_remembered_as_it_was_last(history: History, tmp_path: Path) -> None:
    gpus = (GpuInfo(uuid="a", index=0, name="H100"),)
    history.node(("r", "nobody"), structs.replace(NODE, gpus=gpus))
    history.close("r")
    with Recording.open(tmp_path / "r.hoptui", boot=this_boot()) as recording:
        raw = recording.recall("node")
    assert raw is not None
    assert decode_node(raw).gpus == gpus


def test_a_recording_at_its_limit_loses_its_oldest_rows_and_keeps_their_summaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []
    thin = Recording.thin
    monkeypatch.setattr(Recording, "thin", lambda self, most: freed.append(thin(self, most)))
    limit = 500_000
    history = make(tmp_path, RetentionLimits(run_bytes=limit))
    history.remember(KNOWN, NODE)
    for start in range(1, 120_001, 4000):
        part = [
            ((start + i) * S, -1, {"x": math.sin(start + i) * (start + i), "y": math.cos(7 * (start + i))})
            for i in range(4000)
        ]
        history.append(("r",), [pack(SOURCE, part)])
        history.flush()
        while history.summarise():
            pass
    history.close("r")
    assert all(freed), "what the file holds counts, not the pages that wait in it to be used again"
    with Recording.open(tmp_path / "r.hoptui") as recording:
        assert recording.used_bytes < 1.6 * limit
        assert recording.thinned_before is not None
        found = recording.buckets(SOURCE, ("x",), points=100)
    assert len(found.t) // 8 > 50
    assert history.problem == ""


def test_only_what_is_not_open_is_tidied_away(history: History, tmp_path: Path) -> None:
    history.append(("r",), [rows(1, 5)])
    history.flush()
    old = tmp_path / "old.hoptui"
    old.write_bytes(bytes(1000))
    tidy = make(tmp_path, RetentionLimits(keep_bytes=1, keep_s=1e9))
    tidy._open = history._open
    tidy.tidy(now=old.stat().st_mtime + 1)
    assert [path.name for path in tmp_path.glob("*.hoptui")] == ["r.hoptui"]


def test_an_archive_removes_nothing_before_live_runs_can_have_returned(tmp_path: Path) -> None:
    with_space_for_nothing = RetentionLimits(keep_bytes=1, keep_s=1e9)
    live = tmp_path / "live.hoptui"
    live.write_bytes(bytes(1000))
    answered: list[object] = []
    archive = Archive(
        Addresses(tmp_path, tmp_path), with_space_for_nothing, lambda _, answer: answered.append(answer)
    )
    archive.start()
    try:
        archive.restore(10.0)
        for turn in range(1, 4):  # of its thread
            archive.query(b"", query(), [rows(1, 5)])
            until(lambda turn=turn: len(answered) == turn, what="an answer")  # type: ignore[misc]
        assert live.exists()
    finally:
        archive.close(10.0)


def test_recordings_take_turns_to_summarise_rows(tmp_path: Path) -> None:
    history = make(tmp_path)
    runs = [f"r{number}" for number in range(3)]
    for run in runs:
        history.remember(structs.replace(KNOWN, state=structs.replace(STATE, run=run)), NODE)
    for turn in range(64):
        history.append(runs, [rows(1 + 512 * turn, 512)])
        history.flush()

    def levels() -> list[int]:
        return [
            writer.recording._db.execute("SELECT count(*) FROM blocks WHERE level = 1").fetchone()[0]
            for writer in history._open.values()
            if writer.recording is not None
        ]

    found = [levels()]
    while history.summarise():
        found.append(levels())
    for run in runs:
        history.close(run)
    assert found == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2]]


def test_jobs_come_between_the_recordings_of_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many runs a flush takes seconds, and a command must not wait for all of them."""
    done: list[str] = []
    flushing, put = threading.Event(), threading.Event()
    flush = History.flush

    def slow(history: History, *runs: str) -> None:
        done.extend(runs)
        flushing.set()
        assert put.wait(10.0)
        flush(history, *runs)

    archive = Archive(
        Addresses(tmp_path, tmp_path), RetentionLimits(), lambda *_: None, timings=Timings(flush_s=0.05)
    )
    archive.start()
    archive.restore(10.0)
    for run in ("a", "b"):
        archive.run(structs.replace(KNOWN, state=structs.replace(STATE, run=run)), NODE)
    until(lambda: len(archive._history.open) == 2, what="both recordings")
    monkeypatch.setattr(History, "flush", slow)
    monkeypatch.setattr(History, "event", lambda *_: done.append("event"))
    assert flushing.wait(10.0)
    archive.event(Event(seq=1, t=S, wall=0.0, kind="note", text="now", run="a"), ())
    put.set()
    until(lambda: len(done) > 3, what="the next recording")
    archive.close(10.0)
    assert done.index("event") == 1


def test_rows_that_wait_for_a_slow_disk_are_bounded_by_their_size_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hoptui.daemon.archive.JOBS_BYTES", 100_000)
    archive = Archive(Addresses(tmp_path, tmp_path), RetentionLimits(), lambda *_: None)  # no thread: hangs
    wide = pack(SOURCE, [(S * i, -1, {f"m{name}": 0.0 for name in range(40)}) for i in range(1, 101)])
    for _ in range(10):
        archive.rows(["r"], [wide])
    assert len(archive._jobs) == 100_000 // wide.size_bytes
    assert archive._missing == {"r": 100 * (10 - len(archive._jobs))}
    assert "the disk did not keep up" in archive.problem
    while archive._jobs:
        archive._jobs.popleft()()
    archive.rows(["r"], [wide])
    assert len(archive._jobs) == 2  # the count of what was refused, and the rows


@pytest.mark.guarantee("change-written")
def test_a_change_that_took_effect_is_on_the_disk_at_once(tmp_path: Path) -> None:
    archive = Archive(
        Addresses(tmp_path, tmp_path), RetentionLimits(), lambda *_: None, timings=Timings(flush_s=3600.0)
    )
    archive.start()
    sent = CommandRecord(id="c", run="r", epoch=1, verb="set", knob="n", seq=1)
    try:
        archive.restore(10.0)
        archive.run(KNOWN, NODE)
        archive.command(sent)
        archive.command(structs.replace(sent, stage="applied", seq=2), urgent=True)

        def stages() -> list[str]:
            try:
                with Recording.open(tmp_path / "r.hoptui") as recording:
                    return [record.stage for record in recording.commands()]
            except RecordingError:  # it is not there, or is just being made
                return []

        until(lambda: stages() == ["applied"], what="the command on the disk")
    finally:
        archive.close(10.0)


def test_jobs_that_were_refused_are_told_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr("hoptui.daemon.archive.JOBS", 1)
    archive = Archive(
        Addresses(tmp_path, tmp_path), RetentionLimits(), lambda *_: None
    )  # its thread takes nothing
    archive.keep("a")
    assert archive.problem == ""
    archive.keep("b")
    archive.keep("c")
    assert archive.problem == "the disk did not keep up: 2 jobs were refused, the last less than a minute ago"
    now += REFUSED_SHOWN_S
    assert archive.problem == ""


def test_a_recording_that_could_not_be_made_is_made_when_it_can_be(tmp_path: Path) -> None:
    in_the_way = tmp_path / "later"
    in_the_way.touch()
    history = make(in_the_way)
    history.remember(KNOWN, NODE)
    history.flush()
    assert "later" in history.problem
    in_the_way.unlink()
    in_the_way.mkdir(mode=0o755)
    history.flush()
    assert history.problem == f"{in_the_way} is open to others (mode 755): chmod 700 it"
    assert not list(in_the_way.iterdir())
    in_the_way.chmod(0o700)
    history.flush()
    assert history.problem == ""
    history.append(("r",), [rows(1, 5)])
    history.flush()
    with Recording.open(tmp_path / "later" / "r.hoptui") as recording:
        assert recording.last_t(SOURCE) == 5 * S


@pytest.mark.guarantee("private-recordings")
def test_in_a_directory_that_others_may_write_nothing_is_read_or_removed(
    history: History, tmp_path: Path
) -> None:
    history.close("r")
    tmp_path.chmod(0o777)
    later = make(tmp_path, RetentionLimits(keep_s=0.0))
    with pytest.raises(AddressError, match="is open to others"):
        list(later.restore())
    later.tidy(time.time() + 1)
    assert (tmp_path / "r.hoptui").exists()
    tmp_path.chmod(0o700)
    assert len(list(later.restore())) == 1
    later.tidy(time.time() + 1)
    assert not (tmp_path / "r.hoptui").exists()


def test_the_usual() -> None:
    assert limits({}) == RetentionLimits(10 * 10**9, 30 * 86400.0, 10**9)


def test_what_is_asked_for() -> None:
    asked = {"HOPTUI_KEEP_GB": "0.5", "HOPTUI_KEEP_DAYS": "7", "HOPTUI_RUN_GB": " 2 "}
    assert limits(asked) == RetentionLimits(5 * 10**8, 7 * 86400.0, 2 * 10**9)


@pytest.mark.parametrize("raw", ["many", "-1", "0", "nan", "inf"])
def test_nonsense_is_told_and_not_used(raw: str) -> None:
    assert limits({"HOPTUI_RUN_GB": raw}) == RetentionLimits()
    (problem,) = refused({"HOPTUI_RUN_GB": raw})
    assert f"HOPTUI_RUN_GB={raw!r}" in problem
    assert "1 is used" in problem


def test_sense_is_not_complained_of() -> None:
    assert refused({"HOPTUI_RUN_GB": "2", "HOPTUI_KEEP_DAYS": ""}) == []


def test_a_name_that_is_too_long_for_a_file_has_no_history(history: History) -> None:
    assert seconds(history.answer(query(run="x" * 300), [])) == []
