"""What is read off a chart is what the data have."""

from __future__ import annotations

from itertools import chain

import pytest

from benchmarks.chart_truth import LIMIT, UNSEEN, measured, number, read, recorded, synthetic, unseen
from hoptui.tui.charts.plot import Curve, Paper, plot

SHOWN = ("bursts", "dips", "steps", "ramp", "rare spikes", "negative", "gaps", "ppo-h100 env_steps_per_s")


def test_a_value_read_off_a_chart_is_within_five_per_cent() -> None:
    found = {one.name: measured(one) for one in chain(recorded(), synthetic()) if one.name in SHOWN}
    assert found.keys() == set(SHOWN)
    assert {name: one["error"] for name, one in found.items() if one["error"] > LIMIT} == {}
    assert min(one["columns"] for one in found.values()) > 100


def test_series_that_no_rule_was_made_with_are_within_five_per_cent() -> None:
    found = {one.name: measured(one)["error"] for one in unseen()}
    assert found.keys() == UNSEEN.keys()
    assert {name: error for name, error in found.items() if error > LIMIT} == {}


def test_a_picture_is_read_by_its_axis() -> None:
    rise = [float(i) for i in range(100)]
    shown = read(plot([Curve("x", "1", range(100), rise, rise, rise)], Paper(0, 100), 57, 20))
    assert shown == pytest.approx(rise, abs=1.5)


def test_labels_are_numbers() -> None:
    assert [number(label) for label in ("0", "1.5 M", "-20", "0.05")] == [0, 1.5e6, -20, 0.05]
