"""What becomes of a burst of commands: a client sends them as fast as it can, each is to be told truthfully.

The run writes down each call of a setter, which is the truth. What hoptui tells is the final stage.
`wrong` counts the records that contradict the setters, `open` the commands without a final stage after
`--within` seconds. In a second case the run is stopped (SIGSTOP) for `--stop` seconds during the burst. In a
third it is terminated half a second after the first command.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Bench, bench, report, tell, until
from hoptui.client.session import Session
from hoptui.protocol.messages import FINAL, CommandRecord, RunState

KNOBS = 200
RUN = """
import sys, time, hoptui
log = open(sys.argv[1], "a", buffering=1)
run = hoptui.connect("burst")
for n in range(int(sys.argv[2])):
    held = {}
    def put(value, name=f"k{n}", held=held):
        held["v"] = value
        log.write(f"{name} {value}\\n")
    run.knob(f"k{n}", 0, min=0, max=10**9, apply=put,
             read=lambda held=held: held.get("v", 0), effect="speed")
for i in run.iterations():
    time.sleep(0.02)
    run.log(i=i)
"""


def send(found: RunState, first: int, count: int, within_s: float, told: dict[int, CommandRecord]) -> None:
    """Send commands with the values `first`..., wait for their records, and store them by value."""
    with Session(client=f"burst-{first}", timeout_s=10.0) as session:
        names = {
            session.submit(found, "set", knob=f"k{value % KNOBS}", value=value): value
            for value in range(first, first + count)
        }
        end = time.monotonic() + within_s
        for name, value in names.items():
            told[value] = session.outcome(name, timeout_s=max(0.0, end - time.monotonic()))


def burst(
    node: Bench, *, commands: int, clients: int, stop_s: float, end: bool, within_s: float
) -> dict[str, Any]:
    """One burst. Seconds count from the first command."""
    calls = Path(node.base) / f"calls-{time.monotonic_ns()}"
    child = node.python(RUN, str(calls), str(KNOBS))
    found: RunState = until(lambda: _declared(node), what="the run with its knobs")
    told: dict[int, CommandRecord] = {}
    share = commands // clients
    began = time.monotonic()
    threads = [
        threading.Thread(target=send, args=(found, 1 + i * share, share, within_s, told))
        for i in range(clients)
    ]
    for thread in threads:
        thread.start()
    if stop_s:
        time.sleep(0.1)
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(stop_s)
        os.kill(child.pid, signal.SIGCONT)
    if end:
        time.sleep(0.5)
        os.kill(child.pid, signal.SIGTERM)
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    child.terminate()
    child.wait()
    called = collections.Counter(int(line.split()[1]) for line in calls.read_text().splitlines())
    stages = collections.Counter(record.stage for record in told.values())
    return {
        "commands": commands,
        "clients": clients,
        "stopped_s": stop_s,
        "seconds": round(took, 2),
        "stages": dict(stages),
        "not_told": commands - len(told),
        "unknown": sum(record.code == "fate_unknown" for record in told.values()),
        "open": sum(record.stage not in FINAL for record in told.values()),
        "wrong": sum(
            (record.stage == "applied") != bool(called[value])
            for value, record in told.items()
            if record.stage in FINAL and record.code != "fate_unknown"
        ),
        "set_twice": sum(count > 1 for count in called.values()),
    }


def _declared(node: Bench) -> RunState | None:
    with Session(start_daemon=True) as session:
        state = session.fetch().node
    runs = state.runs if state else ()
    return next((r for r in reversed(runs) if not r.exit_reason and len(r.knobs) == KNOBS), None)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--within", type=float, default=30.0, help="seconds to wait for final stages")
    parser.add_argument(
        "--stop", type=float, default=2.0, help="seconds that the run is stopped for, in a second case"
    )
    options = parser.parse_args()
    figures = {}
    cases = {
        "running": {"stop_s": 0.0, "end": False},
        "stopped meanwhile": {"stop_s": options.stop, "end": False},
        "ended meanwhile": {"stop_s": 0.0, "end": True},
    }
    for name, case in cases.items():
        with bench() as node:
            found = burst(
                node, commands=options.commands, clients=options.clients, within_s=options.within, **case
            )
        figures[name] = tell(name, found)
    report("burst", {"figures": figures})


if __name__ == "__main__":
    main()
