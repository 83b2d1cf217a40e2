"""How soon a loss that is NaN becomes an event that viewers see, and an alert.

    python -m benchmarks.bad_numbers [--iterations 0.01 0.1 2] [--repeats 10]

A run logs a finite loss in each iteration, and NaN in one of them: a float of Python, or a tensor. The time
is from just before `run.log` with it until a viewer has the event, and until the command of the alert runs.
The target of the event is one second, or one iteration if that is longer. Prints JSON.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.measure import Bench, bench, report, spread, tell, until
from hoptui.client.session import Session

LIMIT_S = 60.0
TARGET_S = 1.0
KINDS = {"float": "math.nan", "tensor": "torch.tensor(math.nan)"}
BEFORE_S, LEAST_BEFORE = 3.0, 5
"""So long, and so many iterations, the loss is finite before."""
RUN = """
import math, sys, time, torch, hoptui
run = hoptui.connect(sys.argv[1])
for step in run.iterations():
    time.sleep({iteration})
    if step == {bad_at}:
        print(time.time(), flush=True)
    run.log(loss={bad} if step == {bad_at} else 1.0 / (1 + step))
"""
ALERT = """
[alerts]
on = ["nan"]
most_per_hour = 1000

[[alerts.targets]]
type = "command"
command = ["sh", "-c", ': > "{folder}/$HOPTUI_ALERT_NAME"']
"""


def measure(node: Bench, session: Session, kind: str, iteration_s: float, repeat: int) -> dict[str, Any]:
    """Let one loss be NaN, and wait for its event and its alert.

    Raises:
        TimeoutError: one of them did not come within `LIMIT_S`.
    """
    name = f"nan-{kind}-{iteration_s:g}-{repeat}"
    bad_at = max(LEAST_BEFORE, round(BEFORE_S / iteration_s))
    child = node.python(RUN.format(iteration=iteration_s, bad_at=bad_at, bad=KINDS[kind]), name)
    try:
        assert child.stdout is not None
        logged = float(child.stdout.readline())
        event_s = _event(session, name) - logged
        alert = node.base / "alerts" / name
        until(alert.exists, LIMIT_S, f"the alert of {name}")
        alert_s = alert.stat().st_mtime - logged
    finally:
        child.kill()
        child.wait(20)
    found = {"kind": kind, "iteration_s": iteration_s, "event_s": event_s, "alert_s": alert_s}
    return tell(
        name, {key: round(value, 3) if isinstance(value, float) else value for key, value in found.items()}
    )


def _event(session: Session, name: str) -> float:
    """Return when the event of a run arrived, in seconds of the system's clock."""
    end, state = time.monotonic() + LIMIT_S, 0
    while time.monotonic() < end:
        delta = session.fetch(state=state, events=0, cursors={}, wait_s=1.0)
        arrived, state = time.time(), delta.state
        if any(event.code == "number.bad" and event.run in _ids(session, name) for event in delta.events):
            return arrived
    raise TimeoutError(f"no event of {name}")


def _ids(session: Session, name: str) -> set[str]:
    """Return the runs of a name."""
    node = session.fetch(state=0).node
    return {run.run for run in node.runs if run.name == name} if node is not None else set()


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bad_numbers")
    parser.add_argument("--iterations", nargs="+", type=float, default=[0.01, 0.1, 2.0], help="in seconds")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args(list(arguments))
    with bench() as node:
        _configure(node.base)
        with patch.dict(os.environ, XDG_CONFIG_HOME=str(node.base / "config")), node.session() as session:
            cases = [
                measure(node, session, kind, iteration_s, repeat)
                for iteration_s in given.iterations
                for kind in given.kinds
                for repeat in range(given.repeats)
            ]
    figures = {
        "by_iteration": {
            f"{iteration_s:g} s, {kind}": {
                reading: spread(
                    [c[reading] for c in cases if (c["iteration_s"], c["kind"]) == (iteration_s, kind)], 3
                )
                for reading in ("event_s", "alert_s")
            }
            for iteration_s in given.iterations
            for kind in given.kinds
        },
        "met": {
            "each event within 1 s, or one iteration": all(
                case["event_s"] <= max(TARGET_S, case["iteration_s"]) for case in cases
            )
        },
        "cases": cases,
    }
    return report("bad_numbers", figures)


def _configure(base: Path) -> None:
    """Write the file that sets the command of alerts."""
    folder = base / "alerts"
    folder.mkdir()
    config = base / "config" / "hoptui" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(ALERT.format(folder=folder))


if __name__ == "__main__":
    main(sys.argv[1:])
