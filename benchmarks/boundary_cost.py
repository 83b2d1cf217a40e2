"""What a boundary with nothing pending costs the training thread: alone, with 2 ranks, with 64 simulated.

Beside it: `run.log` of 40 metrics and one of 3, and how long a `set` takes with 2 ranks. Each case makes many
short slices with pauses between them, as an iteration would. Other load on the machine makes slices slower,
never faster, so the least median of a slice says most. With `--beside TREE`, each round also measures another
version of hoptui, in turn, and the result has the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
from pathlib import Path
from typing import Any

from benchmarks.measure import Bench, bench, quantile, report, tell

SLICES, CALLS = 300, 40
ROUNDS = 3
CHANGES = 8

CHILD = """
import json, os, sys, threading, time
import hoptui
kind, slices, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank = int(os.environ.get("RANK", "0"))


class Keys:
    # A store of many ranks in this process: the others are there and ask for nothing.
    rank, world = 0, 64

    def __init__(self):
        self.values = {f"0/beat/{rank}": b"1" for rank in range(64)}

    def set(self, key, value):
        self.values[key] = value

    def get(self, key):
        return self.values.get(key)

    def delete(self, key):
        self.values.pop(key, None)


if kind == "boundary, 2 ranks":
    import torch.distributed as dist

    dist.init_process_group("gloo")
    run = hoptui.connect("boundary-cost")
elif kind == "boundary, 64 simulated ranks":
    run = hoptui.connect("boundary-cost", ranks=Keys())
else:
    run = hoptui.connect("boundary-cost")
values = {f"metric_{i}": i / 7 for i in range(40)}
clock, step = time.perf_counter_ns, 0
for _ in range(200):  # connect, and warm up
    run.boundary(step)
    step += 1
    time.sleep(0.005)
medians, every, empty = [], [], []
for _ in range(slices):
    costs = []
    for _ in range(calls):
        if kind == "log, 40 metrics":
            run.boundary(step)
            began = clock()
            run.log(values)
        elif kind == "log, 3 metrics":
            run.boundary(step)
            began = clock()
            run.log(loss=0.5, lr=0.1, samples=64)
        else:
            began = clock()
            run.boundary(step)
        costs.append(clock() - began)
        step += 1
    began = clock()
    empty.append(clock() - began)
    costs.sort()
    medians.append(costs[len(costs) // 2])
    every += costs
    time.sleep(0.004)
if kind == "boundary, 2 ranks":
    dist.barrier()
if rank == 0:
    print(json.dumps({"medians": medians, "every": every, "empty": min(empty)}), flush=True)
run.close()
"""

SET = """
import json, os, sys, time
import torch, torch.distributed as dist
import hoptui
seconds, changes = float(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
run = hoptui.connect("set-cost")
applied = []
knob = run.knob("n", 0, min=0, max=10**9, effect="speed",
                apply=lambda n: applied.append((run.step, time.monotonic())))
accepted = []
inbox = run._core.state.inbox
receive = inbox.receive
def watched(command, *rest):
    accepted.append((run.step, time.monotonic()))
    return receive(command, *rest)
inbox.receive = watched
step, done = 0, torch.zeros(1)
while run.boundary(step):
    time.sleep(seconds)
    done[0] = float(len(applied) >= changes)
    dist.all_reduce(done)  # the ranks wait for each other, as in training
    step += 1
    if rank == 0 and step % 50 == 1:
        print("ready", flush=True)
    if done[0] >= 2:
        break
steps = [None, None]
dist.all_gather_object(steps, [at for at, _ in applied])
if rank == 0:
    print(json.dumps({"iterations": [b[0] - a[0] for a, b in zip(accepted, applied)],
                      "seconds": [b[1] - a[1] for a, b in zip(accepted, applied)],
                      "same": steps[0] == steps[1]}), flush=True)
run.close()
"""

CASES = (
    "boundary, 1 rank",
    "boundary, 2 ranks",
    "boundary, 64 simulated ranks",
    "log, 40 metrics",
    "log, 3 metrics",
)


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ranks_environment() -> list[dict[str, str]]:
    """What torchrun would set for two ranks."""
    port = str(free_port())
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]


def slices(node: Bench, kind: str, tree: str, cpus: set[int] | None) -> dict[str, Any]:
    """The costs of one case in nanoseconds."""
    of_ranks = ranks_environment() if kind == "boundary, 2 ranks" else [{}]
    path = {"PYTHONPATH": os.pathsep.join([tree, f"{tree}/trainer"]), "PYTHONSAFEPATH": "1"}
    children = [
        node.python(CHILD, kind, str(SLICES), str(CALLS), cpus=cpus, **path, **more) for more in of_ranks
    ]
    assert children[0].stdout is not None
    line = children[0].stdout.readline()
    for child in children:
        child.wait(120)
    found: dict[str, Any] = json.loads(line)
    return found


def figures(found: list[dict[str, Any]]) -> dict[str, float]:
    """Microseconds: the least median of a slice, the median of those, and of all calls."""
    medians = [one for each in found for one in each["medians"]]
    every = [one for each in found for one in each["every"]]
    return {
        "least": round(min(medians) / 1e3, 3),
        "slice_p10": round(quantile(medians, 0.1) / 1e3, 3),
        "slice_p50": round(statistics.median(medians) / 1e3, 3),
        "call_p50": round(statistics.median(every) / 1e3, 3),
        "call_p99": round(quantile(every, 0.99) / 1e3, 3),
        "of_that_the_clock": round(min(each["empty"] for each in found) / 1e3, 3),
        "calls": len(every),
    }


def changes(node: Bench, seconds: float, count: int) -> dict[str, Any]:
    """How long a `set` takes on two ranks whose iterations take so many seconds."""
    children = [node.python(SET, str(seconds), str(count), **more) for more in ranks_environment()]
    assert children[0].stdout is not None
    children[0].stdout.readline()
    run = node.run("set-cost")
    with node.session() as session:
        for value in range(1, count + 1):
            command = session.submit(run, "set", knob="n", value=value)
            session.outcome(command, timeout_s=60)
    lines = [line for line in children[0].stdout if line.startswith("{")]
    for child in children:
        child.wait(60)
    found = json.loads(lines[-1])
    return {
        "iteration_s": seconds,
        "changes": count,
        "seconds_p50": round(statistics.median(found["seconds"]), 3),
        "seconds_max": round(max(found["seconds"]), 3),
        "iterations_p50": statistics.median(found["iterations"]),
        "iterations_max": max(found["iterations"]),
        "same_iteration_on_both": found["same"],
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", default="", help="the root of another version of hoptui")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    own = str(Path(__file__).resolve().parents[1])
    trees = [own, *([options.beside] if options.beside else [])]
    found: dict[str, Any] = {}
    for kind in [kind for kind in CASES if options.only in kind]:
        costs: dict[str, list[dict[str, Any]]] = {tree: [] for tree in trees}
        for _ in range(options.rounds):
            for tree in trees:
                with bench() as node:  # a daemon of that version
                    costs[tree].append(slices(node, kind, tree, None if "2 ranks" in kind else {0}))
        result: dict[str, Any] = figures(costs[own])
        if options.beside:
            other = figures(costs[options.beside])
            result = {
                **result,
                "beside": other,
                "ratio_least": round(result["least"] / other["least"], 3),
                "ratio_slice_p50": round(result["slice_p50"] / other["slice_p50"], 3),
            }
        found[kind] = tell(kind, result)
    if options.only in "set":
        found["set, 2 ranks"] = []
        for seconds in (0.005, 0.1, 0.5):
            with bench() as node:  # so that there is one run of this name
                found["set, 2 ranks"].append(tell("set", changes(node, seconds, CHANGES)))
    load = os.getloadavg()[0]
    report("boundary_cost", {"unit": "microseconds a call", "load": round(load, 1), "figures": found})


if __name__ == "__main__":
    main()
