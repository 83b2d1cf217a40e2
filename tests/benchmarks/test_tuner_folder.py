"""The simulated run from a folder: what the simulation says of its parts, and what the tuner makes of it."""

from __future__ import annotations

import pytest

from benchmarks.tuner_folder import HOSTS, Host, against, rate

QUIET = Host(noise=0.0)


@pytest.mark.parametrize(
    ("batch", "workers", "images_per_s"),
    [(128, 8, 3350), (128, 2, 2800), (512, 4, 3730), (256, 8, 3580), (32, 1, 1450)],
)
def test_it_is_as_fast_as_the_run_that_was_measured(batch: int, workers: int, images_per_s: float) -> None:
    assert rate(QUIET, batch, workers) == pytest.approx(images_per_s, rel=0.04)


@pytest.mark.parametrize("name", ["at rest", "slow", "noisy"])
def test_the_tuner_finds_nearly_the_best_of_the_grid_on_every_host(name: str) -> None:
    found = against(HOSTS[name], range(4))
    assert found["least"] >= 0.95
    assert found["most_trials"] <= 20
