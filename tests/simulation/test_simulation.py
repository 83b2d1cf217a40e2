"""Seeds of the simulation: the same again, and fresh ones for a while."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FRESH_S = 20.0


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
    first = simulate("--verbose", "--seeds", "1", "6")
    again = simulate("--verbose", "--seeds", "1", "6")
    assert first.splitlines()[:-1] == again.splitlines()[:-1]
    assert "events" in first


def test_fresh_seeds_hold() -> None:
    print(simulate("--seconds", str(FRESH_S)))
