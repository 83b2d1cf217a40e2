"""From the key that sends a change to `accepted`: the trainer in C code that releases the interpreter, and in pure Python.

The real dashboard runs headless against a real daemon and a real run. The clock starts where Enter reaches the app, with
the knob editor open, and stops where the outcome is in the dashboard's store. Milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from textual import events

from benchmarks.measure import bench, quantile, report
from hoptui.tui.app import HoptuiApp
from hoptui.viewer.client import Client
from hoptui.viewer.config import Config
from hoptui.wire.messages import CommandRecord

COMMANDS = 100

TRAINERS = {
    "trainer in C code": """
import time, hoptui
run = hoptui.connect("accepting")
run.knob("n", 1, min=1, max=1_000_000, effect="speed")
for i in run.iterations():
    time.sleep(0.02)
    run.log(i=i)
""",
    "trainer in pure Python": """
import hoptui
run = hoptui.connect("accepting")
run.knob("n", 1, min=1, max=1_000_000, effect="speed")
for i in run.iterations():
    sum(k * k for k in range(200_000))
    run.log(i=i)
""",
}


async def press(run: str) -> list[float]:
    """Open the editor, step up, press Enter, COMMANDS times; the milliseconds of each."""
    app = HoptuiApp(
        lambda on_change: Client(client="bench", on_change=on_change), run, config=Config.of(theme="dark")
    )
    store = app.client.store
    costs = []
    async with app.run_test(size=(120, 40)) as pilot:
        while store.run(run) is None:
            await asyncio.sleep(0.05)
        for i in range(COMMANDS):
            app.edit_knob(run, "n")
            await pilot.press("up")
            began = time.perf_counter()
            app.post_message(events.Key("enter", "\r"))
            while len(store.commands) <= i or _newest(store.commands).stage == "sent":
                await asyncio.sleep(0.0002)  # and not a spin, which would keep the client thread waiting
            costs.append((time.perf_counter() - began) * 1e3)
            while store.run(run).knobs[0].version <= i:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            await pilot.press("escape")
    return costs


def _newest(commands: Mapping[str, CommandRecord]) -> CommandRecord:
    return commands[next(reversed(list(commands)))]


def measure(script: str) -> dict[str, Any]:
    """One trainer."""
    with bench() as node:
        node.python(script)
        costs = asyncio.run(press(node.run("accepting").run))
    return {q: round(quantile(costs, share), 2) for q, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}


def main() -> None:
    """Measure and report."""
    figures = {name: measure(script) for name, script in TRAINERS.items()}
    report("accept_latency", {"unit": "milliseconds", "commands": COMMANDS, "figures": figures})


if __name__ == "__main__":
    main()
