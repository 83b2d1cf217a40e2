"""`python -m tests.simulation`: run seeds, or replay one.

python -m tests.simulation --seed 42        one seed, with its plan
python -m tests.simulation --seconds 30     fresh seeds for half a minute
python -m tests.simulation --first 0 --count 2000
python -m tests.simulation --jobs --seed 42   a run on several nodes; so with the other options
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time

from tests.simulation import job_scenario, scenario
from tests.simulation.scenario import Result


def main() -> int:
    """Return 1 if an invariant was violated."""
    options = _parser().parse_args()
    run_seed = job_scenario.run_seed if options.jobs else scenario.run_seed
    if options.seed is not None:
        plan = (job_scenario if options.jobs else scenario).plan_of(options.seed)
        print(*plan.steps, sep="\n")
        result = run_seed(options.seed)
        _report(result, options)
        return int(bool(result.violations))
    first = options.first if options.first is not None else random.SystemRandom().randrange(1 << 40)
    print(f"seeds {options.seeds or f'from {first}'}", flush=True)
    began, virtual_s, failed, done = time.monotonic(), 0.0, 0, 0
    for seed in options.seeds or itertools.count(first):
        passed = time.monotonic() - began
        if (options.count and done >= options.count) or (options.seconds and passed >= options.seconds):
            break
        result = run_seed(seed)
        done += 1
        virtual_s += result.virtual_s
        if result.violations or options.verbose:
            failed += bool(result.violations)
            _report(result, options)
    passed = time.monotonic() - began
    rate = virtual_s / 3600 / passed
    print(f"{done} seeds, {failed} failed; {virtual_s / 3600:.1f} simulated hours, {rate:.2f} hours a second")
    return int(bool(failed))


def _report(result: Result, options: argparse.Namespace) -> None:
    seed = result.seed
    print(
        f"seed {seed}: {result.virtual_s:.0f} s, {result.commands} commands, {result.rows} rows, "
        f"{result.events} events"
    )
    for violation in result.violations[:10]:
        print(f"  {violation}")
    if result.violations:
        jobs = "--jobs " if options.jobs else ""
        print(f"  replay: python -m tests.simulation {jobs}--seed {seed}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="replay this seed and print its plan")
    parser.add_argument("--jobs", action="store_true", help="a run on several nodes")
    parser.add_argument("--first", type=int, help="first seed (default: a random one)")
    parser.add_argument("--count", type=int, default=0, help="how many seeds")
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="these seeds")
    parser.add_argument("--verbose", action="store_true", help="report every seed")
    parser.add_argument("--seconds", type=float, default=0.0, help="for how long")
    return parser


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main())
