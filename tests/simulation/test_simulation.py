"""Fixed seeds of the simulation. A failure names its seed, and the command that replays it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.actions import NIGHT, night_s
from tests.simulation.scenario import plan_of

SEEDS, AT_ONCE = range(1, 25), 3
"""Fixed, so that a change of the code is the only reason for a failure. `make soak` draws fresh seeds."""


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


@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
def test_seeds_hold(first: int) -> None:
    assert f"{AT_ONCE} seeds, 0 failed" in simulate("--first", str(first), "--count", str(AT_ONCE))


def test_the_seeds_have_nights_and_services() -> None:
    """The nights are most of the time. A plan lasts a little longer than its nights."""
    plans = [plan_of(seed) for seed in SEEDS]
    nights = [step for plan in plans for step in plan.steps if step.what == NIGHT]
    assert sum(night_s(step.number) for step in nights) > 38 * 3600
    assert sum(plan.serves for plan in plans) == 2
