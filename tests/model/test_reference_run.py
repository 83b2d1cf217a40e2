"""A recording to compare with, also while it is written; series moved in time or drawn by iteration."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.domain.columns import pack
from hoptui.model import reference_run
from hoptui.model.reference_run import (
    AGAIN_S,
    MILLI,
    CannotCompare,
    Companion,
    Course,
    IterationIndex,
    Shifted,
    Stepped,
    comparable,
)
from hoptui.model.series import Series
from hoptui.recording import Recording, library
from hoptui.recording.library import RUN, KnownRun
from tests import factories
from tests.model.recorded_run import BOOT, FIRST, ID, LENGTH_S, SECOND, STATE, write


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The state directory of this user, and another directory."""
    state, other = tmp_path / "state", tmp_path / "other"
    for directory in (state, other, tmp_path / "run"):
        directory.mkdir(mode=0o700)
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(state))
    return state, other


def test_all_of_a_recording_is_known_to_its_end(tmp_path: Path) -> None:
    companion = Companion(write(tmp_path / "a.hoptui"), 0.0)
    try:
        assert companion.run.name == "ppo-recorded"
        steps = companion.store.steps(f"run/{ID}")
        assert steps is not None
        assert steps.last_t > FIRST + (LENGTH_S - 10) * SECOND
        assert not companion.renew(1e9)  # the run is over
    finally:
        companion.close()


def test_recordings_of_this_user_and_beside_a_file_but_not_of_the_run_itself(
    places: tuple[Path, Path],
) -> None:
    state, other = places
    write(state / f"{ID}.hoptui")
    (state / "damaged.hoptui").write_bytes(b"no recording")
    copied = other / "copy.hoptui"
    shutil.copy(state / f"{ID}.hoptui", copied)
    assert [(one.path.parent, one.name) for one in comparable("another")] == [(state, "ppo-recorded")]
    assert {one.path.parent for one in comparable("another", beside=copied)} == {state, other}
    assert comparable(ID) == []
    [found] = comparable("another")
    assert found.about.endswith("· finished")
    assert "10 m 0 s" in found.about or "9 m 5" in found.about


def test_what_cannot_be_compared_with_says_why(tmp_path: Path) -> None:
    empty = tmp_path / "empty.hoptui"
    empty.write_bytes(b"")
    for path in (tmp_path / "missing.hoptui", empty):
        with pytest.raises(CannotCompare, match=path.name):
            Companion(path, 0.0)


def test_a_run_that_goes_on_is_read_again_now_and_then(tmp_path: Path) -> None:
    path = tmp_path / "live.hoptui"
    living = msgspec.structs.replace(STATE, exit_reason="", exited_wall=0.0)
    with Recording.create(path, boot=BOOT) as recording:
        recording.remember(RUN, msgspec.json.encode(KnownRun(state=living, nonce="n", process_started=1)))
        recording.append(pack(f"run/{ID}", [(FIRST, 0, {"loss": 1.0})]))
        recording.flush()
        companion = Companion(path, 100.0)
        recording.append(pack(f"run/{ID}", [(FIRST + SECOND, 1, {"loss": 0.5})]))
        recording.flush()
        assert not companion.renew(100.0 + AGAIN_S / 2)
        before = companion.store
        assert companion.renew(100.0 + AGAIN_S)
        assert companion.store is not before
        series = companion.store.series(f"run/{ID}", "loss")
        assert series is not None
        assert series.last == 0.5
        companion.close()


S = 1_000_000_000


def series(values: list[float], *, every: int = S, start: int = 0) -> Series:
    made = Series()
    made.extend([start + (i + 1) * every for i in range(len(values))], list(range(len(values))), values)
    return made


def test_a_moved_series_has_moved_stamps() -> None:
    moved = Shifted(series([1, 2, 3]), 100 * S)
    found = moved.columns(101 * S, 103 * S, 100)
    assert found.t == [101 * S, 102 * S, 103 * S]
    assert found.low == [1, 2, 3]
    assert moved.columns(0, 50 * S, 10).t == []


def test_a_series_by_iteration() -> None:
    steps = series([0, 1, 2, 3, 4, 5])
    loss = series([9, 8, 7, 6, 5, 4])
    found = Stepped(loss, IterationIndex(steps)).columns(2 * MILLI, 4 * MILLI, 100)
    assert list(zip(found.t, found.low, strict=True)) == [(2000, 7), (3000, 6), (4000, 5)]


def test_readings_between_two_iterations_lie_between_them() -> None:
    steps = series([10, 11, 12], every=4 * S)
    power = series([float(i) for i in range(12)])
    found = Stepped(power, IterationIndex(steps)).columns(10 * MILLI, 12 * MILLI, 1000)
    assert list(zip(found.t, found.low, strict=True))[:3] == [(10_000, 3), (10_250, 4), (10_500, 5)]


def test_iterations_done_again_count_once_and_what_was_thrown_away_is_not_shown() -> None:
    steps = [0.0, 1, 2, 3, 4, 2, 3, 4, 5]
    course = Course([i * S for i in range(9)], steps)
    assert [course.place(i * S) for i in range(9)] == [0, 1000, None, None, None, 2000, 3000, 4000, 5000]
    assert course.place(round(1.5 * S)) is None
    assert course.stamp(2500) == round(5.5 * S)
    thrown = Stepped(series([0.0, 1, 92, 93, 94, 2, 3, 4, 5]), IterationIndex(series(steps)))
    assert thrown.columns(0, 5 * MILLI, 100).low == [0, 1, 2, 3, 4, 5]


def test_nothing_is_known_of_a_run_without_iterations() -> None:
    assert Course([], []).ends is None
    assert Course([S], [-1.0]).ends is None
    assert Course([S], [math.nan]).place(S) is None
    assert Stepped(series([1.0]), IterationIndex(Series())).columns(0, 10 * MILLI, 10).t == []


@pytest.mark.parametrize(("x0", "x1"), [(0, 40), (70_000, 70_040), (99_900, 99_999)])
def test_a_few_iterations_of_a_long_run_are_found_exactly(x0: int, x1: int) -> None:
    steps = series([float(i) for i in range(100_000)], every=S // 10)
    t0, t1, _ = IterationIndex(steps).part(x0 * MILLI, x1 * MILLI)
    assert t0 <= (x0 + 1) * S // 10
    assert (x1 + 1) * S // 10 <= t1
    assert t1 - t0 < 6_000 * S  # by the resolution of what is held so long ago
    assert IterationIndex(steps).part(200_000 * MILLI, 200_001 * MILLI)[:2] == (1, 0)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_places_rise_with_time(steps: list[int]) -> None:
    course = Course([i * S for i in range(len(steps))], [float(step) for step in steps])
    places = [x for i in range(4 * len(steps)) if (x := course.place(i * S // 4)) is not None]
    assert places == sorted(places)
    assert places[-1] == steps[-1] * MILLI
    ends = course.ends
    assert ends is not None
    assert all(course.stamp(x) <= course.stamp(x + 500) for x in range(ends[0], ends[1], 500))


@pytest.mark.parametrize(
    ("exit_reason", "age_s", "ended"),
    [("finished", 0.0, "finished"), ("", 1.0, "live"), ("", 3600.0, "no end recorded")],
)
def test_only_a_recording_that_is_being_written_is_called_live(
    exit_reason: str, age_s: float, ended: str
) -> None:
    last = time.time() - age_s
    entry = library.RecordingEntry(
        path=Path("x.hoptui"),
        run="aaaa1111",
        state=factories.run(exit_reason=exit_reason),
        problem="",
        size_bytes=1,
        modified=last,
        first_wall=last - 60.0,
        last_wall=last,
    )
    assert reference_run._about(entry).endswith(f" · {ended}")
