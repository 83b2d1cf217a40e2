"""GPU readings by phase, through the real daemon: a run with two phases in turn, one that fills the SMs and
one that uses one of them.

`python -m benchmarks.phase_readings [--seconds S]`. Phases are 10, 3, 1 and 0.1 times as long as the interval
of samples (half a second, as with a viewer). Long ones have to be right, short ones right or unknown. Each
once with phases on the host's clock, where every phase waits for the GPU, and once with the events of the
trainer's clock, where the host is an iteration ahead. About three minutes. Needs a GPU with performance
counters.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from benchmarks.measure import Bench, bench, newer_state, report, tell

INTERVAL_S = 0.5
TIMES = (10.0, 3.0, 1.0, 0.1)
LEAST_WORK, MOST_QUIET = 85.0, 5.0
"""% of SM active: a large matmul has more, one block that spins has less."""

RUN = """
import sys, time, torch, hoptui
from hoptui_trainer.common.phases import phase_clock
name, clock_name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
c = torch.empty_like(a)
def work(n):
    for _ in range(n):
        torch.mm(a, a, out=c)
def timed(f, n):
    f(max(1, n // 10)); torch.cuda.synchronize()
    start = time.monotonic(); f(n); torch.cuda.synchronize()
    return (time.monotonic() - start) / n
products = max(1, round(seconds / timed(work, 400)))
cycles = round(seconds / timed(lambda n: torch.cuda._sleep(n), 1_000_000_000))
run = hoptui.connect(name)
run.gpus(["GPU-" + str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-")])
clock = phase_clock(run, torch.device("cuda"))
for _ in run.iterations():
    if clock_name == "host":
        with run.phase("work"):
            work(products); torch.cuda.synchronize()
        with run.phase("quiet"):
            torch.cuda._sleep(cycles); torch.cuda.synchronize()
    else:
        with clock.queued("work"):
            work(products)
        with clock.queued("quiet"):
            torch.cuda._sleep(cycles)
        clock.end_iteration()
"""


def measured(node: Bench, clock: str, times: float, seconds: float) -> dict[str, Any]:
    """One run: what the daemon says of its phases after so many seconds, at 2 Hz."""
    name = f"{clock}-{times:g}"
    length = times * INTERVAL_S
    child = node.python(RUN, name, clock, str(length))
    try:
        run = node.run(name)
        end = time.monotonic() + max(seconds, 6 * length)
        found: dict[str, Any] = {}
        with node.session() as session:
            state = 0
            while time.monotonic() < end and child.poll() is None:
                delta = newer_state(session, state, wait_s=0.5, hz=1 / INTERVAL_S)
                state = delta.state
                vital = delta.vitals.get(run.run)
                if vital is not None:
                    found = {p.phase: {**p.readings, "samples": p.samples} for p in vital.phases}
        if child.poll() is not None:
            raise RuntimeError("the run ended: it needs a GPU and the trainer")
    finally:
        child.kill()
        child.wait(30)
    return {"phase_s": length, "phases": found}


def right(found: dict[str, Any]) -> bool:
    """Whether nothing that is known is wrong."""
    work, quiet = (found["phases"].get(name, {}).get("sm_active") for name in ("work", "quiet"))
    return (work is None or work >= LEAST_WORK) and (quiet is None or quiet <= MOST_QUIET)


def main() -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run, or six phases")
    options = parser.parse_args(sys.argv[1:])
    found: dict[str, dict[str, Any]] = {}
    met: dict[str, bool] = {}
    with bench() as node:
        for clock in ("host", "events"):
            for times in TIMES:
                name = f"{clock} {times:g}×"
                found[name] = tell(name, measured(node, clock, times, options.seconds))
                met[f"{name}: nothing is wrong"] = right(found[name])
                if times >= 3:
                    met[f"{name}: both phases are known"] = set(found[name]["phases"]) == {"work", "quiet"}
    return report("phase_readings", {"interval_s": INTERVAL_S, "runs": found, "met": met})


if __name__ == "__main__":
    sys.exit(0 if all(main()["met"].values()) else 1)
