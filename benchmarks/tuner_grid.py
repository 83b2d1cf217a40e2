"""The tuner against an exhaustive grid: the best of all combinations set by hand, and what the tuner finds alone.

Everything happens on live runs. On the first seed's run every combination is set and measured; on every seed's run the
tuner then starts from the same slow values, and once it has nothing more to try, its values and the best of the grid are
measured in turns, so that the ratio is of one machine at one time.

`python -m benchmarks.tuner_grid [--only PART] [--seeds N] [--quick]`
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnosis import pictures
from benchmarks.live import Live, Point
from benchmarks.measure import Bench, bench, report, spread
from benchmarks.training import start
from hoptui.viewer.session import Session
from hoptui.wire.knobs import KnobValue
from hoptui.wire.tuning import Limits

LEAST_RATIO, MOST_TRIALS = 0.95, 20
TURNS = 3
PPO = ("ppo", "--env", "CartPole-v1", "--evaluate-every", "0", "--iterations", "100000000")
LM = ("lm", "--preset", "124m", "--evaluate-every", "0", "--iterations", "100000000")
VISION = ("vision", "--preset", "vit-b", "--evaluate-every", "0", "--iterations", "100000000")
IMAGES, SIDE = 2_048, 256


@dataclass(frozen=True)
class Case:
    """A workload, the values it starts from, the values of its knobs that the grid combines, and what the tuner may touch."""

    work: str
    arguments: tuple[str, ...]
    slow: Point
    grid: Mapping[str, tuple[KnobValue, ...]]
    learning: tuple[str, ...] = ()
    images: bool = False

    def points(self) -> Iterator[Point]:
        """Every combination."""
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))


CASES = {
    "PPO: num_envs × minibatch_size × grad_accum": Case(
        "env_steps",
        (*PPO, "--preset", "cartpole"),
        {"num_envs": 4_096, "minibatch_size": 32_768, "grad_accum": 4},
        {
            "num_envs": (4_096, 16_384, 65_536),
            "minibatch_size": (32_768, 131_072, 524_288),
            "grad_accum": (1, 4),
        },
        learning=("num_envs", "minibatch_size"),
    ),
    "LM: micro_batch × grad_accum": Case(
        "tokens",
        (*LM, "--batch-tokens", "131072"),
        {"micro_batch": 4},
        {"micro_batch": (4, 8, 16, 32, 64, 128)},
    ),
    "vision: batch_size × num_workers": Case(
        "samples",
        VISION,
        {"batch_size": 32, "num_workers": 1},
        {"batch_size": (32, 128, 512), "num_workers": (1, 4, 8, 14)},
        learning=("batch_size",),
        images=True,
    ),
}
QUICK = {
    "PPO, tiny: num_envs × grad_accum": Case(
        "env_steps",
        (*PPO, "--preset", "tiny"),
        {"num_envs": 8, "grad_accum": 4},
        {"num_envs": (8, 32), "grad_accum": (1, 4)},
        learning=("num_envs",),
    )
}


def live(
    node: Bench, session: Session, case: Case, device: Sequence[str], images: Path | None, seed: int
) -> Live:
    """A run of the case with its slow values; it is stopped by the caller, or else with the node."""
    slow = [word for name, value in case.slow.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    data = ("--data", str(images)) if images else ()
    return Live(node, session, start(node, (*case.arguments, *slow, *data, *device), seed=seed), case.work)


def grid(run: Live, case: Case) -> list[dict[str, Any]]:
    """The rate of every combination, None where the run does not hold it."""
    found = []
    for point in case.points():
        held = run.set(point)
        found.append({**point, "rate": round(run.rate(), 1) if held else None})
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    run.set(case.slow)
    return found


def against(run: Live, case: Case, best: Point) -> dict[str, Any]:
    """What the tuner finds from the slow values, beside the best of the grid."""
    slow = run.rate()
    state = run.tuned(Limits(learning=case.learning, budget=1.0))
    found = {name: value for name, value in run.values().items() if name in case.grid}
    mine, its = [], []
    for _ in range(TURNS):
        run.set(found)
        mine.append(run.rate())
        run.set(best)
        its.append(run.rate())
    worst = sum(trial.result == "failed" for trial in state.tried)
    return {
        "found": found,
        "trials": len(state.tried),
        "kept": sum(trial.result == "kept" for trial in state.tried),
        "failed": worst,
        "slow": round(slow, 1),
        "rate": spread(mine, 1),
        "grid": spread(its, 1),
        "ratio": round(statistics.median(mine) / statistics.median(its), 3),
        "speed_up": round(statistics.median(mine) / slow, 2),
        "tried": [
            {
                "changes": {c.knob: [c.before, c.value] for c in trial.changes},
                "result": trial.result,
                "gain": trial.measured.gain if trial.measured else None,
                "text": trial.text,
            }
            for trial in state.tried
        ],
    }


def measured(
    node: Bench, case: Case, device: Sequence[str], seeds: int, images: Path | None
) -> dict[str, Any]:
    """A case: its grid on the first seed, the tuner on all of them."""
    points: list[dict[str, Any]] = []
    runs, best = [], dict(case.slow)
    with node.session() as session:
        for seed in range(seeds):
            run = live(node, session, case, device, images if case.images else None, seed)
            if not points:
                points = grid(run, case)
                known = [point for point in points if point["rate"] is not None]
                best = dict(max(known, key=lambda point: point["rate"]))
                del best["rate"]
            runs.append({"seed": seed, **against(run, case, best), "end": run.end()["ending"]})
    return {"grid": points, "best": best, "runs": runs}


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuner_grid")
    parser.add_argument("--quick", action="store_true", help="try the mechanics on a CPU; keeps no result")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(list(arguments))
    device = ("--device", "cpu", "--threads", "1") if given.quick else ("--device", "cuda")
    cases = {n: c for n, c in (QUICK if given.quick else CASES).items() if n.startswith(given.only)}
    seeds = 1 if given.quick else given.seeds
    found = {}
    with tempfile.TemporaryDirectory(prefix="hoptui-images-") as folder, bench() as node:
        images = pictures(Path(folder), IMAGES, SIDE) if any(case.images for case in cases.values()) else None
        for name, case in cases.items():
            found[name] = measured(node, case, device, seeds, images)
    met = {}
    for name, case_found in found.items():
        runs = case_found["runs"]
        met[f"{name}: at least {LEAST_RATIO:.0%} of the grid's best"] = all(
            run["ratio"] >= LEAST_RATIO for run in runs
        )
        met[f"{name}: at most {MOST_TRIALS} trials"] = all(run["trials"] <= MOST_TRIALS for run in runs)
        met[f"{name}: nothing out of memory, no run lost"] = all(
            not run["failed"] and run["end"] == "stopped" for run in runs
        )
    if given.quick:
        print(json.dumps({"benchmark": "tuner_grid", "quick": True, "cases": found}), flush=True)
        return {"cases": found, "met": {}}
    return report("tuner_grid", {"cases": found, "met": met})


if __name__ == "__main__":
    main(sys.argv[1:])
