"""The simulation of shared cores: few changes without an effect are reported, and real effects are found."""

from __future__ import annotations

import pytest

from benchmarks.effect_noise import DEVELOPMENT, TEST, Case, changes

LOADS = DEVELOPMENT | TEST


@pytest.mark.parametrize(
    ("load", "each_s"),
    [
        ("bursts of 0.5 s", 0.02),
        ("three neighbours", 0.02),
        ("bursts of 10 s", 0.1),
        ("arrivals", 0.1),
        ("drift", 0.1),
    ],
)
def test_bursts_and_drifts_are_not_taken_for_effects(load: str, each_s: float) -> None:
    found = changes(Case(LOADS[load], each_s), 60, seed=1)
    assert sum(one.measured.detectable for one in found) <= 3


@pytest.mark.parametrize(
    ("load", "gain", "every_s", "least"), [("quiet", 0.2, 11.0, 38), ("bursts of 0.5 s", 0.5, 60.0, 25)]
)
def test_real_effects_are_found(load: str, gain: float, every_s: float, least: int) -> None:
    found = [
        one for one in changes(Case(LOADS[load], 0.1, gain, every_s), 40, seed=1) if one.measured.detectable
    ]
    assert len(found) >= least
    right = sum((one.measured.gain or 0.0) * one.effect > 0 for one in found)
    assert right >= 0.97 * len(found)
