"""Seeds of the simulation. They are the same in each run: `make soak` draws fresh ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SEEDS = 20


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


def test_seeds_hold() -> None:
    assert f"{SEEDS} seeds, 0 failed" in simulate("--first", "1", "--count", str(SEEDS))
