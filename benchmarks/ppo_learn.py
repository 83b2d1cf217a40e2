"""R2: seconds of training until CartPole is solved: a deterministic return of 475 over 64 whole episodes,
five seeds.

Compilation is left out: the time is that of so many steady iterations, by their median. What a person waits
for, from the start of the process to the end, stands beside it. With `--anchor PATH`, so does what a script
of a hundred lines takes.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import anchor
from benchmarks.measure import bench, spread, tell
from benchmarks.training import finish, options, trained

SOLVE = ("ppo", "--env", "CartPole-v1")
CASE = (*SOLVE, "--preset", "cartpole", "--num-envs", "4096", "--until-return", "475", "--evaluate-every",
        "2", "--iterations", "400")  # fmt: skip
QUICK = (*SOLVE, "--preset", "tiny", "--until-return", "12", "--evaluate-every", "2", "--iterations", "20")
SEEDS, QUICK_SEEDS = range(5), range(1)
ANCHOR, ANCHOR_QUICK = ("4096", "32768"), ("8", "64")
"""Environments and minibatch of the anchor."""
PASS_S, STRETCH_S = 0.5, 0.14


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    given = options(arguments)
    seeds: dict[str, dict[str, Any]] = {}
    beside: dict[str, Any] | None = None
    with bench() as node:
        if given.anchor:
            sizes = ANCHOR_QUICK if given.quick else ANCHOR
            beside = tell("anchor", anchor.learning(node, given.anchor, *sizes, quick=given.quick))
        for seed in QUICK_SEEDS if given.quick else SEEDS:
            found = trained(node, (*(QUICK if given.quick else CASE), *given.device), "env_steps", seed=seed)
            steady = statistics.median(i.seconds - i.aside_s for i in found.steady)
            one = {
                "training_s": round(steady * len(found.iterations), 4),
                "from_start_to_end_s": round(found.iterations[-1].end_s - found.begun_s, 2),
                "passed": found.exit_status == 0,
                "result": found.result,
            }
            seeds[f"seed {seed}"] = tell(f"seed {seed}", one)
    times = [seed["training_s"] for seed in seeds.values()]
    solved = all(seed["passed"] for seed in seeds.values())
    met, stretch = {}, {}
    if not given.quick:
        met = {f"all seeds solved, median at most {PASS_S} s": solved and statistics.median(times) <= PASS_S}
        stretch = {f"median at most {STRETCH_S} s": solved and statistics.median(times) <= STRETCH_S}
    figures = {
        "unit": "seconds of training",
        "command": " ".join(CASE),
        "seeds": seeds,
        "training_s": spread(times),
        "anchor": beside,
    }
    return finish("ppo_learn", given, {**figures, "met": met, "stretch": stretch})


if __name__ == "__main__":
    main(sys.argv[1:])
