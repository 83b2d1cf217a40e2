"""Planted defects: each breaks the real code in one place, and the simulation must find it.

    python -m tests.simulation.planted                     all of them, as a table
    python -m tests.simulation.planted "no deduplication"  one of them
    python -m tests.simulation.planted --published         first the seeds of the published table

A simulation that finds no defect proves nothing. So this is the test of the simulation.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.simulation import (  # noqa: F401 - each adds its defects to the list
    job_scenario,
    planted_daemon,
    planted_files,
    planted_jobs,
    planted_ranks,
    planted_runs,
    planted_services,
    scenario,
)
from tests.simulation.actions import NIGHT
from tests.simulation.defects import DEFECTS, MOST_SEEDS, Found, Planted, planted
from tests.simulation.scenario import Result

TABLE = Path(__file__).parents[2] / "docs" / "internals" / "simulation.md"


def published() -> dict[str, int]:
    """Return the seed that has found each defect, as the documentation says."""
    rows = re.findall(r"^\| (.+) \| (\d+) \| `\w+` \|$", TABLE.read_text(), re.MULTILINE)
    return {name: int(seed) for name, seed in rows}


def named(name: str) -> Planted:
    """Return the defect with this name."""
    return next(each for each in DEFECTS if each.name == name)


def find(name: str, most: int = MOST_SEEDS, first: int = 0) -> Found:
    """Run seeds until one finds the defect, and holds without it."""
    wanted = named(name)
    plan_of, execute = _of_scenario(wanted)
    began = time.monotonic()
    for seed in range(first, first + most):
        plan = plan_of(seed)
        if not wanted.needs <= (kinds := {step.what for step in plan.steps}):
            continue
        if NIGHT in kinds and NIGHT not in wanted.needs:  # a minute each
            continue
        with planted(wanted):
            violations = execute(plan).violations
        if violations and not execute(plan).violations:
            return Found(name, seed, violations[0], time.monotonic() - began)
    return Found(name, None, "", time.monotonic() - began)


def _of_scenario(wanted: Planted) -> tuple[Callable[[int], Any], Callable[[Any], Result]]:
    """Return what makes a plan of a seed, and what carries it out."""
    if wanted.jobs:
        return job_scenario.plan_of, job_scenario.execute
    return scenario.plan_of, scenario.execute


def main() -> int:
    """Print the table. Return 1 if a defect was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted")
    parser.add_argument("names", nargs="*", help="parts of names (default: all)")
    parser.add_argument("--most", type=int, default=MOST_SEEDS, help="seeds for each")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--published", action="store_true", help="try the published seed of each first")
    options = parser.parse_args()
    names = [d.name for d in DEFECTS if not options.names or any(n in d.name for n in options.names)]
    print("| planted defect | found by seed | found as |\n|---|---|---|", flush=True)
    missed = 0
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(
            _Search(options.most, published() if options.published else {}), names
        ):
            missed += found.seed is None
            told = found.violation.partition(":")[0] if found.seed is not None else "not found"
            print(f"| {found.name} | {found.seed} | `{told}` |", flush=True)
    print(f"\n{len(names) - missed} of {len(names)} found")
    return int(bool(missed))


class _Search:
    """`find` with a limit, for a pool. It tries the seeds `first` before all others."""

    def __init__(self, most: int, first: dict[str, int]) -> None:
        self._most, self._first = most, first

    def __call__(self, name: str) -> Found:
        if name in self._first:
            again = find(name, 1, self._first[name])
            if again.seed is not None:
                return again
        return find(name, self._most)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.planted", *sys.argv[1:]])
    sys.exit(main())
