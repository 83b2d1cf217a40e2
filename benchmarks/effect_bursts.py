"""How often a live run on shared cores seems to gain or lose by a knob that nobody reads.

`python -m benchmarks.effect_bursts [--changes 100] [--every 11] [--rates FOLDER]`. Three runs train at the
same time under one daemon. Each iteration computes for half of its time and waits for the other half. Another
process computes in bursts of 3 to 40 s, with pauses of the same kind, beside whatever else the machine does.
Each run has a knob that is changed again and again, to a value that it has not had before. The knob `work` of
one run is real: a lower value is less to compute. It changes the speed of the others too, as they share the
cores, so it is changed in the middle between their changes. Takes 19 minutes.

Counts the changes that the daemon reports as an effect. With `--rates` each run also writes down the end, in
monotonic seconds, and the rate of each iteration.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.measure import bench, machine, report, tell, until
from hoptui.client.session import Session
from hoptui.domain.tuning import Measured
from hoptui.protocol.messages import CommandRecord, RunState

CHANGES, EVERY_S, FIRST_S, SEED = 100, 11.0, 30.0, 0
NICE = 5
"""Of everything that this benchmark starts: other work on the machine comes first."""
ITERATION_S = {"short": 0.005, "long": 0.02, "real": 0.005}
REAL, EVERY = "real", 4
"""The run whose knob is real. It is changed after every fourth change of the others."""
FULL, LESS = 100, 50
"""Values of the real knob: shares of the work in %. The other half of an iteration waits."""
LEAST_S, MOST_S = 3.0, 40.0
"""Of a burst, and of a pause."""
START_S, ANSWER_S = 240.0, 3.0

RUN = """
import hashlib, os, sys, time, hoptui
name, each_s, nice, path = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.nice(nice)
block = bytes(65536)
began, count = time.thread_time(), 0
while time.thread_time() < began + 0.5:
    hashlib.sha256(block).digest()
    count += 1
blocks = max(1, round(count / 0.5 * each_s / 2))
run = hoptui.connect(name)
unused = run.knob("unused", 0, min=0, max=10**6, effect="speed")
work = run.knob("work", 100, min=1, max=100, effect="speed")
out = open(path, "w", buffering=1) if path else None
for i in run.iterations():
    began = time.perf_counter()
    for _ in range(max(1, blocks * work.value // 100)):
        hashlib.sha256(block).digest()
    time.sleep(each_s / 2)
    run.log(samples=1000)
    if out:
        print(time.monotonic(), 1 / (time.perf_counter() - began), file=out)
"""
LOAD = """
import os, random, sys, time
least_s, most_s, seed, nice = map(float, sys.argv[1:])
os.nice(int(nice))
chance = random.Random(seed)
while True:
    until = time.monotonic() + chance.uniform(least_s, most_s)
    while time.monotonic() < until:
        sum(range(10000))
    time.sleep(chance.uniform(least_s, most_s))
"""


class Given(NamedTuple):
    """What is changed: which run's knob to which value, and its command."""

    run: str
    value: int
    command: str
    t: float


def change(session: Session, runs: Mapping[str, RunState], chance: random.Random) -> list[Given]:
    """Change the knob that nobody reads, in each run that has no real one."""
    values = {name: chance.randrange(10**6) for name in runs if name != REAL}
    return submit(session, runs, {name: ("unused", value) for name, value in values.items()})


def submit(
    session: Session, runs: Mapping[str, RunState], changes: Mapping[str, tuple[str, int]]
) -> list[Given]:
    """Send changes, the knob and the value by the run, and wait for their outcomes."""
    given = []
    for name, (knob, value) in changes.items():
        command = session.submit(runs[name], "set", knob=knob, value=value)
        given.append(Given(name, value, command, time.monotonic()))
    for one in given:
        session.outcome(one.command, timeout_s=ANSWER_S)
    return given


def known(session: Session, name: str) -> RunState | None:
    """The run of this name with its knobs, None as long as the daemon knows none."""
    node = session.fetch(state=0).node
    return next((r for r in node.runs if r.name == name and r.knobs), None) if node else None


def outcomes(session: Session, run: RunState) -> dict[str, CommandRecord]:
    """The commands of a run, by their ids."""
    return {record.id: record for record in session.fetch(run=run.run).commands if record.run == run.run}


def summary(found: Sequence[Measured]) -> dict[str, Any]:
    """How many changes there are, and are reported as an effect. Medians of their figures."""
    figures = [m for m in found if m.gain is not None and m.interval is not None]
    return {
        "changes": len(found),
        "without_a_figure": len(found) - len(figures),
        "reported": sum(m.detectable for m in figures),
        "gains": [round(m.gain or 0.0, 3) for m in figures if m.detectable],
        "interval_median": round(median([m.interval or 0.0 for m in figures]), 3) if figures else None,
        "iterations_median": median([m.iterations for m in figures]) if figures else None,
    }


def measure(changes: int, every_s: float, seed: int, rates: Path | None) -> dict[str, Any]:
    """Change knobs so often, and count what is reported."""
    chance = random.Random(seed)
    given: list[Given] = []
    with bench() as node, node.session() as session:
        for name, each_s in ITERATION_S.items():
            path = str(rates / f"{name}.txt") if rates else ""
            node.python(RUN, name, str(each_s), str(NICE), path)
        node.python(LOAD, str(LEAST_S), str(MOST_S), str(seed), str(NICE))
        runs = {name: until(partial(known, session, name), START_S, name) for name in ITERATION_S}
        following = time.monotonic() + FIRST_S
        for number in range(changes):
            time.sleep(max(0.0, following - time.monotonic()))
            following += every_s
            given += change(session, runs, chance)
            if number % EVERY == 0:
                time.sleep(max(0.0, following - every_s / 2 - time.monotonic()))
                value = FULL if number // EVERY % 2 else LESS
                given += submit(session, runs, {REAL: ("work", value)})
            if rates:
                lines = [f"{g.run} {g.t} {g.value}" for g in given]
                (rates / "changes.txt").write_text("\n".join(lines) + "\n")
        time.sleep(every_s)
        figures = {}
        for name in ITERATION_S:
            records = outcomes(session, runs[name])
            mine = [records[g.command].measured for g in given if g.run == name and g.command in records]
            figures[name] = tell(name, summary([m or Measured() for m in mine]))
    null = [figures[name]["reported"] / max(1, figures[name]["changes"]) for name in figures if name != REAL]
    return {
        "changes": changes,
        "every_s": every_s,
        "seed": seed,
        "runs": figures,
        "met": {"at most 5 of 100 changes of nothing are reported": max(null) <= 0.05},
    }


def main() -> None:
    """Measure and report."""
    report("effect_bursts", measure(CHANGES, EVERY_S, SEED, None))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.effect_bursts", description="Bursts of load.")
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--every", type=float, default=EVERY_S)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rates", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    asked = _options()
    if (asked.changes, asked.every, asked.seed, asked.rates) == (CHANGES, EVERY_S, SEED, None):
        main()
    else:  # another measurement is no result to keep
        figures = measure(asked.changes, asked.every, asked.seed, asked.rates)
        print(json.dumps({"benchmark": "effect_bursts", "machine": machine(), **figures}))
