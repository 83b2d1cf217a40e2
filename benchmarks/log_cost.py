"""What one `run.log` of 40 metrics costs the training thread, paced at 200 Hz, with 0, 1 and 4 viewers and a
stopped one.

Beside it, in the same run: a buffered print, TensorBoard and wandb offline where they are installed. Building
the dict is outside of the timed region. Microseconds.
"""

from __future__ import annotations

import json
import signal
from typing import Any

from benchmarks.measure import Bench, bench, report, tell, until

SECONDS = 10.0

LOGGER = """
import json, random, sys, time
kind, seconds, directory = sys.argv[1], float(sys.argv[2]), sys.argv[3]
if kind == "hoptui":
    import hoptui
    run = hoptui.connect("log-cost")
    log = lambda step, values: run.log(values)
elif kind == "hoptui, in a loop of boundaries":
    import hoptui
    run = hoptui.connect("log-cost")
    log = lambda step, values: run.log(values)
elif kind == "print":
    out = open(directory + "/log.txt", "w")
    log = lambda step, values: print(step, " ".join(f"{k}={v:.6g}" for k, v in values.items()), file=out)
elif kind == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(directory)
    def log(step, values):
        for name, value in values.items():
            writer.add_scalar(name, value, step)
elif kind == "wandb offline":
    import wandb
    quiet = wandb.Settings(silent=True, console="off")
    run = wandb.init(mode="offline", dir=directory, project="cost", settings=quiet)
    log = lambda step, values: run.log(values, step=step)
print("ready", flush=True)
sys.stdin.readline()
costs, names = [], [f"metric_{i}" for i in range(40)]
next_at = time.perf_counter()
for step in range(int(200 * seconds)):
    if kind.endswith("boundaries"):
        run.boundary(step)
    values = {name: random.random() for name in names}
    before = time.perf_counter()
    log(step, values)
    costs.append((time.perf_counter() - before) * 1e6)
    next_at += 0.005
    time.sleep(max(0.0, next_at - time.perf_counter()))
costs = sorted(costs[len(costs) // 10:])
at = lambda q: round(costs[min(len(costs) - 1, int(q * len(costs)))], 1)
shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
print(json.dumps({name: at(q) for name, q in shares.items()} | {"n": len(costs)}), flush=True)
"""

VIEWER = """
import sys
from hoptui.client.client import Client
client = Client(client="bench")
client.start()
client.watch(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
"""

CASES = {
    "hoptui, no viewer": ("hoptui", 0, False),
    "hoptui, 1 viewer": ("hoptui", 1, False),
    "hoptui, 4 viewers": ("hoptui", 4, False),
    "hoptui, 4 viewers and a stopped one": ("hoptui", 4, True),
    "hoptui, in a loop of boundaries, 1 viewer": ("hoptui, in a loop of boundaries", 1, False),
    "print, buffered": ("print", 0, False),
    "tensorboard": ("tensorboard", 0, False),
    "wandb offline": ("wandb offline", 0, False),
}
"""What logs, before how many viewers, and whether one more is stopped."""


def measure(node: Bench, kind: str, viewers: int, stopped: bool) -> dict[str, Any]:
    """One logger with so many viewers."""
    logger = node.python(LOGGER, kind, str(SECONDS), str(node.base))
    assert logger.stdout is not None
    if logger.stdout.readline().strip() != "ready":
        return {"not measured": f"{kind} is not installed"}
    watching = []
    if viewers or stopped:
        run = node.run("log-cost").run
        for _ in range(viewers + stopped):
            viewer = node.python(VIEWER, run)
            assert viewer.stdout is not None
            until(viewer.stdout.readline, what="a viewer")
            watching.append(viewer)
        if stopped:
            watching[-1].send_signal(signal.SIGSTOP)
    assert logger.stdin is not None
    logger.stdin.write("go\n")
    logger.stdin.flush()
    figures: dict[str, Any] = json.loads(logger.stdout.readline())
    for child in (*watching, logger):
        child.kill()
        child.wait(10)
    return figures


def main() -> None:
    """Measure and report."""
    with bench() as node:
        figures = {name: tell(name, measure(node, *case)) for name, case in CASES.items()}
    report("log_cost", {"unit": "microseconds a call of 40 metrics, 200 Hz", "figures": figures})


if __name__ == "__main__":
    main()
