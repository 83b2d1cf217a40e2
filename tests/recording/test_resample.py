"""buckets() against a slow and plain account of the same rows."""

from __future__ import annotations

import math
import time
from array import array
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hoptui.domain.columns import Columns, pack
from hoptui.protocol.messages import Buckets
from hoptui.recording.pyramid import buckets

NAN = math.nan
Plain = list[tuple[int, int, dict[str, float]]]


def told(found: Buckets) -> list[tuple[int, int, dict[str, tuple[float, float, float]]]]:
    """(t, step, name -> (low, high, mean)) a bucket, names without a known value left out."""
    columns = {
        name: list(zip(array("d", low), array("d", high), array("d", mean), strict=True))
        for name, low, high, mean in zip(found.names, found.low, found.high, found.mean, strict=True)
    }
    return [
        (t, step, {name: c[i] for name, c in columns.items() if not math.isnan(c[i][0])})
        for i, (t, step) in enumerate(zip(array("q", found.t), array("q", found.step), strict=True))
    ]


def slowly(rows: Plain, t0: int, t1: int, points: int) -> dict[int, Plain]:
    """The rows of each bucket that has any, by its number."""
    found: dict[int, Plain] = {}
    for row in rows:
        if t0 <= row[0] <= t1:
            found.setdefault((row[0] - t0) * points // (t1 - t0 + 1), []).append(row)
    return found


def in_parts(rows: Plain, size: int) -> list[Columns]:
    return [pack("s", rows[i : i + size]) for i in range(0, len(rows), size)]


values = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9)
row_values = st.dictionaries(st.sampled_from("abc"), values | st.just(NAN), max_size=3)


@st.composite
def histories(draw: st.DrawFn) -> Plain:
    steps = draw(st.lists(st.tuples(st.sampled_from([1, 2, 2, 3, 4, 7, 40, 90]), row_values), max_size=30))
    t, rows = draw(st.integers(1, 100)), []
    for i, (ahead, known) in enumerate(steps):
        t += ahead
        rows.append((t, i, known))
    return rows


@given(histories(), st.integers(1, 9), st.integers(1, 40), st.integers(0, 1500), st.integers(0, 1500))
@example([(1, 0, {}), (2, 1, {}), (90, 2, {})], 1, 5, 0, 0)
@settings(max_examples=200, deadline=None)
def test_every_bucket_holds_the_extremes_and_the_mean_of_its_rows(
    rows: Plain, size: int, points: int, t0: int, t1: int
) -> None:
    found = buckets(in_parts(rows, size), "s", (), t0, t1, points, id=9)
    assert (found.id, found.source) == (9, "s")
    assert len(found.t) // 8 <= points
    t0 = t0 or (rows[0][0] if rows else 0)
    t1 = t1 or (rows[-1][0] if rows else 0)
    expected = list(slowly(rows, t0, t1, points).values())
    filled = [bucket for bucket in told(found) if bucket[1] >= 0]
    assert [(t, step) for t, step, _ in filled] == [(group[-1][0], group[-1][1]) for group in expected]
    for (_, _, figures), group in zip(filled, expected, strict=True):
        for name in "abc":
            known = [v[name] for _, _, v in group if name in v and not math.isnan(v[name])]
            assert (name in figures) == bool(known)
            if known:
                low, high, mean = figures[name]
                assert (low, high) == (min(known), max(known))
                assert mean == pytest.approx(math.fsum(known) / len(known), rel=1e-9, abs=1e-5)
                assert low <= mean <= high


@given(histories(), st.integers(1, 9), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_gaps_are_marked_once_and_in_order(rows: Plain, size: int, points: int) -> None:
    found = told(buckets(in_parts(rows, size), "s", (), 0, 0, points))
    stamps = [t for t, _, _ in found]
    assert all(a < b for a, b in pairwise(stamps))
    times = [t for t, _, _ in rows]
    spacings = sorted(b - a for a, b in pairwise(times))
    typical = spacings[len(spacings) // 2] if spacings else 0
    marks = [t for t, step, _ in found if step < 0]
    numbers = [(t - times[0]) * points // (times[-1] - times[0] + 1) for t in times]
    gaps = [
        a + typical
        for (a, b), (i, j) in zip(pairwise(times), pairwise(numbers), strict=True)
        if j > i + 1 and b - a > 3 * typical
    ]
    assert marks == gaps


def test_a_single_spike_survives_any_reduction() -> None:
    rows: Plain = [(i, i, {"x": 1.0}) for i in range(1, 50_001)]
    rows[31_234] = (31_235, 31_235, {"x": 900.0})
    found = buckets(in_parts(rows, 512), "s", ("x",), 0, 0, 100)
    assert max(array("d", found.high[0])) == 900.0
    assert sorted(array("d", found.high[0]))[-2] == 1.0
    assert min(array("d", found.low[0])) == 1.0


def test_names_asked_for_are_answered_in_their_order_known_or_not() -> None:
    rows: Plain = [(1, 1, {"a": 1.0, "b": 2.0}), (2, 2, {"a": 3.0, "c": 4.0})]
    found = buckets(in_parts(rows, 1), "s", ("c", "nothing", "a"), 1, 2, 2)
    assert found.names == ("c", "nothing", "a")
    assert told(found) == [
        (1, 1, {"a": (1.0, 1.0, 1.0)}),
        (2, 2, {"a": (3.0, 3.0, 3.0), "c": (4.0, 4.0, 4.0)}),
    ]


def test_a_gap_in_a_run_is_one_bucket_without_values() -> None:
    """One row a second, nothing for half a minute, then one a second again."""
    rows: Plain = [(t, t, {"x": 1.0}) for t in [*range(1, 21), *range(51, 71)]]
    found = told(buckets(in_parts(rows, 7), "s", (), 1, 70, 70))
    assert found == [
        *((t, t, {"x": (1.0, 1.0, 1.0)}) for t in range(1, 21)),
        (21, -1, {}),
        *((t, t, {"x": (1.0, 1.0, 1.0)}) for t in range(51, 71)),
    ]
    coarse = told(buckets(in_parts(rows, 7), "s", (), 1, 70, 2))
    assert [step for _, step, _ in coarse] == [20, 70]


def test_two_gaps_are_two_marks_each_in_its_place() -> None:
    rows: Plain = [(t, t, {"x": float(t)}) for t in [*range(1, 9), *range(21, 29), *range(41, 49)]]
    found = told(buckets(in_parts(rows, 5), "s", (), 1, 48, 48))
    assert [(t, step) for t, step, figures in found if not figures] == [(9, -1), (29, -1)]
    assert all(figures["x"] == (t, t, t) for t, _, figures in found if figures)


def test_a_gap_ends_at_the_first_row_after_it() -> None:
    """Three spacings are none yet, even where the bucket after it ends later."""
    rows: Plain = [(t, t, {"x": 1.0}) for t in [*range(10, 101, 10), 130, 139]]
    assert all(step > 0 for _, step, _ in told(buckets(in_parts(rows, 3), "s", (), 10, 139, 13)))
    rows[-2:] = [(131, 131, {}), (139, 139, {})]
    assert [t for t, step, _ in told(buckets(in_parts(rows, 3), "s", (), 10, 139, 13)) if step < 0] == [110]


def test_sparse_rows_are_no_gap_and_the_edges_stay_open() -> None:
    rows: Plain = [(t, t, {"x": 1.0}) for t in range(100, 201, 10)]
    found = told(buckets(in_parts(rows, 4), "s", (), 1, 10_000, 5_000))
    assert [t for t, _, _ in found] == list(range(100, 201, 10))


def test_nothing_gives_nothing() -> None:
    assert told(buckets([], "s", (), 0, 0, 10)) == []
    assert buckets([], "s", ("x",), 5, 9, 10).names == ("x",)
    rows: Plain = [(5, 1, {"x": 1.0})]
    assert told(buckets(in_parts(rows, 1), "s", (), 6, 9, 10)) == []
    assert told(buckets(in_parts(rows, 1), "s", (), 9, 3, 10)) == []
    assert told(buckets(in_parts(rows, 1), "s", (), 0, 0, 0)) == [(5, 1, {"x": (1.0, 1.0, 1.0)})]


def test_rows_told_twice_count_once() -> None:
    rows: Plain = [(t, t, {"x": float(t)}) for t in range(1, 11)]
    twice = [*in_parts(rows[:7], 3), *in_parts(rows[4:], 4)]
    assert buckets(twice, "s", (), 1, 10, 4) == buckets(in_parts(rows, 10), "s", (), 1, 10, 4)


@pytest.mark.parametrize(
    ("known", "figure"),
    [
        ([1.0, math.inf], (1.0, math.inf, math.inf)),
        ([-math.inf, 2.0], (-math.inf, 2.0, -math.inf)),
        ([1e308, 1e308], (1e308, 1e308, 1e308)),
        ([NAN, -3.0], (-3.0, -3.0, -3.0)),
    ],
)
def test_a_run_that_diverges_is_shown_as_it_is(
    known: list[float], figure: tuple[float, float, float]
) -> None:
    rows: Plain = [(i, i, {"loss": v}) for i, v in enumerate(known, start=1)]
    assert told(buckets(in_parts(rows, 1), "s", (), 0, 0, 1)) == [(len(rows), len(rows), {"loss": figure})]
    (low,) = array(
        "d",
        buckets(in_parts([(1, 1, {"x": math.inf}), (2, 2, {"x": -math.inf})], 2), "s", (), 0, 0, 1).low[0],
    )
    assert low == -math.inf


def test_a_hundred_thousand_rows_of_eight_names_take_well_under_a_second() -> None:
    """0.05 s on one core of a small machine; the bound leaves room for a loaded one."""
    n = 100_000
    column = array("d", (math.sin(i) for i in range(n))).tobytes()
    whole = Columns(
        source="s",
        names=tuple("abcdefgh"),
        t=array("q", range(10, 10 + n)).tobytes(),
        step=array("q", range(n)).tobytes(),
        values=(column,) * 8,
    )
    parts = [whole.slice(i, i + 512) for i in range(0, n, 512)]
    began = time.process_time()
    found = buckets(parts, "s", (), 0, 0, 512)
    assert time.process_time() - began < 0.6
    assert len(found.t) == 8 * 512
