"""The tuner against an exhaustive grid: what it finds alone, and the best of all combinations set by hand.

Everything happens on live runs. On every seed's run the tuner starts from the same slow values. On the first
of them every combination is then set and measured. At the end the tuner's values and the best of the grid are
measured in turns, so that the ratio is of one machine at one time.

All combinations share one run, and each is as fast as in a new one: a size is compiled for
itself and captured for itself, never for many sizes and never eager
(`trainer/hoptui_trainer/common/compilation.py`), workers are started anew, and an iteration counts only once
all that is over. What a process keeps of other sizes is memory, which the tuner would see: so it is there
first. The best of the grid is measured again in the turns. What the tuner has turned besides the grid's knobs
stays so for all of them.

    python -m benchmarks.tuner_grid [--only ppo lm vision] [--seeds 0 1 2] [--quick]
    python -m benchmarks.tuner_grid --only vision --seeds 1 2 --best '{"batch_size": 128, "num_workers": 8}'

A case and a seed are one process's work: on a node of several GPUs start one for each, with
its own CUDA_VISIBLE_DEVICES. With the best point of a grid from another process on the same kind of machine,
the grid is not measured again. Each finished point is reported on stderr. A case and a seed took, in
seconds on an H100 (start + tuner's trials + points of the grid + turns):

    ppo     47 + 116 + 24 + 14 = 201
    lm      50 + 176 + 16 + 11 = 253
    vision  47 + 337 + 76 + 44 = 504
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnosis import pictures
from benchmarks.live import Live, Point
from benchmarks.measure import Bench, bench, report, spread, tell
from benchmarks.training import start
from hoptui.client.session import Session
from hoptui.domain.knobs import KnobValue
from hoptui.domain.tuning import Limits, TunerState
from hoptui.presentation import sentences

LEAST_RATIO, MOST_TRIALS = 0.95, 20
TURNS = 3
READ_S = 3.0
"""Images come so long after a change from readers that were at work before it."""
TUNE_S = 330.0
"""A tuner that has not tried everything by then is measured where it has come to."""
PPO = ("ppo", "--env", "CartPole-v1", "--evaluate-every", "0", "--iterations", "100000000")
LM = ("lm", "--preset", "124m", "--evaluate-every", "0", "--iterations", "100000000")
VISION = ("vision", "--preset", "vit-b", "--evaluate-every", "0", "--iterations", "100000000")
BYTES = ("--tokenizer", "bytes", "--vocab-size", "50304")
"""The same products of matrices as with byte pairs, which it takes half a minute to learn."""
ROLLOUT = 32
IMAGES, SIDE = 2_048, 256


def anything(_: Point) -> bool:
    """Accept every combination: in most grids they all differ."""
    return True


@dataclass(frozen=True)
class Case:
    """A workload, the values it starts from, the values of its knobs that the grid combines, and what the
    tuner may touch.

    `possible` leaves out combinations that the run would cut down to another one.
    """

    name: str
    work: str
    arguments: tuple[str, ...]
    slow: Point
    grid: Mapping[str, tuple[KnobValue, ...]]
    learning: tuple[str, ...] = ()
    images: bool = False
    possible: Callable[[Point], bool] = anything

    @property
    def after_s(self) -> float:
        """Seconds after a change that do not count."""
        return READ_S if self.images else 0.0

    def points(self) -> list[Point]:
        """Every combination, each next to one from which it differs in a single knob: a change costs
        seconds."""
        found = [dict(zip(self.grid, values, strict=True)) for values in snake(tuple(self.grid.values()))]
        return [point for point in found if self.possible(point)]


def snake(axes: Sequence[Sequence[KnobValue]]) -> Iterator[tuple[KnobValue, ...]]:
    """The product of these, such that two in a row differ in one place."""
    if not axes:
        yield ()
        return
    for i, value in enumerate(axes[0]):
        rest = list(snake(axes[1:]))
        yield from ((value, *others) for others in (reversed(rest) if i % 2 else rest))


CASES = {
    "ppo": Case(
        "PPO: num_envs × minibatch_size × grad_accum",
        "env_steps",
        (*PPO, "--preset", "cartpole", "--rollout-len", str(ROLLOUT)),
        {"num_envs": 4_096, "minibatch_size": 32_768, "grad_accum": 4},
        {
            "num_envs": (4_096, 16_384, 65_536),
            "minibatch_size": (32_768, 131_072, 524_288),
            "grad_accum": (1, 4),
        },
        learning=("num_envs", "minibatch_size"),
        possible=lambda point: int(point["minibatch_size"]) <= ROLLOUT * int(point["num_envs"]),
    ),
    "lm": Case(
        "LM: micro_batch × grad_accum",
        "tokens",
        (*LM, *BYTES, "--batch-tokens", "65536"),
        {"micro_batch": 4},
        {"micro_batch": (4, 8, 16, 32, 64)},
    ),
    "vision": Case(
        "vision: batch_size × num_workers",
        "samples",
        VISION,
        {"batch_size": 32, "num_workers": 1},
        {"batch_size": (32, 128, 512), "num_workers": (1, 4, 8, 14)},
        learning=("batch_size",),
        images=True,
    ),
}
QUICK = {
    "ppo": Case(
        "PPO, tiny: num_envs × grad_accum",
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
    data = ("--data", str(images)) if case.images else ()
    return Live(node, session, start(node, (*case.arguments, *slow, *data, *device), seed=seed), case.work)


def tuned(run: Live, case: Case) -> dict[str, Any]:
    """What the tuner finds from the slow values, and what memory that ran out it took for it."""
    began, since = time.monotonic(), time.monotonic_ns()
    slow = run.rate(after_s=case.after_s)
    state = run.tuned(Limits(learning=case.learning, budget=1.0), TUNE_S)
    return {
        "found": {name: value for name, value in run.values().items() if name in case.grid},
        "slow": round(slow, 1),
        "took_s": round(time.monotonic() - began, 1),
        "done": state.stand == "holding",
        "says": sentences.standing(state),
        "out_of_memory": run.out_of_memory(since),
        "trials": len(state.tried),
        "found_after": found_after(state),
        **{result: sum(trial.result == result for trial in state.tried) for result in ("kept", "failed")},
        "tried": tried(state),
    }


def found_after(state: TunerState) -> int:
    """The trials until the values that the tuner stayed with were in force: those after it were taken
    back."""
    return max((i for i, trial in enumerate(state.tried, 1) if trial.result == "kept"), default=0)


def tried(state: TunerState) -> list[dict[str, Any]]:
    """Its trials, in figures."""
    return [
        {
            "changes": {c.knob: [c.before, c.value] for c in trial.changes},
            "result": trial.result,
            "before": trial.measured.before if trial.measured else None,
            "gain": trial.measured.gain if trial.measured else None,
            "seconds": trial.seconds,
            "text": sentences.why(trial),
        }
        for trial in state.tried
    ]


def grid(
    run: Live, case: Case, points: Sequence[Point] | None = None, best: float = 0.0
) -> list[dict[str, Any]]:
    """The rate of every combination, or of `points`; None where the run does not hold it. Of those far below
    the best, which was `best` so far, a rough one."""
    found: list[dict[str, Any]] = []
    for point in case.points() if points is None else points:
        began = time.monotonic()
        rate = round(run.rate(best, after_s=case.after_s), 1) if run.set(point) else None
        best = max(best, rate or 0.0)
        found.append({**point, "rate": rate, "took_s": round(time.monotonic() - began, 1)})
        tell(case.name, found[-1])
    return found


def against(run: Live, case: Case, mine: Point, best: Point) -> dict[str, Any]:
    """The rates of two points, taken in turns; memory that runs out counts with `mine` alone. Of one point
    there is nothing to compare."""
    ours, its = [], []
    short: list[str] = []
    if mine == best:
        run.set(mine)  # the run has the values of the last point of the grid
        same = spread([run.rate(after_s=case.after_s) for _ in range(TURNS)], 1)
        return {"rate": same, "grid": same, "ratio": 1.0, "same_point": True, "later_short": short}
    for _ in range(TURNS):
        since = time.monotonic_ns()
        run.set(mine)
        ours.append(run.rate(after_s=case.after_s))
        short += run.out_of_memory(since)
        run.set(best)
        its.append(run.rate(after_s=case.after_s))
    ratio = statistics.median(ours) / statistics.median(its)
    return {"rate": spread(ours, 1), "grid": spread(its, 1), "ratio": round(ratio, 3), "later_short": short}


def measured(
    case: Case, device: Sequence[str], seeds: Sequence[int], images: Path | None, best: Point | None
) -> dict[str, Any]:
    """A case: the tuner on every seed, the grid on the first of them unless its `best` is known. A lost
    run is reported as such.

    Every seed has its own daemon, which does not know the results of earlier seeds.
    """
    points: list[dict[str, Any]] = []
    runs = []
    for seed in seeds:
        label = f"{case.name}, seed {seed}"
        found: dict[str, Any] = {"seed": seed}
        runs.append(found)
        with bench() as node, node.session() as session:
            try:
                run = live(node, session, case, device, images, seed)
                found |= tell(label, tuned(run, case))
                if best is None:
                    points = grid(run, case)
                    best = fastest(points, case)
                turns = against(run, case, found["found"], best)
                found["out_of_memory"] += turns.pop("later_short")
                turns["speed_up"] = round(turns["rate"]["median"] / found["slow"], 2)
                found |= tell(label, turns | {"end": run.end()["ending"]})
            except RuntimeError as error:
                found |= tell(label, {"end": str(error)})
    return {"grid": points, "best": best, "runs": runs}


def fastest(points: Sequence[Mapping[str, Any]], case: Case) -> Point:
    """The best point of a grid."""
    best = max((point for point in points if point["rate"] is not None), key=lambda point: point["rate"])
    return {name: best[name] for name in case.grid}


def met(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """What was to be reached; by a run that was lost before, nothing was."""
    return {
        f"{name}: at least {LEAST_RATIO:.0%} of the grid's best": all(
            run.get("ratio", 0.0) >= LEAST_RATIO for run in runs
        ),
        f"{name}: found within {MOST_TRIALS} trials": all(
            run.get("found_after", math.inf) <= MOST_TRIALS for run in runs
        ),
        f"{name}: never out of memory, no run lost": all(
            not run.get("out_of_memory") and run["end"] == "stopped" for run in runs
        ),
    }


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report. A part is a separate result, so that several can run in parallel."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuner_grid")
    parser.add_argument("--quick", action="store_true", help="try the mechanics on a CPU; keeps no result")
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES], help="these cases alone")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--best", type=json.loads, help="the best point of the grid, as JSON: of one case")
    given = parser.parse_args(list(arguments))
    if given.best is not None and (len(given.only) > 1 or set(given.best) != set(CASES[given.only[0]].grid)):
        parser.error("--best takes a value for each knob of the grid of the one case that --only names")
    whole = given.only == [*CASES] and given.seeds == [0, 1, 2]
    device = ("--device", "cpu", "--threads", "1") if given.quick else ("--device", "cuda")
    cases = QUICK if given.quick else {name: CASES[name] for name in given.only}
    seeds = given.seeds[:1] if given.quick else given.seeds
    found: dict[str, Any] = {}
    reached: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="hoptui-images-") as folder:
        images = pictures(Path(folder), IMAGES, SIDE) if any(c.images for c in cases.values()) else None
        for case in cases.values():
            found[case.name] = measured(case, device, seeds, images, given.best)
            reached |= met(case.name, found[case.name]["runs"])
    if given.quick:
        print(json.dumps({"benchmark": "tuner_grid", "quick": True, "cases": found}), flush=True)
        return {"cases": found, "met": {}}
    part = [] if whole else [*given.only, *map(str, given.seeds)]
    return report("_".join(("tuner_grid", *part)), {"cases": found, "met": reached})


if __name__ == "__main__":
    main(sys.argv[1:])
