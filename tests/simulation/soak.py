"""`make soak HOURS=n`: fresh seeds in parallel processes for hours.

python -m tests.simulation.soak --hours 2 --jobs 4
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator

from tests.simulation.scenario import Result, run_seed


def main() -> int:
    """Return 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak")
    parser.add_argument("--hours", type=float, default=1.0, help="how long, in real time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args()
    first = random.SystemRandom().randrange(1 << 40)
    print(f"seeds from {first}, {options.jobs} processes", flush=True)
    began, done, failed, virtual_s = time.monotonic(), 0, 0, 0.0
    until = began + 3600 * options.hours

    def seeds() -> Iterator[int]:
        seed = first
        while time.monotonic() < until:
            while seed - first > done + 8 * options.jobs:
                time.sleep(0.05)  # the pool asks for seeds long before it needs them
            yield seed
            seed += 1

    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=200) as pool:
        for result in pool.imap_unordered(run_seed, seeds()):
            done += 1
            virtual_s += result.virtual_s
            if result.violations:
                failed += 1
                _report(result)
            if not done % 100:
                _summary(done, failed, virtual_s, time.monotonic() - began)
    _summary(done, failed, virtual_s, time.monotonic() - began)
    return int(bool(failed))


def _report(result: Result) -> None:
    print(f"python -m tests.simulation --seed {result.seed}")
    for violation in result.violations[:5]:
        print(f"  {violation}", flush=True)


def _summary(done: int, failed: int, virtual_s: float, passed: float) -> None:
    hours = virtual_s / 3600
    print(f"{done} seeds, {failed} failed; {hours:.1f} simulated hours, {hours / passed:.2f} a second")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.soak", *sys.argv[1:]])
    sys.exit(main())
