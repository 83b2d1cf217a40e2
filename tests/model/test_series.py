from __future__ import annotations

import math
import random
import statistics
from array import array
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui.domain.columns import LOGGED_NAN, is_known
from hoptui.domain.freshness import FORGET, NEIGHBOURS
from hoptui.model.series import CAPACITY, HOLE, Series, SeriesWindow
from hoptui.protocol.messages import Buckets

NAN = math.nan


def fill(series: Series, t: Sequence[int], values: Sequence[float]) -> Series:
    series.extend(array("q", t), array("q", range(len(t))), array("d", values))
    return series


def make_buckets(
    t: Sequence[int], low: Sequence[float], high: Sequence[float], name: str = "loss"
) -> Buckets:
    mean = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
    return Buckets(
        id=1,
        source="run/r",
        names=("other", name),
        t=array("q", t).tobytes(),
        step=array("q", range(len(t))).tobytes(),
        low=(b"", array("d", low).tobytes()),
        high=(b"", array("d", high).tobytes()),
        mean=(b"", array("d", mean).tobytes()),
    )


def plain(window: SeriesWindow) -> list[tuple[int, float | None, float | None]]:
    """With None for NaN, which does not equal itself."""

    def number(value: float) -> float | None:
        return None if math.isnan(value) else value

    return [(t, number(low), number(high)) for t, low, high in zip(*window, strict=True)]


def by_hand(
    samples: list[tuple[int, float]], t0: int, t1: int, points: int
) -> list[tuple[int, float | None, float | None]]:
    """What `window` promises, sample by sample."""
    known = [(t, v) for t, v in samples if t0 <= t <= t1 and math.isfinite(v)]
    found: list[tuple[int, float | None, float | None]] = []
    last = -1
    for i, (t, _) in enumerate(known):
        bucket = (t - t0) * points // (t1 - t0 + 1)
        if bucket == last:
            continue
        if i and bucket > last + 1:
            gap = t - known[i - 1][0]
            before = [b[0] - a[0] for a, b in pairwise(known[:i])][-NEIGHBOURS:]
            after = [b[0] - a[0] for a, b in pairwise(known[i:])][:NEIGHBOURS]
            usual = [sorted(side)[(len(side) - 1) // 2] for side in (before, after) if side]
            if usual and gap > HOLE * max(usual):
                found.append(((known[i - 1][0] + t) // 2, None, None))
        inside = [(u, v) for u, v in known if (u - t0) * points // (t1 - t0 + 1) == bucket]
        found.append((inside[-1][0], min(v for _, v in inside), max(v for _, v in inside)))
        last = bucket
    return found


values = st.one_of(st.floats(-1e9, 1e9), st.just(NAN), st.just(math.inf))
spacings = st.sampled_from((1, 9, 10, 10, 10, 11, 25, 100, 1000))
timelines = st.lists(st.tuples(spacings, values), max_size=80)


@given(timelines, st.integers(0, 500), st.integers(1, 4000), st.integers(1, 40))
def test_window_is_what_it_promises(steps: list[tuple[int, float]], t0: int, span: int, points: int) -> None:
    samples, t = [], 0
    for step, value in steps:
        t += step
        samples.append((t, value))
    series = fill(Series(), [t for t, _ in samples], [v for _, v in samples])
    window = series.window(t0, t0 + span, points)
    assert plain(window) == by_hand(samples, t0, t0 + span, points)
    assert len(window.t) <= points


@given(timelines, st.lists(st.integers(0, 80), max_size=4))
def test_how_rows_are_cut_into_batches_does_not_matter(
    steps: list[tuple[int, float]], cuts: list[int]
) -> None:
    t, samples = 0, []
    for step, value in steps:
        t += step
        samples.append((t, value))
    whole = fill(Series(), [t for t, _ in samples], [v for _, v in samples])
    pieces = Series()
    edges = [0, *sorted(min(c, len(samples)) for c in cuts), len(samples)]
    for a, b in pairwise(edges):
        fill(pieces, [t for t, _ in samples[max(0, a - 1) : b]], [v for _, v in samples[max(0, a - 1) : b]])
    assert plain(whole.window(0, t, 30)) == plain(pieces.window(0, t, 30))


@settings(max_examples=20, deadline=None)
@given(st.integers(CAPACITY, 12 * CAPACITY), st.integers(0, 2**32), st.integers(2, 400))
def test_no_spike_is_lost_however_old(count: int, seed: int, points: int) -> None:
    dice = random.Random(seed)
    samples = [dice.random() for _ in range(count)]
    spike = dice.randrange(count)
    samples[spike] = 100.0
    series = fill(Series(), range(1, count + 1), samples)
    window = series.window(1, count, points)
    assert max(window.high) == 100.0
    assert min(window.low) == min(samples)
    at = window.high.index(100.0)
    assert abs(window.t[at] - (spike + 1)) <= 2 * count / points + 16
    assert window.t == sorted(window.t)
    assert len(window.t) <= points


def test_memory_is_bounded_and_the_newest_stays_fine() -> None:
    series = Series()
    n = 200_000
    for start in range(0, n, 5_000):
        fill(series, range(start, start + 5_000), [float(t) for t in range(start, start + 5_000)])
    held = sum(len(level.t) for level in series._levels)
    assert held < 6 * 1.5 * CAPACITY
    newest = series.window(n - 100, n - 1, 100)
    assert newest.low == newest.high == [float(t) for t in range(n - 100, n)]
    everything = series.window(0, n, 200)
    assert len(everything.t) >= 199
    assert everything.high[-1] == n - 1


def test_a_window_up_to_now_ends_with_the_newest_sample() -> None:
    n = 4 * CAPACITY + 3
    series = fill(Series(), range(n), [float(t) for t in range(n)])
    assert series.window(0, n - 1, 50).t[-1] == n - 1


def test_resent_rows_count_once() -> None:
    series = fill(Series(), [10, 20, 30], [1.0, 2.0, 3.0])
    before = series.version
    fill(series, [20, 30], [9.0, 9.0])
    assert series.version == before
    fill(series, [30, 40], [9.0, 4.0])
    assert plain(series.window(0, 50, 100))[-2:] == [(30, 3.0, 3.0), (40, 4.0, 4.0)]


def test_a_long_silence_is_a_gap_and_a_change_of_pace_is_not() -> None:
    steady = [*range(0, 1000, 10), *range(3000, 4000, 10)]
    gaps = [
        t
        for t, low, _ in plain(fill(Series(), steady, [1.0] * len(steady)).window(0, 4000, 400))
        if low is None
    ]
    assert gaps == [(990 + 3000) // 2]
    slower = [*range(0, 1000, 10), *range(1000, 9000, 80)]
    window = fill(Series(), slower, [1.0] * len(slower)).window(0, 9000, 900)
    assert not any(math.isnan(low) for low in window.low)


def test_the_last_value_is_not_kept_alive() -> None:
    series = fill(Series(), range(0, 100, 10), [5.0] * 10)
    assert (series.last, series.last_t, series.last_step) == (5.0, 90, 9)
    series.missing(90 + FORGET * 10)
    assert series.last == 5.0
    before = series.version
    fill(series, [90 + FORGET * 10 + 1], [NAN])
    assert math.isnan(series.last)
    assert series.last_t == 90
    assert series.version > before
    fill(series, [500], [6.0])
    assert series.last == 6.0


def test_a_value_that_was_only_seeded_is_not_kept_alive_either() -> None:
    series = Series()
    series.seed(make_buckets(list(range(0, 1000, 100)), [5.0] * 10, [5.0] * 10), "loss")
    series.missing(900 + FORGET * 100)
    assert series.last == 5.0
    series.missing(900 + FORGET * 100 + 1)
    assert math.isnan(series.last)


def test_a_rare_metric_stays_current_between_its_rows() -> None:
    series = fill(Series(), range(300), [float(t) if t % 20 == 0 else NAN for t in range(300)])
    assert series.last == 280.0


def test_seeds_go_before_what_is_there() -> None:
    series = fill(Series(), [100, 110], [1.0, 2.0])
    series.seed(make_buckets([80, 90, 100, 110], [0.5, NAN, 7.0, 7.0], [0.9, NAN, 8.0, 8.0]), "loss")
    series.seed(make_buckets([10, 20, 80], [-1.0, -2.0, 9.0], [-0.5, -1.5, 9.0]), "loss")
    assert plain(series.window(0, 200, 201)) == [
        (10, -1.0, -0.5),
        (20, -2.0, -1.5),
        (50, None, None),
        (80, 0.5, 0.9),
        (100, 1.0, 1.0),
        (110, 2.0, 2.0),
    ]
    assert series.last == 2.0


def test_a_seed_gives_a_run_that_is_over_its_last_value() -> None:
    series = Series()
    series.seed(make_buckets([10, 20, 30], [1.0, 2.0, NAN], [3.0, 4.0, NAN]), "loss")
    assert (series.last, series.last_t, series.last_step) == (3.0, 20, 1)
    fill(series, [15, 25], [9.0, 5.0])
    assert [t for t, _, _ in plain(series.window(0, 100, 100))] == [10, 20, 25]


def test_a_seed_of_the_past_does_not_bring_back_a_value_that_is_not_current() -> None:
    series = fill(Series(), range(100, 200, 10), [5.0] * 10)
    series.missing(190 + FORGET * 10 + 1)
    series.seed(make_buckets([50, 60], [1.0, 2.0], [1.0, 2.0]), "loss")
    assert math.isnan(series.last)
    assert (series.last_t, series.last_step) == (190, 9)


def test_a_seed_without_the_metric_changes_nothing() -> None:
    series = fill(Series(), [1], [1.0])
    before = series.version
    series.seed(make_buckets([0], [1.0], [1.0], name="else"), "loss")
    series.seed(make_buckets([5, 6], [1.0, 1.0], [1.0, 1.0]), "loss")
    assert series.version == before


def test_clear_keeps_the_last_value() -> None:
    series = fill(Series(), [1, 2], [1.0, 2.0])
    series.clear()
    assert series.last == 2.0
    assert series.window(0, 10, 10).t == []


@pytest.mark.parametrize(("t0", "t1", "points"), [(10, 0, 5), (0, 10, 0), (50, 60, 5)])
def test_an_empty_window(t0: int, t1: int, points: int) -> None:
    assert fill(Series(), [1, 2, 3], [1.0, 2.0, 3.0]).window(t0, t1, points) == SeriesWindow([], [], [])


def test_a_logged_nan_and_an_infinity_are_the_newest_value_and_gaps_in_a_chart() -> None:
    series = fill(Series(), [0, 10, 20, 30], [1.0, 2.0, 3.0, LOGGED_NAN])
    assert is_known(series.last)
    assert math.isnan(series.last)
    assert (series.last_t, series.last_step) == (30, 3)
    assert plain(series.window(0, 100, 101)) == [(0, 1.0, 1.0), (10, 2.0, 2.0), (20, 3.0, 3.0)]
    fill(series, [40, 50], [math.inf, NAN])
    assert (series.last, series.last_t) == (math.inf, 40)
    fill(series, [41 + FORGET * 10], [NAN])
    assert not is_known(series.last)


@pytest.mark.parametrize(("batch", "count"), [(1, 3_000), (7, 20_000), (5_000, 60_000), (20, 300_000)])
def test_medians_are_right_however_long_and_skewed_the_window_is(batch: int, count: int) -> None:
    noise = random.Random(4)
    samples = [noise.expovariate(1) for _ in range(count)]
    series = Series()
    for a in range(0, count, batch):
        end = min(a + batch, count)
        series.extend(range(a, end), range(a, end), samples[a:end])
    found = series.columns(0, count - 1, 200)
    assert statistics.median(found.middle) == pytest.approx(statistics.median(samples), rel=0.05)
    few = series.columns(0, count - 1, 3)
    third = count // 3
    for i, middle in enumerate(few.middle):
        assert middle == pytest.approx(statistics.median(samples[i * third : (i + 1) * third]), rel=0.05)


def test_columns_have_the_extremes_and_gaps_of_the_window() -> None:
    series = fill(Series(), [*range(50), *range(200, 250)], [float(i % 7) for i in range(100)])
    window, columns = series.window(0, 249, 25), series.columns(0, 249, 25)
    assert str(columns[:3]) == str(tuple(window))
    assert [m for m in columns.middle if m != m] != []
