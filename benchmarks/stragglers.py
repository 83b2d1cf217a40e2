"""How many stragglers are named, and how soon: real gloo ranks, one of which is late.

    python -m benchmarks.stragglers --ranks 4 --causes sleep input core even --modes manual ddp

Prints JSON. `named` of `late` counts the right rank, `wrong` any other, and `seconds` are from the first
iteration.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hoptui.client.session import Session

STEP_S, LATE_S, LIMIT_S = 0.1, 0.03, 60.0
CAUSES = ("sleep", "input", "core", "even")
RANK = """
import sys, time, torch, torch.distributed as dist, hoptui
rank, world, mode, cause, late, store = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
late = int(late) == rank
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 8))
if mode == "ddp":
    net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
run = hoptui.connect("stragglers", ranks="auto")
def read():
    time.sleep(LATE_S)
def spin():
    until = time.monotonic() + LATE_S
    while time.monotonic() < until:
        pass
for step in run.iterations():
    time.sleep(STEP_S - LATE_S)
    if late and cause == "sleep":
        time.sleep(LATE_S)
    if late and cause == "input":
        read()
    if late and cause == "core":
        spin()
    loss = net(torch.ones(8, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if mode == "manual":
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
"""


def measure(ranks: int, mode: str, cause: str, late: int, limit_s: float) -> dict[str, Any]:
    """Run the ranks until a straggler is named or the time is up."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"HOPTUI_DIR": f"{folder}/d", "HOPTUI_STATE_DIR": f"{folder}/s"}
        os.environ.update(own)
        program = f"{folder}/rank.py"
        script = RANK.replace("LATE_S", str(LATE_S)).replace("STEP_S", str(STEP_S))
        Path(program).write_text(script)
        children = [
            subprocess.Popen(
                [sys.executable, program, *map(str, (rank, ranks, mode, cause, late)), f"{folder}/store"],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(ranks)
        ]
        try:
            return _watch(limit_s) | {"mode": mode, "cause": cause, "late": late}
        finally:
            for child in children:
                child.kill()
            for child in children:
                child.wait(10)
            subprocess.run(
                [sys.executable, "-m", "hoptui", "daemon", "stop"], check=False, capture_output=True
            )


def _watch(limit_s: float) -> dict[str, Any]:
    began = None
    end = time.monotonic() + limit_s + 60.0
    with Session(start_daemon=True, timeout_s=30.0) as session:
        while time.monotonic() < end:
            delta = session.fetch(latest=True, state=0, events=0)
            if began is None and any(vital.step > 0 for vital in delta.vitals.values()):
                began = time.monotonic()
                end = began + limit_s
            for event in delta.events:
                if event.code == "run.straggler" and began is not None:
                    where = event.fields["where"] or {}
                    return {
                        "rank": event.fields["rank"],
                        "seconds": round(time.monotonic() - began, 1),
                        "line": f"{where.get('function', '')} {where.get('inside', '')}".strip(),
                        "waits": [round(event.fields[name], 2) for name in ("waits", "others_wait")],
                    }
            time.sleep(0.2)
    return {"rank": None, "seconds": None, "started": began is not None}


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--causes", nargs="+", default=list(CAUSES), choices=CAUSES)
    parser.add_argument("--modes", nargs="+", default=["manual", "ddp"], choices=("manual", "ddp"))
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    arguments = parser.parse_args()
    source = random.Random(7)
    found = []
    for mode in arguments.modes:
        for cause in arguments.causes:
            late = source.randrange(arguments.ranks)
            found.append(measure(arguments.ranks, mode, cause, late, arguments.limit))
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    late_ones = [each for each in found if each["cause"] != "even"]
    right = [each for each in late_ones if each["rank"] == each["late"]]
    wrong = [each for each in found if each["rank"] is not None and each not in right]
    seconds = [each["seconds"] for each in right]
    summary = {
        "ranks": arguments.ranks,
        "named": len(right),
        "late": len(late_ones),
        "wrong": len(wrong),
        "median_s": statistics.median(seconds) if seconds else None,
        "cases": found,
    }
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
