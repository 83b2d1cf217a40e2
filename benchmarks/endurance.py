"""A day at 2 Hz on eight GPUs of 30 readings, with a run of 40 metrics whose knobs are turned three times a
minute: does memory stay flat?

`python -m benchmarks.endurance [--hours N]`. Two processes with a simulated clock: the daemon's desks, rings,
book and archive, and the dashboard without a terminal, which asks and draws as it does for a person. Between
them are the wire's own messages; what is left out are sockets and waiting, so a day takes some minutes. Once
an hour somebody opens every screen. MiB of RSS, hour by hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import psutil

from benchmarks.day import SECOND, DayClient, DayNode, SimulatedClock
from benchmarks.measure import machine, report, tell
from hoptui.node.addresses import Addresses
from hoptui.settings import Config
from hoptui.tui.app import HoptuiApp

HOURS, MOST_MIB = 24, 150.0
SETTLED = 6
"""From this hour on memory counts as flat or not: by then whatever is bounded by number has been filled, but
for coarse history."""
GROWTH_MIB_PER_H = 2.0
STEP_S = 2
SETS_S, DRAWS_S = 20, 60
LOOKS = (
    "h",
    "escape",
    "d",
    "escape",
    "slash",
    "escape",
    "escape",
    "e",
    "escape",
    "question_mark",
    "escape",
    "g",
    "enter",
)
"""Every screen once, and back to the run."""
Results = list[float]


def rss_mib() -> float:
    """What this process has resident now."""
    return round(psutil.Process().memory_info().rss / 2**20, 1)


def serve(pipe: Pipe, base: Path) -> Results:
    """The daemon's side: a day goes by as fast as the dashboard asks for it."""
    clock = SimulatedClock()
    node = DayNode(clock, Addresses(base / "run", base / "state"))
    found = [rss_mib()]
    hour = clock.now + 3600 * SECOND
    try:
        while (asked := pipe.recv()) is not None:
            now, frames = asked
            node.live_until(now)
            pipe.send(node.answer(frames))
            if now >= hour:
                hour += 3600 * SECOND
                node.keep_up()
                found.append(rss_mib())
    finally:
        node.close()
    return found


def look(pipe: Pipe, hours: float) -> Results:
    """The dashboard's side."""
    clock = SimulatedClock()
    client = DayClient(clock, lambda now, frames: _ask(pipe, now, frames))
    app = HoptuiApp(
        client.connect, "a-long-day", config=Config(), clock=lambda: clock.now / SECOND, frames=False
    )
    found: Results = []

    async def day() -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            for step in range(round(hours * 3600 / STEP_S)):
                if step % (3600 // STEP_S) == 0:
                    await pilot.press(*LOOKS if step else ())
                    found.append(rss_mib())
                    tell(f"after {len(found) - 1} h", {"dashboard_mib": found[-1]})
                clock.now += STEP_S * SECOND
                client.turn()
                if step % (SETS_S // STEP_S) == 0:
                    client.set_next()
                if step % (DRAWS_S // STEP_S) == 0:
                    app.tick()
                    await pilot.pause(0)
            found.append(rss_mib())

    asyncio.run(day())
    pipe.send(None)
    return found


def _ask(pipe: Pipe, now: int, frames: list[bytes]) -> list[bytes]:
    pipe.send((now, frames))
    answer: list[bytes] = pipe.recv()
    return answer


def _work(results: Pipe, pipe: Pipe, side: Callable[..., Results], given: Any) -> None:
    """Run one side in a separate process."""
    results.send(side(pipe, given))


def measure(hours: float) -> dict[str, Any]:
    """Let so many hours go by.

    Raises:
        EOFError: one of the two processes ended before its time; its traceback is above.
    """
    context = multiprocessing.get_context("spawn")
    ends = context.Pipe()
    began = time.monotonic()
    rss: dict[str, Results] = {}
    with tempfile.TemporaryDirectory(prefix="hoptui-day-") as place:
        given = (("daemon", serve, Path(place)), ("dashboard", look, hours))
        running = []
        for end, (name, side, what) in zip(ends, given, strict=True):
            receives, sends = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(sends, end, side, what), daemon=True)
            process.start()
            for handed in (sends, end):  # else the end of one process would not be seen by the other
                handed.close()
            running.append((name, process, receives))
        for name, process, receives in running:
            rss[name] = receives.recv()
            process.join()
    took = round(time.monotonic() - began)
    figures: dict[str, Any] = {"hours": hours, "took_s": took, "unit": "MiB of RSS", "by_hour": rss}
    return figures | (judge(rss) if hours > SETTLED else {})


def judge(rss: dict[str, Results]) -> dict[str, Any]:
    """Whether memory is small and flat, from its figures hour by hour."""
    growth = {name: (at[-1] - at[SETTLED]) / (len(at) - 1 - SETTLED) for name, at in rss.items()}
    flat = all(value < GROWTH_MIB_PER_H for value in growth.values())
    met = {
        f"the dashboard at most {MOST_MIB:g} MiB": max(rss["dashboard"]) <= MOST_MIB,
        f"both grow by less than {GROWTH_MIB_PER_H:g} MiB an hour from hour {SETTLED} on": flat,
    }
    return {"growth_mib_per_h": {name: round(value, 2) for name, value in growth.items()}, "met": met}


def main() -> None:
    """Let a day go by, and report."""
    report("endurance", measure(HOURS))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description="Memory over a day.")
    parser.add_argument("--hours", type=float, default=HOURS)
    return parser.parse_args()


if __name__ == "__main__":
    asked = _options()
    if asked.hours == HOURS:
        main()
    else:  # a part of a day is no result to keep
        print(json.dumps({"benchmark": "endurance", "machine": machine(), **measure(asked.hours)}))
