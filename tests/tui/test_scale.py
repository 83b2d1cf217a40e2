"""Axes: ticks are round, hold the data, and can be told apart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.tui.widgets.scale import span_of, time_ticks, value_scale


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
    ("age", "longest", "span"),
    [(3, 300, 15), (40, 300, 60), (240, 300, 300), (1e5, 300, 300), (1e9, 1e9, 604800)],
)
def test_a_young_run_fills_the_chart(age: float, longest: float, span: float) -> None:
    assert span_of(age, longest) == span


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        (60, ["−15 s", "−30 s", "−45 s", "−1 min"]),
        (300, ["−2 min", "−4 min"]),
        (3600, ["−15 min", "−30 min", "−45 min", "−1 h"]),
        (6 * 3600, ["−2 h", "−4 h", "−6 h"]),
    ],
)
def test_time_labels(span: float, labels: list[str]) -> None:
    assert [label for _, label in time_ticks(span, 4)] == labels
