"""`hoptui mcp`: how long each answer takes, and whether a command is ever lost or doubled.

An agent connects with the client of the MCP SDK over stdio, to a real daemon and a run of 100 iterations a
second. First it calls each tool that observes, in turn. Then it sets two knobs at random, one of them or both
at once, for some minutes. Each set has a value of its own, so it is told apart in the history and in a file
that the trainer itself appends to as it applies a value. Milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from benchmarks.measure import Bench, bench, quantile, report, tell, until
from hoptui.client.session import Unreachable

CALLS = 60
TARGET_MS = 50.0
KNOBS = ("first", "second")
PAUSE_S = 0.5
"""The longest pause between two sets."""
TRAINER = """
import sys, time, hoptui
written = open(sys.argv[1], "a", buffering=1)
run = hoptui.connect("steered")
for name in ("first", "second"):
    apply = lambda value, name=name: written.write(f"{name} {value}\\n")
    run.knob(name, 0, min=0, max=10**9, effect="speed", apply=apply)
for i in run.iterations():
    time.sleep(0.01)
    run.log(samples=100, loss=1.0 / (i + 1))
"""
OBSERVES: dict[str, dict[str, Any]] = {
    "runs": {},
    "status": {"run": "steered"},
    "list_knobs": {"run": "steered"},
    "wait_for": {"run": "steered", "event": "live"},
    "history": {"run": "steered"},
    "where": {"run": "steered"},
    "stack": {"run": "steered"},
}
Change = tuple[str, int]


class Unanswered(Exception):  # noqa: N818 - says what is the case
    """A tool answered with an error, such as a daemon that was too slow."""


@dataclass
class Steered:
    """What an agent asked for, the outcomes that it read, and how often it read an error instead."""

    asked: list[Change] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    unanswered: int = 0


async def called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a tool. Raises Unanswered."""
    answer = await client.call_tool(tool, arguments)
    if answer.is_error or answer.structured_content is None:
        raise Unanswered(f"{tool} {arguments}: {answer.content}")
    return dict(answer.structured_content)


async def answer_times(client: Client, server: psutil.Process) -> dict[str, dict[str, float]]:
    """The milliseconds of each tool that observes, and of the CPU that the server takes for an answer."""
    found = {}
    for tool, arguments in OBSERVES.items():
        times = []
        before = server.cpu_times()
        for _ in range(CALLS):
            began = time.perf_counter()
            await called(client, tool, **arguments)
            times.append((time.perf_counter() - began) * 1e3)
        after = server.cpu_times()
        cpu_s = after.user + after.system - before.user - before.system
        found[tool] = {
            "p50": round(statistics.median(times), 1),
            "p99": round(quantile(times, 0.99), 1),
            "cpu": round(1e3 * cpu_s / CALLS, 1),
        }
    return found


async def steer(client: Client, seconds: float, chance: random.Random) -> Steered:
    """Set knobs at random, one or both at once."""
    found = Steered()
    values = itertools.count(1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        wishes = [(knob, next(values)) for knob in chance.sample(KNOBS, chance.randint(1, len(KNOBS)))]
        found.asked += wishes
        sets = (called(client, "set", run="steered", values={knob: value}) for knob, value in wishes)
        for answer in await asyncio.gather(*sets, return_exceptions=True):
            if isinstance(answer, Unanswered):
                found.unanswered += 1
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.told += answer["commands"]
        await asyncio.sleep(chance.uniform(0.0, PAUSE_S))
    return found


def differences(steered: Steered, history: list[dict[str, Any]], written: list[Change]) -> dict[str, int]:
    """Compare what the agent asked for and read, the history and the trainer's own record.

    All figures are zero if nothing is wrong.
    """
    told = {change["id"]: change["stage"] for change in steered.told}
    kept = Counter(record["id"] for record in history)
    wanted = Counter((record["knob"], record["to"]) for record in history)
    applied = [(r["knob"], r["effective"]) for r in history if r["stage"] == "applied"]
    times = Counter(written)
    asked = set(steered.asked)
    return {
        "told twice": len(steered.told) - len(told),
        "lost in the history": sum(kept[command] == 0 for command in told),
        "doubled in the history": sum(n > 1 for n in (*kept.values(), *wanted.values())),
        "unasked in the history": sum(change not in asked for change in wanted),
        "other outcome in the history": sum(told.get(r["id"], r["stage"]) != r["stage"] for r in history),
        "lost in the trainer": sum(times[change] == 0 for change in applied),
        "doubled in the trainer": sum(n > 1 for n in times.values()),
        "not applied by the history": sum(change not in set(applied) for change in times),
        "in another order": sum(_of(name, applied) != _of(name, written) for name in KNOBS),
    }


def _of(name: str, changes: list[Change]) -> list[int]:
    return [value for knob, value in changes if knob == name]


async def session(node: Bench, record: Path, minutes: float, seed: int) -> dict[str, Any]:
    """One agent from its connection to its end."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "hoptui", "mcp", "--control"], env=node.environment
    )
    async with Client(server) as client:
        times = tell("answers", await answer_times(client, _server()))
        steered = await steer(client, 60 * minutes, random.Random(seed))
        history = (await called(client, "history", run="steered", most=10**9))["commands"]
    written = [(name, int(value)) for name, value in map(str.split, record.read_text().splitlines())]
    stages = Counter(change["stage"] for change in steered.told)
    return {
        "answer_ms": times,
        "target_ms": TARGET_MS,
        "missed": [tool for tool, found in times.items() if found["p50"] > TARGET_MS],
        "minutes": minutes,
        "seed": seed,
        "sets": len(steered.asked),
        "unanswered": steered.unanswered,
        "stages": dict(stages),
        "applied_by_trainer": len(written),
        "differences": tell("differences", differences(steered, history, written)),
    }


def _server() -> psutil.Process:
    """The process of `hoptui mcp` that this one has started."""
    children = psutil.Process().children(recursive=True)
    return next(each for each in children if each.cmdline()[-2:] == ["mcp", "--control"])


def _steerable(node: Bench) -> bool:
    """Whether the run has had some iterations. A busy machine may start its daemon slowly."""
    with suppress(Unreachable), node.session() as viewer:
        delta = viewer.fetch()
        return any(vital.step > 100 for vital in delta.vitals.values())
    return False


def main(minutes: float = 30.0, seed: int = 1) -> None:
    """Measure and report. Exit code 1 if a command was lost or doubled."""
    with bench() as node:
        record = node.base / "applied.txt"
        node.python(TRAINER, str(record))
        until(lambda: _steerable(node), seconds=120, what="some iterations")
        figures = asyncio.run(session(node, record, minutes, seed))
    report("agent_session", figures)
    if any(figures["differences"].values()):
        sys.exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_session")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    main(**vars(parser.parse_args()))
