"""From a keypress in the dashboard to `accepted`: the trainer in C code that releases the interpreter, and in pure Python.

The real dashboard runs headless against a real daemon and a real run; the clock starts where the key that sends the
command is handled and ends where the outcome reaches the dashboard's store. Milliseconds.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from benchmarks.measure import bench, quantile, report, until
from hoptui.viewer.client import Client

COMMANDS = 100

TRAINERS = {
    "trainer in C code": """
import time, hoptui
run = hoptui.connect("accepting")
run.knob("n", 1, min=1, max=1_000_000)
for i in run.iterations():
    time.sleep(0.02)
    run.log(i=i)
""",
    "trainer in pure Python": """
import hoptui
run = hoptui.connect("accepting")
run.knob("n", 1, min=1, max=1_000_000)
for i in run.iterations():
    sum(k * k for k in range(200_000))
    run.log(i=i)
""",
}


def measure(script: str) -> dict[str, Any]:
    """One trainer, COMMANDS changes one after another."""
    changed = threading.Event()
    with bench() as node:
        node.python(script)
        run = node.run("accepting")
        client = Client(
            client="bench", on_change=lambda change: changed.set() if change == "commands" else None
        )
        client.start()
        try:
            client.watch(run.run)
            until(lambda: client.store.run(run.run), what="the run in the store")
            costs = []
            for i in range(COMMANDS):
                changed.clear()
                began = time.perf_counter()
                command = client.send("set", run.run, knob="n", value=2 + i)
                while not _accepted(client, command):
                    changed.wait(0.5)
                    changed.clear()
                costs.append((time.perf_counter() - began) * 1e3)
                until(lambda c=command: _settled(client, c), what="the end of the command")  # type: ignore[misc]
        finally:
            client.close()
    return {q: round(quantile(costs, share), 2) for q, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}


def _accepted(client: Client, command: str) -> bool:
    record = client.store.commands.get(command)
    return record is not None and record.stage != "sent"


def _settled(client: Client, command: str) -> bool:
    record = client.store.commands.get(command)
    return record is not None and record.settled > 0


def main() -> None:
    """Measure and report."""
    figures = {name: measure(script) for name, script in TRAINERS.items()}
    report("accept_latency", {"unit": "milliseconds", "commands": COMMANDS, "figures": figures})


if __name__ == "__main__":
    main()
