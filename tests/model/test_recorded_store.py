"""The store over a recording: every question of the dashboard, as of several positions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import GpuProcess
from hoptui.model.recorded import pages
from hoptui.model.recorded.store import (
    RAW_ROWS,
    RecordedSeries,
    RecordedStore,
    older_commands,
    recorded_commands,
)
from hoptui.model.series import SeriesWindow, bucketed
from hoptui.model.store import Store
from hoptui.node.addresses import addresses
from hoptui.protocol.messages import CommandRecord
from hoptui.protocol.recorded_processes import MOST_PROCESSES, encode_processes
from hoptui.recording import Recording, RecordingError
from hoptui.recording.library import KnownRun
from hoptui.recording.timed_states import PROCESSES
from hoptui.tui.snapshot import AnyStore
from tests.model.recorded_run import (
    BOOT,
    COMMANDS,
    EVENTS,
    FIRST,
    ID,
    LENGTH_S,
    SECOND,
    STATE,
    WALL,
    at,
    gpu_rows,
    run_rows,
    write,
)

SOURCE = f"run/{ID}"
GPU_SOURCE = "gpu/GPU-0"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("recorded") / f"{ID}.hoptui")


@pytest.fixture
def store(path: Path) -> Iterator[RecordedStore]:
    with Recording.open(path) as recording:
        yield RecordedStore(recording)


def known(rows: Columns, name: str, t0: int, t1: int) -> tuple[list[int], list[float]]:
    """The values of a metric between two stamps, by looking at each row."""
    found = [(t, row[name]) for t, _, row in rows.rows() if t0 <= t <= t1 and name in row]
    return [t for t, _ in found], [value for _, value in found]


@pytest.mark.parametrize(("gap_s", "claimed"), [(90 * 86400, None), (1 << 32, None), (1 << 32, 1 << 52)])
def test_a_long_gap_without_rows_is_looked_through_soon(
    gap_s: int, claimed: int | None, tmp_path: Path
) -> None:
    """A run that went on after months, made-up stamps, and so many made-up rows that pages are short."""
    rows = [pack(SOURCE, [(at(i + late), i, {"x": 1.0}) for i in range(9)]) for late in (0, gap_s)]
    file = write(tmp_path / f"{ID}.hoptui", rows=rows, commands=(), events=())
    if claimed is not None:
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("UPDATE arrivals SET rows = ?", (claimed,))
    with Recording.open(file) as recording:
        store = RecordedStore(recording)
        began = time.thread_time()
        for position in (at(gap_s // 2), at(gap_s + 9)):
            store.seek(position)
            store.latest(SOURCE)
            series = RecordedSeries(store, SOURCE, "x")
            series.window(*store.span, 20)
            assert (series.last, series.last_t) != (1.0, 0) or claimed is not None
        assert time.thread_time() - began < 2.0


def test_both_stores_answer_the_same_questions(store: RecordedStore) -> None:
    """mypy is the test."""
    stores: tuple[AnyStore, AnyStore] = (store, Store())
    assert all(callable(one.now) for one in stores)


def test_the_processes_of_a_moment_are_those_recorded_last_and_unknown_is_not_none(tmp_path: Path) -> None:
    path = write(tmp_path / f"{ID}.hoptui")
    there = GpuProcess(gpu="GPU-0", pid=7, memory_used_bytes=1 << 30)
    with Recording.create(path, boot=BOOT) as recording:
        for seconds, found in ((20.0, [there]), (34.0, [there, there]), (50.0, [])):
            recording.state(PROCESSES, at(seconds), encode_processes(found))
        recording.state(PROCESSES, at(300.0), b"damaged")
    with Recording.open(path) as recording:
        store = RecordedStore(recording)
        shown = {}
        for seconds in (19.0, 20.0, 33.0, 34.0, 52.0, 110.1, 300.0, 40.0):
            store.seek(at(seconds))
            shown[seconds] = (len(store.processes), store.processes_age_s)
    assert shown == {
        19.0: (0, None),
        20.0: (1, 0.0),
        33.0: (1, 13.0),
        34.0: (2, 0.0),
        40.0: (2, 6.0),
        52.0: (0, 2.0),
        110.1: (0, None),
        300.0: (0, None),
    }


def test_how_many_processes_were_not_recorded_is_known(tmp_path: Path) -> None:
    path = write(tmp_path / f"{ID}.hoptui")
    many = [GpuProcess(gpu="GPU-0", pid=pid + 1) for pid in range(MOST_PROCESSES + 3)]
    with Recording.create(path, boot=BOOT) as recording:
        recording.state(PROCESSES, at(20.0), encode_processes(many))
    with Recording.open(path) as recording:
        store = RecordedStore(recording)
        shown = {}
        for seconds in (19.0, 21.0):
            store.seek(at(seconds))
            shown[seconds] = (len(store.processes), store.processes_left_out)
    assert shown == {19.0: (0, 0), 21.0: (MOST_PROCESSES, 3)}


def test_it_begins_at_the_first_stamp_and_keeps_within_the_span(store: RecordedStore) -> None:
    assert store.span == (FIRST, at(LENGTH_S))
    assert store.now() == FIRST
    for asked, reached in ((0, FIRST), (at(10), at(10)), (at(9999), at(LENGTH_S))):
        store.seek(asked)
        assert store.now() == reached


@pytest.mark.parametrize("seconds", [0.5, 42.0, 300.0, 599.6, 600.0, 3.0])
def test_values_are_those_of_the_newest_row(store: RecordedStore, seconds: float) -> None:
    store.seek(at(seconds))
    newest = min(int(seconds - 0.5), 599)
    series = store.series(SOURCE, "env_steps_per_s")
    assert series is not None
    assert (series.last, series.last_t, series.last_step) == (1000.0 + newest, at(newest + 0.5), newest)
    assert store.latest(SOURCE)["episode_return"] == newest**0.5
    assert store.latest(SOURCE)["evaluation_return"] == newest // 60 * 60, (
        "also what is not in the newest row"
    )


def test_before_the_first_row_nothing_is_known(store: RecordedStore) -> None:
    store.seek(at(0.2))
    assert store.names(SOURCE) == []
    assert store.latest(SOURCE) == {}
    assert store.series(SOURCE, "iteration_s") is None


def test_a_source_that_is_not_recorded_is_unknown(store: RecordedStore) -> None:
    store.seek(at(100))
    assert store.series("gpu/other", "busy") is None
    assert (store.names("gpu/other"), store.latest("gpu/other")) == ([], {})


def test_names_come_in_the_order_of_their_first_appearance(store: RecordedStore) -> None:
    store.seek(at(100))
    assert store.names(SOURCE)[:4] == ["env_steps_per_s", "iteration_s", "episode_return", "phase/rollout"]


def test_a_metric_that_its_source_goes_on_without_is_forgotten(store: RecordedStore) -> None:
    for seconds, there in ((55.0, True), (100.0, False), (40.0, True)):
        store.seek(at(seconds))
        assert ("warm_up" in store.latest(SOURCE)) is there
        series = store.series(SOURCE, "warm_up")
        assert series is not None
        assert (series.last == 1.0) is there


def test_short_windows_are_those_of_the_rows(store: RecordedStore) -> None:
    store.seek(at(123.4))
    series = store.series(SOURCE, "episode_return")
    assert series is not None
    t0, t1 = at(100.2), at(200)
    times, values = known(run_rows(), "episode_return", t0, at(123.4))
    assert series.window(t0, t1, 1000) == bucketed(times, values, values, t0, t1, 1000)
    assert series.window(at(200), at(300), 10) == SeriesWindow([], [], []), "the future is not shown"
    assert series.fine_from(1) == at(0.5), "rows are there from the first on"
    assert series.window(t1, t0, 10) == series.window(t0, t1, 0) == SeriesWindow([], [], [])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, LENGTH_S * 10),
    st.integers(2, 40),
    st.integers(1, 300),
    st.sampled_from([1, 37, 10**8, 10**9 + 7]),
)
@example(2000, 2, 1, 1)  # nothing but the first stamp
def test_long_windows_lose_no_extreme(path: Path, tenths: int, points: int, first: int, odd: int) -> None:
    """Buckets come from tiles that know more than the position; the last one is cut there."""
    step = LENGTH_S * SECOND // points // odd * odd
    t0 = (FIRST // step + first % 2) * step
    t1 = t0 + points * step - 1
    with Recording.open(path) as recording:
        store = RecordedStore(recording)
        store.seek(at(tenths / 10))
        series = store.series(GPU_SOURCE, "busy")
        assert series is not None
        times, values = known(gpu_rows(), "busy", t0, min(t1, store.now()))
        assert series.window(t0, t1, points) == bucketed(times, values, values, t0, t1, points)
        misaligned = series.window(t0 + 1, t1, points)
        later = [v for t, v in zip(times, values, strict=True) if t > t0]
        assert max(misaligned.high, default=None) == max(later, default=None)


def test_tiles_are_really_used() -> None:
    assert LENGTH_S * 10 > RAW_ROWS, "the windows above are longer than what is read row by row"


def test_a_hole_is_a_gap(store: RecordedStore) -> None:
    store.seek(at(500))
    series = store.series(SOURCE, "env_steps_per_s")
    assert series is not None
    found = series.window(at(400), at(500) - 1, 100)
    gaps = [t for t, low in zip(found.t, found.low, strict=True) if low != low]
    assert len(gaps) == 1
    assert at(450) < gaps[0] < at(480)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, LENGTH_S * 10), min_size=1, max_size=8))
def test_answers_do_not_depend_on_the_way_there(path: Path, tenths: list[int]) -> None:
    with Recording.open(path) as recording:
        walked, jumped = RecordedStore(recording), RecordedStore(recording)
        for one in tenths:
            walked.seek(at(one / 10))
            for source in (SOURCE, GPU_SOURCE, "host"):
                walked.latest(source)
        jumped.seek(at(tenths[-1] / 10))
        for source in (SOURCE, GPU_SOURCE, "host"):
            assert walked.latest(source) == jumped.latest(source)
            assert walked.names(source) == jumped.names(source)
        assert walked.vital(ID) == jumped.vital(ID)
        assert walked.commands == jumped.commands
        assert walked.run(ID) == jumped.run(ID)


def test_the_version_changes_with_the_newest_value(store: RecordedStore) -> None:
    store.seek(at(100))
    series = store.series(SOURCE, "iteration_s")
    assert series is not None
    before = series.version
    store.seek(at(100.3))
    assert series.version == before, "no new row"
    store.seek(at(101))
    assert series.version != before


def test_vital_follows_the_rows(store: RecordedStore) -> None:
    store.seek(at(300))
    vital = store.vital(ID)
    assert vital is not None
    assert (vital.state, vital.step, vital.last_t) == ("live", 300, at(299.5))
    assert vital.iteration_s == pytest.approx(1.003)
    assert vital.pulse_age_s is None
    assert store.vital("another") is None


def test_a_paused_run_is_paused_until_it_goes_on(store: RecordedStore) -> None:
    states = []
    for seconds in (449, 451, 479, 480.6, 500):
        store.seek(at(seconds))
        vital = store.vital(ID)
        assert vital is not None
        states.append(vital.state)
    assert states == ["live", "paused", "paused", "live", "live"]


def test_a_pause_that_ran_out_is_over_with_the_next_row(tmp_path: Path) -> None:
    with Recording.open(write(tmp_path / "r.hoptui", commands=COMMANDS[:-1])) as recording:
        store = RecordedStore(recording)
        states = []
        for seconds in (470, 481):
            store.seek(at(seconds))
            vital = store.vital(ID)
            assert vital is not None
            states.append(vital.state)
    assert states == ["paused", "live"]


def test_a_run_without_rows_for_long_is_busy(tmp_path: Path) -> None:
    with Recording.open(write(tmp_path / "r.hoptui", commands=COMMANDS[:-2])) as recording:
        store = RecordedStore(recording)
        store.seek(at(470))
        vital = store.vital(ID)
    assert vital is not None
    assert vital.state == "busy"
    assert vital.progress_age_s == pytest.approx(19.5)


def test_the_end_is_shown_as_it_ended(store: RecordedStore) -> None:
    store.seek(at(LENGTH_S))
    vital, run = store.vital(ID), store.run(ID)
    assert vital is not None
    assert run is not None
    assert (vital.state, run.exit_reason, run.exited_wall) == ("exited", "finished", WALL + LENGTH_S)
    assert store.vitals == {ID: vital}


def test_events_commands_and_knobs_are_those_of_then(store: RecordedStore) -> None:
    store.seek(at(305))
    assert [e.t for e in store.events] == [at(0), at(100), at(200.3)]
    assert {c.id: c.stage for c in store.commands.values()} == {"lr": "applied", "ga": "scheduled"}
    run = store.run(ID)
    assert run is not None
    assert [k.value for k in run.knobs] == [3e-4, 4, 10]
    store.seek(at(100))
    run = store.run(ID)
    assert run is not None
    assert [k.value for k in run.knobs] == [1e-3, 4, 10]
    assert store.commands == {}


def test_the_node_is_the_remembered_one_with_this_run(store: RecordedStore) -> None:
    store.seek(at(300))
    node = store.node
    assert node is not None
    assert (node.host, node.cpus, node.viewers, node.hz) == ("gpu07", 16, 0, 0.0)
    assert (node.runs[0].run, len(node.runs)) == (ID, 1)
    assert (store.now() + node.wall_offset_ns) / SECOND == pytest.approx(WALL + 300)


def test_nothing_is_read_that_nobody_asks_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    rows = Recording.rows

    def counted(self: Recording, source: str, t0: int = 0, t1: int = 0) -> Iterator[Columns]:
        read.append(source)
        return rows(self, source, t0, t1)

    monkeypatch.setattr(Recording, "rows", counted)
    with Recording.open(path) as recording:
        store = RecordedStore(recording)
        store.seek(at(300))
        assert store.events
        assert store.commands
        assert set(read) <= {SOURCE}, "the iteration alone decides how commands stand"
        store.latest("host")
        count = len(read)
        store.seek(at(301))
        store.latest("host")
        assert len(read) == count, "the page was there"
        assert GPU_SOURCE not in read


def test_the_caches_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, tile = 60_000, 4_000
    monkeypatch.setattr(pages, "MOST_PAGE_BYTES", page)
    monkeypatch.setattr(pages, "MOST_TILE_BYTES", tile)
    with Recording.open(path) as recording:
        store = RecordedStore(recording)
        for seconds in range(5, LENGTH_S, 15):
            store.seek(at(seconds))
            for name in store.names(GPU_SOURCE):
                series = store.series(GPU_SOURCE, name)
                assert series is not None
                assert series.window(FIRST // SECOND * SECOND, at(LENGTH_S) - 1, LENGTH_S).t
            assert store.pages.cached_bytes <= page + tile + 40_000, "at most the last one more"


def test_a_read_that_fails_is_told_and_counts_as_unknown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Recording, source: str, *arguments: int) -> Iterator[Columns]:
        raise RecordingError(f"{self.path} is damaged")

    monkeypatch.setattr(Recording, "rows", broken)
    monkeypatch.setattr(Recording, "buckets", broken)
    with Recording.open(path) as recording:
        store = RecordedStore(recording)
        store.seek(at(300))
        assert store.latest(SOURCE) == {}
        assert store.pages.direct(SOURCE, "iteration_s", at(0), at(9), 3).t.tolist() == []
        vital = store.vital(ID)
    assert vital is not None
    assert vital.last_t == 0
    assert store.problem == f"{path} is damaged"


def test_an_iteration_is_found(store: RecordedStore) -> None:
    assert store.pages.first_at(SOURCE, 123) == at(123.5)
    assert store.pages.first_at(SOURCE, 460) == at(480.5), "it was paused"
    assert store.pages.first_at(SOURCE, 600) is None


def test_an_iteration_is_found_in_many_rows(tmp_path: Path) -> None:
    many = pack(SOURCE, [(at(i / 50), i, {"iteration_s": 0.02}) for i in range(20_000)])
    with Recording.open(
        write(tmp_path / "r.hoptui", rows=(many,), events=EVENTS[:1], commands=())
    ) as recording:
        found = [
            RecordedStore(recording).pages.first_at(SOURCE, step) for step in (0, 1, 12_345, 19_999, 20_000)
        ]
    assert found == [at(0), at(1 / 50), at(12_345 / 50), at(19_999 / 50), None]


def test_where_rows_are_gone_their_means_stand_in_for_them(tmp_path: Path) -> None:
    """A long run at its limit of disk: the oldest rows are thinned out, and the pyramid stays."""
    path, count, every = tmp_path / "r.hoptui", 60_000, SECOND // 5
    with Recording.create(path, boot=BOOT) as recording:
        recording.remember("run", msgspec.json.encode(KnownRun(state=STATE, nonce="n", process_started=1)))
        for start in range(0, count, 2000):
            rows = [
                (FIRST + i * every, i, {"x": float(i), "odd": i % 64 * 1.5})
                for i in range(start, start + 2000)
            ]
            recording.append(pack(SOURCE, rows))
            recording.flush()
        for _ in range(40):
            recording.flush()
        recording.thin(recording.used_bytes // 2)
        gone = recording.thinned_before
    assert gone is not None
    assert gone > FIRST + 1000 * every
    with Recording.open(path) as recording:
        store = RecordedStore(recording)
        for i in (500, 1300, count - 10):
            store.seek(FIRST + i * every)
            found, series = store.latest(SOURCE), store.series(SOURCE, "x")
            assert series is not None
            assert found["x"] == pytest.approx(i, abs=32)
            assert store.now() - series.last_t < SECOND, "a value is there at any time"
            assert len(series.window(store.now() - 20 * SECOND, store.now(), 1000).t) > 50
            vital = store.vital(ID)
            assert vital is not None
            assert vital.step == pytest.approx(i, abs=32)
            assert vital.state == "live"
        assert store.pages.first_at(SOURCE, 700) == pytest.approx(FIRST + 700 * every, abs=64 * every)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of its own."""
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(tmp_path / "state"))
    addresses()


def write_commands(run: str, count: int) -> Path:
    path = addresses().recording(run)
    with Recording.create(path) as recording:
        for i in range(count):
            recording.command(
                CommandRecord(
                    id=f"{run}{i}", run=run, epoch=1, verb="checkpoint", t=i + 1, wall=1000.0 + i, seq=i + 1
                )
            )
        recording.flush()
    return path


def test_the_newest_of_those_that_are_not_known_come_first(tmp_path: Path) -> None:
    write_commands("a", 10)
    found, problem = older_commands(["a"], {"a8", "a9"}, 3)
    assert ([record.id for record in found], problem) == (["a5", "a6", "a7"], "")
    found, _ = older_commands(["a"], {f"a{i}" for i in range(3, 10)}, 5)
    assert [record.id for record in found] == ["a0", "a1", "a2"]
    assert older_commands(["a"], {f"a{i}" for i in range(10)}, 5) == ([], "")


def test_of_several_runs_they_are_told_in_the_order_of_time() -> None:
    write_commands("a", 3)
    write_commands("b", 3)
    found, _ = older_commands(["a", "b", "gone"], set(), 4)
    assert [record.wall for record in found] == [1001.0, 1001.0, 1002.0, 1002.0]


def test_a_recording_that_cannot_be_read_is_told_and_the_others_count() -> None:
    write_commands("a", 1)
    addresses().recording("b").write_bytes(b"not a database at all" * 100)
    found, problem = older_commands(["b", "a"], set(), 9)
    assert [record.id for record in found] == ["a0"]
    assert str(addresses().recording("b")) in problem
    assert older_commands(["a"], set(), 9)[1] == ""


def test_without_directories_there_is_nothing_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "never"))
    found, problem = older_commands(["a"], set(), 9)
    assert found == []
    assert "never" in problem


def test_they_are_read_oldest_first() -> None:
    assert [record.id for record in recorded_commands(write_commands("a", 3))] == ["a0", "a1", "a2"]


def test_what_is_missing_in_a_recording_is_shown(tmp_path: Path) -> None:
    path = write(tmp_path / f"{ID}.hoptui")
    with Recording.create(path) as writer:
        writer.lose(7)
        writer.event(EVENTS[0])
    with Recording.open(path) as recording:
        assert recording.missing == 7
        shown = RecordedStore(recording).run(ID)
        assert shown is not None
        assert shown.recording == "7 rows, events, commands or stack samples are missing"
