"""From the key that sends a change to `accepted`: the trainer in C code that releases the interpreter, and in
pure Python.

The real dashboard runs headless against a real daemon and a real run. The clock starts where Enter reaches
the app, with the knob editor open. `accepted` is when the outcome is in the dashboard's store, stamped by the
thread that put it there; `app_sees_it` is when the app's own loop, which draws meanwhile, comes to look.
Milliseconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from textual import events

from benchmarks.measure import bench, quantile, report, tell
from hoptui.client.client import Change, Client
from hoptui.settings import Config
from hoptui.tui.app import HoptuiApp
from hoptui.tui.snapshot import AnyStore

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


class Stamped:
    """Creates the dashboard's client. `at` maps a number of answered commands to `perf_counter` seconds."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}

    def connect(self, on_change: Callable[[Change], None]) -> Client:
        def changed(change: Change) -> None:
            count = len(client.store.commands)
            if _answered(client.store, count):
                self.at.setdefault(count, time.perf_counter())
            on_change(change)

        client = Client(client="bench", on_change=changed)
        return client


async def press(run: str) -> dict[str, list[float]]:
    """Open the editor, step up, press Enter, COMMANDS times; the milliseconds of each."""
    stamped = Stamped()
    app = HoptuiApp(stamped.connect, run, config=Config.of(theme="dark"))
    app.alone = True  # as `hoptui attach` is
    store = app.client.store
    costs: dict[str, list[float]] = {"accepted": [], "app_sees_it": []}
    async with app.run_test(size=(120, 40)) as pilot:
        while store.run(run) is None:
            await asyncio.sleep(0.05)
        for count in range(1, COMMANDS + 1):
            app.edit_knob(run, "n")
            await pilot.press("up")
            began = time.perf_counter()
            app.post_message(events.Key("enter", "\r"))
            while not _answered(store, count):
                await asyncio.sleep(0.0002)  # and not a spin, which would keep the client thread waiting
            costs["app_sees_it"].append((time.perf_counter() - began) * 1e3)
            while store.run(run).knobs[0].version < count or count not in stamped.at:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            costs["accepted"].append((stamped.at[count] - began) * 1e3)
            await pilot.press("escape")
    return costs


def _answered(store: AnyStore, count: int) -> bool:
    """Whether there are so many commands, and the newest is more than sent."""
    commands = list(store.commands.values())
    return 0 < count <= len(commands) and commands[-1].stage != "sent"


def measure(script: str) -> dict[str, Any]:
    """One trainer."""
    interval = sys.getswitchinterval()
    with bench() as node:
        node.python(script)
        costs = asyncio.run(press(node.run("accepting").run))
    sys.setswitchinterval(interval)  # which the dashboard has made its own
    return {
        what: {q: round(quantile(took, share), 2) for q, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
        for what, took in costs.items()
    }


def main() -> None:
    """Measure and report."""
    figures = {name: tell(name, measure(script)) for name, script in TRAINERS.items()}
    report("accept_latency", {"unit": "milliseconds", "commands": COMMANDS, "figures": figures})


if __name__ == "__main__":
    main()
