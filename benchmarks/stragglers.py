"""How many stragglers are named with their line, and how soon: real gloo ranks, one of which is late.

    python -m benchmarks.stragglers [--ranks 8] [--repeats 20] [--even 8] [--jobs N] [--causes CAUSE…]
    python -m benchmarks.stragglers --ddp [--lot test] [--ranks 2] [--repeats 12] [--even 3]
    python -m benchmarks.stragglers --ddp --lot nccl --jobs 1 --repeats 10 --even 2

An iteration takes 0.1 s, of the late rank 0.13 s. Several jobs run at once, each on cores and with a daemon
of its own; `--jobs 0` takes as many as there are cores for. `late` jobs take turns with the causes and the
modes of training. `named` is the right rank, `wrong` any other. Seconds are from the first iteration. With
`--ddp`, the loops of `benchmarks/straggler_loops.py` are run, where the cause `core` is slow at each layer.
Prints JSON.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import straggler_loops
from benchmarks.measure import report, spread, tell
from hoptui.client.session import Session
from hoptui.domain.activities import activities
from hoptui.domain.stacks import unpack

STEP_S, LATE_S, LIMIT_S = 0.1, 0.03, 60.0
MOST_S = 20.0
SPARE = 4
"""Cores for the daemons and for this process."""
CAUSES = ("sleep", "input", "spin", "core")
"""It sleeps; its data come late; it computes more; another program computes on its core."""
DDP_CAUSES = (*straggler_loops.CAUSES, *straggler_loops.NCCL_CAUSES)
GPU_READINGS = ("sm_active", "busy", "power_w", "sm_clock_mhz")
FIRST_CAUSES = ("sleep", "input", "core")
MODES = ("manual", "ddp")
RANK = """
import os, sys, time, torch, torch.distributed as dist, hoptui
rank, world, mode, cause, late, store, core = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
late = int(late) == rank
if int(core) >= 0:
    os.sched_setaffinity(0, [int(core)])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 8))
if mode == "ddp":
    net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
run = hoptui.connect("stragglers", ranks="auto")
def read():
    time.sleep(LATE_S)  # late: input
def spin():
    until = time.monotonic() + LATE_S
    while time.monotonic() < until:  # late: spin
        pass  # late: spin
def work():
    total = 0
    for i in range(LOOPS):  # late: core
        total += i ^ 3  # late: core
for step in run.iterations():
    if cause == "core":
        time.sleep(STEP_S - 2 * LATE_S)
        work()  # late: core
    else:
        time.sleep(STEP_S - LATE_S)
    if late and cause == "sleep":
        time.sleep(LATE_S)  # late: sleep
    if late and cause == "input":
        read()  # late: input
    if late and cause == "spin":
        spin()  # late: spin
    loss = net(torch.ones(8, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if mode == "manual":
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
"""
BURN = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[1])])
while True:
    pass
"""


def loops() -> int:
    """Return how many loops of `work` take `LATE_S` of a core that does nothing else."""
    count, total = 1_000_000, 0
    began = time.process_time()
    for i in range(count):
        total += i ^ 3
    return int(count * LATE_S / (time.process_time() - began))


def measure(
    case: dict[str, Any], ranks: int, limit_s: float, cores: Sequence[int], work: int
) -> dict[str, Any]:
    """Run the ranks until a straggler is named or the time is up."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({"HOPTUI_DIR": f"{folder}/d", "HOPTUI_STATE_DIR": f"{folder}/s"})
        script, commands = _commands(case, ranks, folder, cores, work)
        places = list(cores) or [-1] * ranks
        children = [
            subprocess.Popen(
                [sys.executable, *commands[rank]],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(ranks)
        ]
        if case["cause"] == "core" and case["mode"] in MODES:
            burn = [sys.executable, "-c", BURN, str(places[case["late"]])]
            children.append(subprocess.Popen(burn, stdout=subprocess.DEVNULL))
        try:
            found = _watch(limit_s)
        finally:
            for child in children:
                child.kill()
            for child in children:
                child.wait(10)
            command = [sys.executable, "-m", "hoptui", "daemon", "stop"]
            subprocess.run(command, check=False, capture_output=True)
    marked = [i for i, line in enumerate(script.splitlines(), 1) if f"# late: {case['cause']}" in line]
    line = found.pop("line_number", 0)
    slow_everywhere = case["mode"] not in MODES and case["cause"] in ("core", "kernels")
    return {**case, **found, "line_right": slow_everywhere or line in marked}


def _commands(
    case: dict[str, Any], ranks: int, folder: str, cores: Sequence[int], work: int
) -> tuple[str, list[list[str]]]:
    """Return the script of the ranks and the arguments of Python for each."""
    if case["mode"] not in MODES:
        what = ["-m", "benchmarks.straggler_loops", case["mode"], case["cause"]]
        places = [str(ranks), str(case["late"]), f"{folder}/store"]
        return inspect.getsource(straggler_loops), [[*what, str(rank), *places] for rank in range(ranks)]
    script, program = RANK, f"{folder}/rank.py"
    replaced = {"LATE_S": str(LATE_S), "STEP_S": str(STEP_S), "LOOPS": str(work)}
    for name, value in replaced.items():
        script = script.replace(name, value)
    Path(program).write_text(script)
    pinned = list(cores) or [-1] * ranks
    what = [str(ranks), case["mode"], case["cause"], str(case["late"]), f"{folder}/store"]
    return script, [[program, str(rank), *what, str(pinned[rank])] for rank in range(ranks)]


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
                        "line_number": where.get("line", 0),
                        "waits": [round(event.fields[name], 2) for name in ("waits", "others_wait")],
                    }
            time.sleep(0.2)
        did = _did(session, next(iter(delta.vitals), ""))
        gpus = _gpus(session)
    return {"rank": None, "seconds": None, "started": began is not None, "did": did, "gpus": gpus}


def _did(session: Session, run: str) -> dict[int, dict[str, int]]:
    """Return the samples of each rank in the last 30 s: those of its most frequent activities."""
    if not run:
        return {}
    return {
        each.rank: {
            f"{what.kind} {what.place.line} {what.inside}": count
            for what, count in activities(unpack(each.samples)).most_common(6)
        }
        for each in session.stacks(run, 30.0)
    }


def _gpus(session: Session) -> dict[int, dict[str, float]]:
    """Return the means of some readings of each GPU in the last 20 s, by its index, as far as known."""
    node, now = session.fetch(state=0).node, time.monotonic_ns()
    found: dict[int, dict[str, float]] = {}
    for gpu in node.gpus if node is not None else ():
        read = session.query(f"gpu/{gpu.uuid}", GPU_READINGS, t0=now - 20_000_000_000, t1=now)
        found[gpu.index] = {
            name: round(statistics.fmean(known), 3)
            for name, raw in zip(read.names, read.mean, strict=True)
            if (known := [value for value in array("d", raw) if value == value])
        }
    return found


def _elsewhere(
    case: dict[str, Any], given: argparse.Namespace, cores: Sequence[int], work: int
) -> dict[str, Any]:
    """Measure in a process of its own: each job has a daemon, and so environment variables, of its own."""
    what = json.dumps([case, given.ranks, given.limit, list(cores), work])
    command = [sys.executable, "-m", "benchmarks.stragglers", "--job", what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=given.limit + 180.0, check=False)
    if done.returncode:
        raise RuntimeError(f"{case}: {done.stderr[-1500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return tell(f"{case['mode']} {case['cause']}", found)


def cases(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what is measured: causes and modes in turns, and even ranks last."""
    source = random.Random(7)
    turns = itertools.cycle(itertools.product(given.modes, given.causes))
    late = [
        {"mode": mode, "cause": cause, "late": source.randrange(given.ranks)}
        for mode, cause in itertools.islice(turns, given.repeats)
    ]
    modes = itertools.cycle(given.modes)
    return late + [{"mode": next(modes), "cause": "even", "late": -1} for _ in range(given.even)]


def measure_all(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all cases, so many at a time as there are jobs."""
    usable = sorted(os.sched_getaffinity(0))
    jobs = given.jobs or max(1, (len(usable) - SPARE) // given.ranks)
    enough = len(usable) >= jobs * given.ranks
    if not enough and "core" in given.causes and not given.ddp:
        raise SystemExit(
            f"{jobs} jobs need {jobs * given.ranks} cores for the cause `core`; here are {len(usable)}"
        )
    if len(usable) >= jobs * given.ranks + SPARE:  # daemons and this process stay on the others
        os.sched_setaffinity(0, usable[jobs * given.ranks :])
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for case in cases(given):
        waiting.put(case)
    found: list[dict[str, Any]] = []
    work = loops()

    def run(job: int) -> None:
        cores = usable[job * given.ranks : (job + 1) * given.ranks] if enough else []
        with suppress(queue.Empty):
            while True:
                case = waiting.get_nowait()
                try:
                    found.append(_elsewhere(case, given, cores, work))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    found.append(tell("failed", case | {"rank": None, "seconds": None, "error": str(error)}))

    threads = [threading.Thread(target=run, args=(job,)) for job in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def figures(found: Sequence[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """Return how many were named, with their line and in time."""
    late = [each for each in found if each["cause"] != "even"]
    even = [each for each in found if each["cause"] == "even"]
    right = [each for each in late if each["rank"] == each["late"]]
    lines = [each for each in right if each["line_right"]]
    in_time = [each for each in lines if each["seconds"] <= MOST_S]
    started = [each for each in even if each.get("started")]
    by_cause = {
        cause: [each["seconds"] for each in right if each["cause"] == cause]
        for cause in dict.fromkeys(each["cause"] for each in late)
    }
    return {
        "ranks": ranks,
        "late": len(late),
        "named": len(right),
        "with_their_line": len(lines),
        "in_time": len(in_time),
        "even": len(even),
        "even_watched": len(started),
        "wrong": sum(each["rank"] is not None and each["rank"] != each["late"] for each in found),
        "seconds": spread([each["seconds"] for each in right], 1) if right else None,
        "by_cause": {cause: spread(seconds, 1) if seconds else None for cause, seconds in by_cause.items()},
        "met": {
            f"each is named with its line within {MOST_S:g} s": len(in_time) == len(late),
            "no other rank is named": not any(
                each["rank"] is not None and each["rank"] != each["late"] for each in found
            ),
            "all even ranks were watched": len(started) == len(even),
        },
        "cases": list(found),
    }


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, help="8, with --ddp 2")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--even", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--causes", nargs="+", choices=sorted({*CAUSES, *DDP_CAUSES}))
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--ddp", action="store_true", help="loops under DistributedDataParallel")
    parser.add_argument("--lot", default="test", choices=[*straggler_loops.LOTS])
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args(list(arguments))
    if given.job:
        found = measure(*json.loads(given.job))
        print(json.dumps(found))
        return found
    given.ranks = given.ranks or (2 if given.ddp else 8)
    if given.ddp:
        given.modes = list(straggler_loops.LOTS[given.lot])
    of_lot = straggler_loops.NCCL_CAUSES if given.lot == "nccl" else straggler_loops.CAUSES
    given.causes = given.causes or list(of_lot if given.ddp else FIRST_CAUSES)
    return report("stragglers", figures(measure_all(given), given.ranks))


if __name__ == "__main__":
    main(sys.argv[1:])
