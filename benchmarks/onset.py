"""How soon the diagnosis names a new cause in a running loop, and how steady it is.

    python -m benchmarks.onset [--only 0.01 0.1 0.5 2] [--repeats 1] [--lanes 1] [--dwell 40] [--steady NAME…]

Loops change their cause while they run (`benchmarks/onset_loop.py`). The time is from the first iteration
with the new cause to the first answer of the daemon with a right verdict. `wrong` are verdicts in between,
other than `unknown`, that fit neither the old cause nor the new one. `left` are those after the right one.
`--steady` counts the changes of the verdict of labelled loads of the development lot in a minute. Uses a GPU
if there is one.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks.labelled.catalogue import LabelledLoad, all_loads, lot_of
from benchmarks.labelled_diagnosis import THREADS, Programs, right_of
from benchmarks.measure import Bench, bench, in_lanes, newer_state, quantile, report, spread, tell
from hoptui.client.session import Session, Unreachable

ITERATIONS_S = (0.01, 0.1, 0.5, 2.0)
MOST_S = 15.0
MINUTE_S = 60.0
START_S = 90.0
"""The longest time until the first verdict of a steady load."""
ANSWER_S = 60.0
"""The longest time to wait for an answer: other programs may take the CPU."""
STEADY = ("json_between_steps", "rows_in_python", "saves_each_step", "evaluates_often")
GOOD_ON_GPU = ("compute-bound", "power-limited", "healthy", "memory-bandwidth-bound")


class Shown(NamedTuple):
    """A verdict that the daemon showed from `t` on (monotonic seconds)."""

    t: float
    verdict: str


def right_verdicts(cause: str, *, gpu: bool) -> tuple[str, ...]:
    """Return the right verdicts for a cause."""
    if cause == "good":
        return GOOD_ON_GPU if gpu else ("healthy",)
    by_cause = {"input": "data-bound", "python": "host-bound", "item": "launch-bound", "save": "save-bound"}
    return (by_cause[cause],)


def verdicts(session: Session, name: str, child: subprocess.Popen[Any], until: float = 1e18) -> list[Shown]:
    """Follow a run until it ends, and return its verdicts. A run without one is `none`."""
    state, shown = 0, [Shown(0.0, "none")]
    while child.poll() is None and time.monotonic() < until:
        delta = newer_state(session, state, wait_s=0.2)
        state = delta.state
        if delta.node is None:
            continue
        run = next((r for r in reversed(delta.node.runs) if r.name == name and not r.exit_reason), None)
        verdict = (
            run.diagnosis.verdict if run is not None and run.diagnosis is not None else shown[-1].verdict
        )
        if verdict != shown[-1].verdict:
            shown.append(Shown(time.monotonic(), verdict))
    return shown


def onsets(
    changes: Sequence[tuple[str, float]], shown: Sequence[Shown], *, gpu: bool
) -> list[dict[str, Any]]:
    """Compare the changes of cause, with their times, with what was shown. The first cause and the end are no
    onsets."""
    found = []
    for (old, _), (new, began), (_, ended) in zip(changes, changes[1:], changes[2:], strict=False):
        before = [each.verdict for each in shown if each.t <= began][-1]
        during = [each for each in shown if began < each.t <= ended]
        right = right_verdicts(new, gpu=gpu)
        first = next((i for i, each in enumerate(during) if each.verdict in right), None)
        allowed = {*right, *right_verdicts(old, gpu=gpu), before, "unknown"}
        between = during[:first]
        found.append(
            {
                "from": old,
                "to": new,
                "before": before,
                "seconds": None if first is None else round(during[first].t - began, 1),
                "wrong": [each.verdict for each in between if each.verdict not in allowed],
                "left": [] if first is None else [each.verdict for each in during[first + 1 :]],
            }
        )
    return found


def follow(node: Bench, iteration_s: float, repeat: int, dwell_s: float) -> list[dict[str, Any]]:
    """Run one loop through all causes. The first repeat has them in the usual order."""
    gpu = torch.cuda.is_available()
    middle = ["input", "python", *(["item"] if gpu else []), "save"]
    if repeat:
        random.Random(repeat).shuffle(middle)
    name, causes = f"onset-{iteration_s:g}-{repeat}", ["good", *middle, "good"]
    command = ["-m", "benchmarks.onset_loop", name, "cuda" if gpu else "cpu", str(iteration_s), str(dwell_s)]
    child = node.start([sys.executable, *command, *causes], OMP_NUM_THREADS=THREADS)
    assert child.stdout is not None
    with Session(client="bench", start_daemon=True, timeout_s=ANSWER_S) as session:
        shown = verdicts(session, name, child)
    changes = [(cause, float(t)) for cause, t in (line.split() for line in child.stdout)]
    found = onsets(changes, shown, gpu=gpu)
    if len(found) < len(causes) - 1:
        raise RuntimeError(f"{name} ended early: {changes}")
    return [tell(name, each | {"iteration_s": iteration_s, "repeat": repeat}) for each in found]


def steady(node: Bench, load: LabelledLoad, lane: int) -> dict[str, Any]:
    """Count the changes of a load's verdict in the minute after its first one."""
    with (
        Programs(node, [load], lane) as programs,
        programs.next() as (_, child),
        Session(client="bench", start_daemon=True, timeout_s=ANSWER_S) as session,
    ):
        first = verdicts_until_one(session, f"labelled-{load.name}", child)
        shown = verdicts(session, f"labelled-{load.name}", child, until=time.monotonic() + MINUTE_S)
    told = [each.verdict for each in shown if each.verdict != "none"]
    changed = max(0, len(told) - 1)
    right = bool(told) and told[-1] in right_of(load)
    return tell(load.name, {"first": first, "verdicts": told, "changes": changed, "right": right})


def verdicts_until_one(session: Session, name: str, child: subprocess.Popen[Any]) -> str:
    """Wait for the first verdict of a run, and return it."""
    end, state = time.monotonic() + START_S, 0
    while child.poll() is None and time.monotonic() < end:
        delta = newer_state(session, state, wait_s=0.2)
        state = delta.state
        for run in delta.node.runs if delta.node is not None else ():
            if run.name == name and not run.exit_reason and run.diagnosis is not None:
                return run.diagnosis.verdict
    return "none"


def failure(job: Callable[[], None], _: int) -> str | None:
    """Run a job, and return its error, None without one."""
    try:
        job()
    except (Unreachable, RuntimeError, OSError) as error:
        return tell("failed", f"{type(error).__name__}: {error}")
    return None


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of onsets: how many were named, when, and what was shown besides."""
    seconds = [each["seconds"] for each in found if each["seconds"] is not None]
    figures: dict[str, Any] = {
        "onsets": len(found),
        "named": len(seconds),
        "in_time": sum(s <= MOST_S for s in seconds),
        "wrong_between": sum(bool(each["wrong"]) for each in found),
        "left_again": sum(bool(each["left"]) for each in found),
    }
    if seconds:
        figures["seconds"] = spread(seconds, 1) | {"p90": quantile(seconds, 0.9)}
    return figures


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", type=float, default=ITERATIONS_S, help="seconds of an iteration")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=1, help="loops at a time")
    parser.add_argument("--dwell", type=float, default=40.0, help="seconds of each cause")
    parser.add_argument("--steady", nargs="*", default=STEADY, help="labelled loads of the development lot")
    given = parser.parse_args(list(arguments))
    os.environ["HOPTUI_LABELLED_DEVICE"] = "cuda" if torch.cuda.is_available() else "cpu"
    loads = [all_loads()[name] for name in given.steady]
    if test := [load.name for load in loads if lot_of(load.name) != "development"]:
        parser.error(f"not in the development lot: {', '.join(test)}")
    found: list[dict[str, Any]] = []
    minutes: dict[str, Any] = {}
    with bench() as node, node.session():

        def follow_one(iteration_s: float, repeat: int) -> None:
            found.extend(follow(node, iteration_s, repeat, given.dwell))

        def steady_one(load: LabelledLoad) -> None:
            minutes[load.name] = steady(node, load, 0)

        loops = [partial(follow_one, each, repeat) for repeat in range(given.repeats) for each in given.only]
        jobs = [*loops, *(partial(steady_one, load) for load in loads)]
        failed = [text for text in in_lanes(failure, jobs, given.lanes) if text is not None]
    figures = {
        **summary(found),
        "by_iteration": {f"{s:g}": summary([e for e in found if e["iteration_s"] == s]) for s in given.only},
        "by_cause": {
            cause: summary([e for e in found if e["to"] == cause])
            for cause in dict.fromkeys(e["to"] for e in found)
        },
        "steady": minutes,
        "failed": failed,
        "met": {
            "all could be measured": not failed,
            f"a new verdict within {MOST_S:g} s": all((e["seconds"] or 1e9) <= MOST_S for e in found),
            "no wrong verdict in between": not any(e["wrong"] for e in found),
            "a steady loop keeps its verdict": not any(each["changes"] for each in minutes.values()),
        },
        "cases": found,
    }
    return report("onset", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
