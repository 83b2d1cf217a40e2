"""Buckets from the pyramid are those of the rows, up to what it says; what is gone from the rows is still
there."""

from __future__ import annotations

import math
import sqlite3
import time
from array import array
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui.domain.columns import Columns, concatenate, pack
from hoptui.protocol.messages import Buckets
from hoptui.recording import Recording, pyramid
from hoptui.recording.ingest import Boot
from hoptui.recording.pyramid import FACTOR, Summary, coarsen, summarise
from hoptui.recording.tables import ROWS, decode_summary, encode_summary

SECOND = 1_000_000_000
FAMILY = ROWS * FACTOR  # rows below a block of level 1
GPU = "gpu/GPU-1"
MakeRows = Callable[..., Columns]
Figure = tuple[int, int, float, float, float]


def levels(path: Path) -> dict[int, int]:
    with closing(sqlite3.connect(path)) as db:
        return dict(db.execute("SELECT level, count(*) FROM blocks GROUP BY level"))


def figures(found: Buckets, name: str) -> list[Figure]:
    """t, step, low, high, mean of each bucket."""
    i = found.names.index(name)
    stamps, steps = array("q", found.t), array("q", found.step)
    low, high, mean = (array("d", raw[i]) for raw in (found.low, found.high, found.mean))
    return list(zip(stamps, steps, low, high, mean, strict=True))


@pytest.fixture
def filled(recording: Recording, long_rows: MakeRows) -> Recording:
    """A family of rows and two blocks more, a few rows that are in no block, and some that wait."""
    recording.append(long_rows(FAMILY + 2 * ROWS))
    recording.flush()
    recording.append(long_rows(20, first=FAMILY + 2 * ROWS + 1))
    recording.flush()
    recording.append(long_rows(5, first=FAMILY + 2 * ROWS + 21))
    return recording


def test_a_level_is_made_of_as_many_blocks_of_the_one_below(filled: Recording) -> None:
    assert levels(filled.path) == {0: FACTOR + 2, 1: 1}


def test_short_windows_are_those_of_the_rows_exactly(filled: Recording) -> None:
    for t0, t1 in ((5_000, 5_600), (16_000, 17_400), (FAMILY, 0), (1, 511)):
        asked = (GPU, ("total", "power_w"), t0 * SECOND, t1 * SECOND or 17_433 * SECOND, 100, 7)
        assert filled.buckets(*asked) == pyramid.buckets(filled.rows(GPU), *asked)


def test_long_windows_hold_every_row_once_and_their_edges_are_off_by_half_a_bucket(filled: Recording) -> None:
    count = FAMILY + 2 * ROWS + 25
    points = 100
    found = filled.buckets(GPU, (), points=points, id=3)
    exact = pyramid.buckets(filled.rows(GPU), GPU, (), 0, 0, points)
    assert (found.id, found.source, found.names) == (3, GPU, ("power_w", "total"))
    buckets, plain = figures(found, "total"), figures(exact, "total")
    assert len(buckets) == points
    assert buckets != plain
    assert buckets[0][2] == 1
    assert buckets[-1][:2] == (count * SECOND, count)
    for (_, _, _, high, _), (_, _, low, _, _) in pairwise(buckets):
        assert low == high + 1  # none twice, none left out
    for (t, step, low, high, mean), (wanted, *_) in zip(buckets, plain, strict=True):
        assert step == high == t / SECOND
        assert mean == pytest.approx((low + high) / 2)
        assert abs(t - wanted) <= count * SECOND / points / 2


def test_means_are_weighted_by_what_is_known(filled: Recording) -> None:
    (found,) = figures(filled.buckets(GPU, ("power_w",), points=1), "power_w")
    rows = concatenate(GPU, filled.rows(GPU))
    known = [v for v in rows.column("power_w") if v == v]
    assert found[2:4] == (min(known), max(known))
    assert found[4] == pytest.approx(math.fsum(known) / len(known), abs=1e-3)


def test_a_spike_and_a_gap_survive(recording: Recording, long_rows: MakeRows) -> None:
    """Two hours without rows, amid a block, and one row of 9 kW."""
    recording.append(long_rows(6_000))
    later = long_rows(FAMILY - 6_000, first=6_000 + 7_200)
    watts = later.column("power_w")
    watts[1_000] = 9_000.0
    recording.append(msgspec.structs.replace(later, values=(watts.tobytes(), later.values[1])))
    recording.flush()
    assert levels(recording.path)[1] == 1
    found = figures(recording.buckets(GPU, ("power_w",), points=120), "power_w")
    assert [low for _, _, low, _, _ in found if high_of(low)] == []
    assert sorted(high for _, step, _, high, _ in found if step >= 0)[-2:] == [
        pytest.approx(640, abs=20),
        9_000.0,
    ]
    gaps = [t for t, step, low, _, _ in found if step < 0 and math.isnan(low)]
    assert gaps == [6_001 * SECOND]


def high_of(value: float) -> bool:
    """Whether a least value is none of the noise around 600."""
    return value == value and not 550 < value < 650


def test_a_row_a_minute_among_rows_a_second_is_no_gap_at_any_level(recording: Recording) -> None:
    stamps = [*range(1, 9_000), *range(9_000, 9_000 + 60 * (FAMILY - 8_999), 60)]
    recording.append(pack(GPU, [(t * SECOND, t, {"x": float(t)}) for t in stamps]))
    recording.flush()
    found = figures(recording.buckets(GPU, points=400), "x")
    assert levels(recording.path)[1] == 1
    assert [low for _, step, low, _, _ in found if step >= 0 and low != low] == []
    assert found[-1][3] == stamps[-1]


def test_stamps_are_on_the_callers_clock(filled: Recording, path: Path) -> None:
    filled.flush()
    last = (FAMILY + 2 * ROWS + 25) * SECOND
    first = Boot("boot-2", 2_000_000 * SECOND, 10 * SECOND)  # a million seconds after boot-1 began
    with Recording.open(path, boot=first) as reader:
        found = figures(reader.buckets(GPU, ("total",), points=10), "total")
        assert found[-1][0] == last - 1_000_000 * SECOND
        asked = reader.buckets(GPU, ("total",), -990_000 * SECOND, -989_000 * SECOND, 10)
        assert figures(asked, "total")[0][2] == pytest.approx(10_000, abs=FACTOR)


def test_nothing_gives_nothing(recording: Recording, rows: MakeRows) -> None:
    assert recording.buckets("host", ("x",)).names == ("x",)
    recording.append(rows(3))
    assert recording.buckets("host", ("x",), 9 * SECOND, 3 * SECOND).t == b""
    assert recording.buckets("host", (), 10 * SECOND, 20 * SECOND).t == b""
    assert len(recording.buckets("host", points=0).t) == 8


def test_a_week_is_read_in_no_time(path: Path, boot: Boot, long_rows: MakeRows) -> None:
    """A row a second: 0.02 s to open it and 0.05 s for its buckets on one core of a small machine."""
    part = long_rows(FAMILY)
    with Recording.create(path, boot=boot) as recording:
        for family in range(37):
            t = array("q", [t + family * FAMILY * SECOND for t in part.times()])
            recording.append(msgspec.structs.replace(part, t=t.tobytes()))
            recording.flush()
        recording.append(long_rows(1, first=37 * FAMILY + 1))  # one block of the pyramid a flush
    assert levels(path) == {0: 37 * FACTOR, 1: 37, 2: 1}
    began = time.process_time()
    with Recording.open(path) as reader:
        assert reader.sources() == {GPU: (SECOND, (37 * FAMILY + 1) * SECOND, 37 * FAMILY + 1)}
        found = figures(reader.buckets(GPU, points=512), "total")
        took = time.process_time() - began
        coarse = figures(reader.buckets(GPU, points=32), "total")
    assert took < 0.5
    assert len(found) == 512
    assert {low for _, _, low, _, _ in found} >= {1.0}
    assert (min(b[2] for b in coarse), max(b[3] for b in coarse)) == (1.0, 37 * FAMILY + 1)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 90), st.dictionaries(st.sampled_from("ab"), st.floats(-1e6, 1e6), max_size=2)
        ),
        min_size=1,
        max_size=150,
    )
)
@settings(max_examples=40, deadline=None)
def test_summaries_add_up_and_survive_their_packing(members: list[tuple[int, dict[str, float]]]) -> None:
    t = 0
    rows = []
    for i, (ahead, values) in enumerate(members):
        t += ahead
        rows.append((t, i, values))
    whole = summarise(pack("s", rows))
    again = decode_summary(whole.names, len(whole.t), encode_summary(whole), ())
    assert again._replace(figures=()) == whole._replace(figures=())
    halves = coarsen(
        [summarise(pack("s", part)) for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]) if part]
    )
    for summary in (whole, again, halves):
        assert sum(summary.rows) == len(rows)
        assert summary.first[0] == rows[0][0]
        assert summary.t[-1] == rows[-1][0]
        assert summary.step[-1] == len(rows) - 1
        for name, figure in zip(summary.names, summary.figures, strict=True):
            known = [values[name] for _, _, values in rows if name in values]
            assert sum(figure.known) == len(known)
            assert min(v for v in figure.low if v == v) == min(known)
            assert max(v for v in figure.high if v == v) == max(known)
            total = sum(m * n for m, n in zip(figure.mean, figure.known, strict=True) if n)
            assert total == pytest.approx(sum(known), abs=1e-6 * sum(map(abs, known)) + 0.006 * len(known))


def test_what_a_part_has_not_got_is_unknown_in_it() -> None:
    parts = [summarise(pack("s", [(1, 1, {"a": 1.0})])), summarise(pack("s", [(2, 2, {"b": 2.0})]))]
    found: Summary = coarsen(parts)
    assert found.names == ("a", "b")
    assert [list(figure.known) for figure in found.figures] == [[1], [1]]
    assert [figure.low[0] for figure in found.figures] == [1.0, 2.0]


def test_thinning_takes_the_oldest_rows_and_leaves_their_summaries(
    recording: Recording, long_rows: MakeRows, path: Path
) -> None:
    for first in range(1, 4 * FAMILY, FAMILY):
        recording.append(long_rows(FAMILY, first=first))
        recording.flush()
    recording.append(long_rows(5, first=4 * FAMILY + 1))
    recording.remember("run", "r1")
    recording.flush()
    before = figures(recording.buckets(GPU, points=64), "power_w")
    used = recording.used_bytes
    assert recording.thin(used) == 0
    assert recording.thinned_before is None
    freed = recording.thin(used * 3 // 4)
    assert recording.used_bytes == used - freed <= used * 3 // 4
    assert recording.thinned_before == (2 * FAMILY) * SECOND + 1
    assert recording.sources()[GPU] == (SECOND, (4 * FAMILY + 5) * SECOND, 2 * FAMILY + 5)
    assert recording.span() == (SECOND, (4 * FAMILY + 5) * SECOND)
    assert figures(recording.buckets(GPU, points=64), "power_w") == before
    assert next(recording.rows(GPU)).steps()[0] == 2 * FAMILY + 1
    narrow = figures(recording.buckets(GPU, ("total",), 5_000 * SECOND, 5_100 * SECOND, 50), "total")
    assert 3 <= len(narrow) <= 5
    assert recording.at(GPU, 5_000 * SECOND, 10)["total"] == pytest.approx(5_000, abs=FACTOR)
    assert recording.at(GPU, 3 * FAMILY * SECOND, 10)["total"] == 3 * FAMILY
    # Its room is used again.
    size = path.stat().st_size
    for first in range(4 * FAMILY + 6, 5 * FAMILY, 1000):
        recording.append(long_rows(1000, first=first))
        recording.flush()
    recording._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size <= size + 200_000
    # What no summary stands for stays, whatever the limit.
    recording.thin(0)
    assert recording.sources()[GPU][2] < FAMILY + 1005
    assert recording.buckets(GPU, points=64).t
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with Recording.open(path) as reader:
        assert reader.thinned_before == 4 * FAMILY * SECOND + 1
