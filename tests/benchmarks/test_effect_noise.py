"""The simulation of shared cores: few changes without an effect are reported, and real effects are found."""

from __future__ import annotations

import pytest

from benchmarks.effect_noise import DEVELOPMENT, TEST, changes

LOADS = DEVELOPMENT | TEST


@pytest.mark.parametrize(
    ("load", "each_s"),
    [("bursts of 0.5 s", 0.02), ("three neighbours", 0.02), ("three neighbours", 0.1), ("arrivals", 0.1)],
)
def test_bursts_are_not_taken_for_effects(load: str, each_s: float) -> None:
    found = changes(LOADS[load], each_s, 0.0, 60, seed=1)
    assert sum(gain is not None for gain in found) <= 3


@pytest.mark.parametrize(("load", "gain", "least"), [("quiet", 0.2, 60), ("bursts of 0.5 s", 0.5, 35)])
def test_real_effects_are_found(load: str, gain: float, least: int) -> None:
    found = [one for one in changes(LOADS[load], 0.1, gain, 60, seed=1) if one is not None]
    assert len(found) >= least
    assert sum(one > 0 for one in found) >= 0.97 * len(found)
