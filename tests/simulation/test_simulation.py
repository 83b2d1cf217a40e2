"""Fresh seeds of the simulation. A failure names its seed, and the command that replays it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.actions import NIGHT, night_s
from tests.simulation.scenario import plan_of

SEEDS, AT_ONCE = 60, 3


def simulate(*options: str) -> str:
    """Return what the simulation prints. It runs in a process of its own, where sets have a fixed order."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_seed_does_the_same_each_time() -> None:
    first = simulate("--verbose", "--seeds", "1", "6").splitlines()[1:-1]
    again = simulate("--seeds", "6", "1", "--verbose").splitlines()[1:-1]
    assert first == again[::-1]
    assert all("events" in line for line in first)


@pytest.mark.parametrize("batch", range(SEEDS // AT_ONCE))
def test_fresh_seeds_hold(batch: int) -> None:
    assert f"{AT_ONCE} seeds, 0 failed" in simulate("--count", str(AT_ONCE))


def test_so_many_seeds_last_for_a_hundred_hours_on_average() -> None:
    """The nights are most of the time. A plan lasts a little longer than its nights."""
    nights = [step for seed in range(10 * SEEDS) for step in plan_of(seed).steps if step.what == NIGHT]
    assert sum(night_s(step.number) for step in nights) > 10 * 100 * 3600
