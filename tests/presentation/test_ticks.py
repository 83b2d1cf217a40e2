"""Axes: ticks are round, hold the data, and can be told apart."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hoptui.presentation.scales import log_scale, value_scale
from hoptui.presentation.time_ticks import (
    clock_ticks,
    count_ticks,
    elapsed,
    elapsed_ticks,
    span_of,
    time_ticks,
)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([468e3, 522e3], ("450 k", "500 k", "550 k")),
        ([0, 475], ("0", "200", "400", "600")),
        ([99_000, 101_000], ("99.0 k", "100 k", "101 k")),
        ([-0.016, -0.008], ("-0.020", "-0.010", "0")),
        ([5, 5], ("4.5", "5.0", "5.5")),
        ([1204000, 1204500], ("1.2040 M", "1.2042 M", "1.2044 M", "1.2046 M")),
        ([1e12, 1e12 + 1], ("950 G", "1.00 T", "1.05 T")),
        ([], ()),
        ([math.nan, math.inf], ()),
    ],
)
def test_round_ticks(values: list[float], labels: tuple[str, ...]) -> None:
    assert value_scale(values, 4).labels == labels


@pytest.mark.parametrize(
    ("values", "top", "labels"),
    [
        ([0, 2.1e6], 2.5e6, ("0", "2.0 M")),
        ([0, 3.9e6], 4e6, ("0", "2.0 M", "4.0 M")),
        ([122, 145], 145, ("120", "140")),
    ],
)
def test_an_axis_does_not_rise_far_above_its_data(
    values: list[float], top: float, labels: tuple[str, ...]
) -> None:
    scale = value_scale(values, 3)
    assert (scale.top, scale.labels) == (top, labels)


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20), st.integers(3, 9))
def test_ticks_hold_the_data_and_differ(values: list[float], most: int) -> None:
    scale = value_scale(values, most)
    slack = (scale.top - scale.bottom) * 1e-6
    assert scale.bottom - slack <= min(values)
    assert max(values) <= scale.top + slack
    assert 2 <= len(scale.ticks) <= most
    assert len(scale.labels) == len(scale.ticks)
    assert list(scale.ticks) == sorted(scale.ticks)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1, 3], ("1", "2", "5")),
        ([5, 60], ("5", "10", "20", "50", "100")),
        ([3e-4, 3e-4], ("2e-4", "5e-4")),
        ([0, -3, 0.5, 2000], ("0.1", "10", "1 k", "100 k")),
        ([1e9, 1e15], ("1 G", "100 G", "10 T", "1 P")),
    ],
)
def test_powers_of_ten(values: list[float], labels: tuple[str, ...]) -> None:
    scale = log_scale(values, 5)
    assert scale is not None
    assert scale.labels == labels


def test_no_logarithmic_axis_without_a_value_above_zero() -> None:
    assert log_scale([0, -1, math.nan, math.inf], 5) is None


@example([3162277668.0, 100000000231.0], 3)
@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=20), st.integers(3, 9))
def test_a_logarithmic_axis_holds_the_data(values: list[float], most: int) -> None:
    scale = log_scale(values, most)
    assert scale is not None
    assert scale.bottom - 1e-6 <= math.log10(min(values))
    assert math.log10(max(values)) <= scale.top + 1e-6
    assert 2 <= len(scale.ticks) <= most
    assert len(set(scale.labels)) == len(scale.ticks)


@pytest.mark.parametrize(
    ("span_s", "labels"),
    [
        (60, ["20:27:30", "20:27:20", "20:27:10", "20:27:00", "20:26:50", "20:26:40"]),
        (3600, ["21:20", "21:10", "21:00", "20:50", "20:40", "20:30"]),
        (86400, ["05-29", "18:00", "12:00", "06:00"]),
        (3 * 86400, ["05-31", "05-30", "05-29", "12:00", "12:00", "12:00"]),
    ],
)
def test_times_of_day_are_round_and_a_new_day_has_its_date(
    span_s: int, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        ticks = clock_ticks(0, span_s * 10**9, 1_780_000_000 * 10**9, 6)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [label for _, label in ticks] == labels
    assert all(0 <= stamp < span_s * 10**9 for stamp, _ in ticks)


def test_iterations_and_times_since_a_start() -> None:
    assert count_ticks(0, 3_000_000, 1000, 4) == [(2_000_000, "2 000"), (1_000_000, "1 000"), (0, "0")]
    assert count_ticks(4_000, 4_500, 1000, 4) == [(4_000, "4")]
    minute = 60 * 10**9
    ticks = [(2 * minute, "+2:00"), (minute, "+1:00"), (0, "+0:00"), (-minute, "−1:00")]
    assert elapsed_ticks(-minute, 3 * minute, 0, 4) == ticks
    assert elapsed(3 * 3600 + 65) == "+3:01:05"


@pytest.mark.parametrize(("age", "longest"), [(16, 300), (40, 300), (151, 300), (240, 300), (1e6, 1e9)])
def test_a_young_run_fills_nine_tenths_of_the_chart(age: float, longest: float) -> None:
    assert age <= span_of(age, longest) <= age / 0.9


@pytest.mark.parametrize(("age", "longest", "span"), [(3, 300, 15), (299, 300, 300), (1e5, 300, 300)])
def test_the_stretch_of_a_chart_is_bounded(age: float, longest: float, span: float) -> None:
    assert span_of(age, longest) == span


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        (60, ["−15 s", "−30 s", "−45 s", "−60 s"]),
        (300, ["−2 min", "−4 min"]),
        (3600, ["−15 min", "−30 min", "−45 min", "−60 min"]),
        (6 * 3600, ["−2 h", "−4 h", "−6 h"]),
        (7200, ["−0.5 h", "−1 h", "−1.5 h", "−2 h"]),
        (2 * 86400, ["−0.5 d", "−1 d", "−1.5 d", "−2 d"]),
    ],
)
def test_time_labels_of_an_axis_are_in_one_unit(span: float, labels: list[str]) -> None:
    assert [label for _, label in time_ticks(span, 4)] == labels
