"""What the tuner finds alone from the settings that guides for H100 and H200 call slow, beside what the
guides promise.

Each run starts as in the "before" of `guides.py`, with the knobs of learning that its guide turned allowed to
the tuner, and its rate is measured before and once the tuner has nothing more to try, or after `TUNE_S`. What
a run is started with and no knob of a running one, such as the width of a policy, stays.

`python -m benchmarks.tuner_guides [--only RL LM vision] [--quick]`; each pair is said on stderr as soon as it
is done.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import guides
from benchmarks.live import Live
from benchmarks.measure import Bench, bench, report, tell
from benchmarks.training import start
from benchmarks.tuner_grid import tried
from hoptui.client.session import Session
from hoptui.domain.tuning import Limits
from hoptui.presentation import sentences

PROMISED = {"RL": None, "LM": "7 ×", "vision": "10–20 ×"}
"""What the guide of a workload says of its settings on one GPU, if it gives a ratio."""
LEARNING = {"RL": ("num_envs", "minibatch_size"), "LM": (), "vision": ("batch_size",)}
"""Knobs of learning that the guide of a workload turned."""
ENDLESS = "100000000"
TUNE_S = 400.0


def endless(before: Sequence[str], iterations: str = ENDLESS) -> tuple[str, ...]:
    """The command of a pair's "before", which here is ended by the benchmark."""
    at = before.index("--iterations")
    return (*before[:at], "--iterations", iterations, *before[at + 2 :])


def tuned(node: Bench, session: Session, kind: str, work: str, arguments: Sequence[str]) -> dict[str, Any]:
    """One run from its slow settings to where the tuner leaves it."""
    run = Live(node, session, start(node, arguments), work)
    before = run.values()
    slow = run.rate()
    began, since = time.monotonic(), time.monotonic_ns()
    state = run.tuned(Limits(learning=LEARNING[kind], budget=1.0), TUNE_S)
    took_s = time.monotonic() - began
    after, fast = run.values(), run.rate()
    return {
        "command": " ".join(arguments),
        "before": round(slow, 1),
        "after": round(fast, 1),
        "speed_up": round(fast / slow, 2),
        "guide": PROMISED[kind],
        "found": {name: [before[name], value] for name, value in after.items() if before[name] != value},
        "took_s": round(took_s, 1),
        "done": state.stand == "holding",
        "says": sentences.standing(state),
        "out_of_memory": run.out_of_memory(since),
        "trials": len(state.tried),
        "kept": sum(trial.result == "kept" for trial in state.tried),
        "failed": sum(trial.result == "failed" for trial in state.tried),
        "tried": tried(state),
        "end": run.end()["ending"],
    }


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuner_guides")
    parser.add_argument("--quick", action="store_true", help="try the mechanics on a CPU; keeps no result")
    parser.add_argument("--only", nargs="+", choices=LEARNING, default=[*LEARNING], help="these alone")
    given = parser.parse_args(list(arguments))
    device = ("--device", "cpu", "--threads", "1") if given.quick else ("--device", "cuda")
    found: dict[str, Any] = {}
    with bench() as node, node.session() as session:
        for name, (work, before, _) in (guides.QUICK if given.quick else guides.PAIRS).items():
            kind = name.split(":")[0]
            if kind in given.only:
                try:
                    one = tuned(node, session, kind, work, (*endless(before), *device))
                except RuntimeError as error:  # the run was lost
                    one = {"end": str(error)}
                found[name] = tell(name, one)
    if given.quick:
        print(json.dumps({"benchmark": "tuner_guides", "quick": True, "pairs": found}), flush=True)
        return {"pairs": found, "met": {}}
    met = {
        f"{name}: never out of memory, no run lost": not one.get("out_of_memory") and one["end"] == "stopped"
        for name, one in found.items()
    }
    part = [] if given.only == [*LEARNING] else given.only
    return report("_".join(("tuner_guides", *part)), {"pairs": found, "met": met})


if __name__ == "__main__":
    main(sys.argv[1:])
