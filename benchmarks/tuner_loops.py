"""The tuner on real loops that nobody prepared for it (`benchmarks.loops`), against an exhaustive grid.

As in `tuner_grid`: the tuner starts from bad values, then every combination is set and measured, and at the
end both are measured in turns. The budget is the usual one. What the loop learns from is checked too: the
tuner may not change the work of an iteration.

`python -m benchmarks.tuner_loops [--lot development test] [--only gpt] [--seeds 0 1 2] [--cpu]`
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.live import Live, Point
from benchmarks.measure import Bench, bench, report, tell
from benchmarks.training import Started, spawn
from benchmarks.tuner_grid import Case, against, fastest, found_after, grid, tried
from hoptui.client.session import Session
from hoptui.domain.knobs import KnobValue
from hoptui.domain.tuning import Limits
from hoptui.presentation import sentences

TUNE_S = 360.0


def loop(name: str, *, work: str = "samples", images: bool = False, **grid: tuple[KnobValue, ...]) -> Case:
    """Return a loop with the grid of its knobs. It starts from the values that it declares."""
    return Case(name, work, (), {}, grid, images=images)


TEST = (
    loop("actor_critic", envs_per_call=(2, 8, 32, 64), foreach=(False, True)),
    loop("recurrent", work="tokens", rows_at_once=(1, 4, 8, 16, 32, 64), whole_sequence=(False, True)),
    loop("autoencoder", piece=(4, 16, 64, 256), gather=("loop", "stack", "index")),
)
CUDA: dict[str, tuple[Case, ...]] = {
    "development": (
        loop("gpt", micro_batch=(2, 8, 16, 32, 64), flash=(False, True), compile=(False, True)),
        loop("cnn", images=True, num_workers=(0, 2, 4, 8, 16), channels_last=(False, True)),
        loop("unet", chunk=(4, 16, 32, 64), recompute=(True, False), bf16=(False, True)),
    ),
    "test": TEST,
}
CPU: dict[str, tuple[Case, ...]] = {
    "development": (
        loop("gpt", micro_batch=(2, 4, 8, 16, 32, 64), flash=(False, True)),
        loop("cnn", images=True, num_workers=(0, 1, 2), channels_last=(False, True)),
        loop("unet", chunk=(4, 8, 16, 32, 64), recompute=(True, False)),
    ),
    "test": TEST,
}


def live(node: Bench, session: Session, case: Case, device: Sequence[str], seed: int) -> Live:
    """Return a run of a loop with the values that it has at its start."""
    name = f"loop-{time.monotonic_ns()}"
    command = [sys.executable, "-m", f"benchmarks.loops.{case.name}", "--name", name, "--seed", str(seed)]
    session.fetch(state=0)
    begun = time.monotonic()
    child = spawn(node, [*command, *device])
    return Live(node, session, Started(child, name, begun, ()), case.work)


def measured(
    case: Case, device: Sequence[str], seed: int, best: Point | None
) -> tuple[dict[str, Any], Point]:
    """Return what the tuner has come to in one run, and the best point of the grid, measured if unknown."""
    found: dict[str, Any] = {"seed": seed}
    with bench() as node, node.session() as session:
        run = live(node, session, case, device, seed)
        slow = run.rate(after_s=case.after_s)
        since = time.monotonic_ns()
        began = time.monotonic()
        state = run.tuned(Limits(), TUNE_S)
        values = {name: value for name, value in run.values().items() if name in case.grid}
        found |= {
            "found": values,
            "slow": round(slow, 1),
            "took_s": round(time.monotonic() - began, 1),
            "says": sentences.standing(state),
            "spent_s": round(state.spent * state.lived_s, 1),
            "trials": len(state.tried),
            "found_after": found_after(state),
            "frozen": state.frozen,
            "tried": tried(state),
            "out_of_memory": run.out_of_memory(since),
        }
        tell(f"{case.name}, seed {seed}", found)
        if best is None:
            points = grid(run, case)
            found["grid"] = points
            best = fastest(points, case)
        found |= against(run, case, values, best)
        found["speed_up"] = round(found["rate"]["median"] / slow, 2)
        found["end"] = run.end()["ending"]
    return found, best


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuner_loops")
    parser.add_argument("--lot", nargs="+", choices=CUDA, default=[*CUDA])
    parser.add_argument("--only", nargs="*", default=[], help="names of loops")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--cpu", action="store_true", help="small loops, one thread each")
    options = parser.parse_args(list(arguments))
    device = ("--device", "cpu", "--threads", "1") if options.cpu else ("--device", "cuda")
    cases = CPU if options.cpu else CUDA
    figures: dict[str, Any] = {}
    for lot in options.lot:
        for one in cases[lot]:
            name = one.name
            if options.only and name not in options.only:
                continue
            best: Point | None = None
            runs = []
            for seed in options.seeds:
                try:
                    found, best = measured(one, device, seed, best)
                except RuntimeError as error:  # the run was lost
                    found = {"seed": seed, "ratio": 0.0, "end": str(error)}
                runs.append(tell(f"{name}, seed {seed}", found))
            figures[name] = {"lot": lot, "best": best, "least": min(r["ratio"] for r in runs), "runs": runs}
    kind = "cpu" if options.cpu else "cuda"
    return report(f"tuner_loops_{kind}", {"device": kind, "loops": figures})


if __name__ == "__main__":
    main(sys.argv[1:])
