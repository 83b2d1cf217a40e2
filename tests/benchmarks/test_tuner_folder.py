"""The simulated run from a folder: what the simulation says of its parts, and what the tuner makes of it."""

from __future__ import annotations

import math
import random
from statistics import correlation, fmean, stdev

import pytest

from benchmarks.tuner_folder import HOSTS, SWAYS_S, Core, Host, against, rate, steady

pytestmark = pytest.mark.slow

QUIET = Host(noise=0.0)


@pytest.mark.parametrize(
    ("batch", "workers", "images_per_s"),
    [(128, 8, 3350), (128, 2, 2800), (512, 4, 3730), (256, 8, 3580), (32, 1, 1450)],
)
def test_it_is_as_fast_as_the_run_that_was_measured(batch: int, workers: int, images_per_s: float) -> None:
    assert rate(QUIET, batch, workers) == pytest.approx(images_per_s, rel=0.04)


def test_a_core_that_is_shared_stays_for_some_seconds_as_slow_as_it_is() -> None:
    core = Core(0.2, random.Random(3))
    told = [math.log(core.slowness(t * SWAYS_S)) for t in range(4000)]
    assert fmean(told) == pytest.approx(0, abs=0.02)
    assert stdev(told) == pytest.approx(0.2, rel=0.05)
    assert correlation(told[:-1], told[1:]) == pytest.approx(math.exp(-1), abs=0.05)
    assert core.slowness(0.0) == pytest.approx(math.exp(told[-1])), "it does not go back"


def test_a_run_that_leaves_nothing_to_gain_is_hardly_touched_for_an_hour() -> None:
    found = steady(HOSTS["shared"], [0], ())
    assert found["most_changes"] <= 2
    assert found["most_spent"] <= 0.02


@pytest.mark.parametrize("name", ["at rest", "slow", "noisy", "shared"])
def test_the_tuner_finds_nearly_the_best_of_the_grid_on_every_host(name: str) -> None:
    found = against(HOSTS[name], range(4))
    assert found["least"] >= 0.95
    assert found["found_after"] <= 20
