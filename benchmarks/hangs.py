"""How soon a hung run is reported, and whether the report names the rank that hangs.

    python -m benchmarks.hangs [--modes python collective gil stopped] [--repeats 5] [--lanes 5]

Two gloo ranks train with iterations of 0.1 s. After some of them, rank 1 hangs: in Python; by leaving a
collective that rank 0 waits in; in C code that holds the interpreter; or because it is stopped. The time is
from the last boundary of the hung rank to the event. A run may make no progress for 10 s, or five iterations
if that is longer; the target is 15 s after that. Prints JSON.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.measure import Bench, bench, in_lanes, report, spread, tell
from hoptui.client.session import Session
from hoptui.presentation import sentences
from hoptui.protocol.messages import Event

ITERATION_S = 0.1
PATIENCE_S = max(10.0, 5 * ITERATION_S)
MOST_S = PATIENCE_S + 15.0
HANGS_AT = 50
LIMIT_S = 90.0
"""The longest time from the last boundary to the event, and from the start to the last boundary."""
MODES = {
    "python": "while True: pass",
    "collective": "threading.Event().wait()",
    "gil": "ctypes.PyDLL(None).sleep(1000)",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
}
RANK = """
import ctypes, os, signal, sys, threading, time, torch, torch.distributed as dist, hoptui
name, rank, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
run = hoptui.connect(name, ranks="auto")
def hang():
    HOW
for step in run.iterations():
    boundary = time.monotonic()
    time.sleep(ITERATION_S)
    if step == HANGS_AT and rank == 1:
        print(boundary, flush=True)
        hang()
    dist.all_reduce(torch.ones(4))
"""


def measure(node: Bench, mode: str, repeat: int) -> dict[str, Any]:
    """Let one run hang, and wait for its event."""
    name = f"hang-{mode}-{repeat}"
    program, store = node.base / f"{name}.py", node.base / f"{name}.store"
    script = RANK.replace("HOW", MODES[mode]).replace("ITERATION_S", str(ITERATION_S))
    Path(program).write_text(script.replace("HANGS_AT", str(HANGS_AT)))
    ranks = [
        node.start(
            [sys.executable, str(program), name, str(rank), str(store)], RANK=str(rank), WORLD_SIZE="2"
        )
        for rank in range(2)
    ]
    try:
        output = ranks[1].stdout
        assert output is not None
        boundary = float(output.readline())
        with node.session() as session:
            event, seconds = _event(session, name, boundary)
    finally:
        for each in ranks:
            with suppress(ProcessLookupError):
                each.send_signal(signal.SIGCONT)
            each.kill()
        for each in ranks:
            each.wait(20)
    found = {
        "mode": mode,
        "repeat": repeat,
        "seconds": seconds,
        "named": event is not None and _named(event, mode),
    }
    return tell(name, found | {"text": sentences.event_text(event) if event is not None else ""})


def _event(session: Session, name: str, boundary: float) -> tuple[Event | None, float | None]:
    """Wait for the event of a run, and return it with its delay in seconds."""
    while time.monotonic() < boundary + LIMIT_S:
        delta = session.fetch(state=0, events=0)
        runs = {run.run for run in delta.node.runs if run.name == name} if delta.node is not None else set()
        for event in delta.events:
            if event.code == "run.hung" and event.run in runs:
                return event, round(time.monotonic() - boundary, 1)
        time.sleep(0.2)
    return None, None


def _named(event: Event, mode: str) -> bool:
    """Whether the event names rank 1 first, and what it is in."""
    fields = event.fields
    if mode in ("gil", "stopped"):
        silent = [each for each in fields["silent"] if each["rank"] == 1]
        return bool(silent) and (silent[0]["state"] == "T") == (mode == "stopped")
    first = fields["groups"][0] if fields["groups"] else {}
    return bool(first.get("ranks") == [1] and first["function"] == "hang")


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=5, help="runs at a time, of two processes each")
    given = parser.parse_args(list(arguments))
    cases = [(mode, repeat) for mode in given.modes for repeat in range(given.repeats)]
    with bench() as node, node.session():

        def one(case: tuple[str, int], _: int) -> dict[str, Any]:
            mode, repeat = case
            try:
                return measure(node, mode, repeat)
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                failed = {"mode": mode, "repeat": repeat, "seconds": None, "named": False}
                return tell("failed", failed | {"text": str(error)})

        found = in_lanes(one, cases, given.lanes)
    by_mode: dict[str, Any] = {}
    for mode in given.modes:
        own = [each for each in found if each["mode"] == mode]
        seconds = [each["seconds"] for each in own if each["seconds"] is not None]
        by_mode[mode] = {
            "of": len(own),
            "named": sum(each["named"] for each in own),
            "seconds": spread(seconds, 1) if seconds else None,
        }
    figures = {
        "most_s": MOST_S,
        "by_mode": by_mode,
        "met": {
            f"each is reported within {MOST_S:g} s": all(
                (each["seconds"] or 1e9) <= MOST_S for each in found
            ),
            "each report names the rank": all(each["named"] for each in found),
        },
        "cases": found,
    }
    return report("hangs", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
