"""What `status`, `ls` and `watch` show of metrics that are NaN, infinite or left out, and of phases."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.cli.conftest import Hoptui
from tests.conftest import TestNode, until

DIVERGED = """
import sys, time, hoptui
run = hoptui.connect("toy")
for i in run.iterations():
    with run.phase("update"):
        time.sleep(0.005)
    if i == 0:
        with run.phase("evaluation"):
            time.sleep(0.1)
    early = i < 20
    run.log(loss=2.5 if early else float("nan"), grad_norm=1.0 if early else float("inf"))
    run.log(episode_return=float("nan"))
    if early:
        run.log(warmup=float(i))
"""


def diverged(hoptui: Hoptui, node: TestNode) -> dict[str, Any]:
    node.start(DIVERGED)
    until(lambda: [run for run in hoptui("ls", "--json").json if (run["iteration"] or 0) > 100])
    found: dict[str, Any] = hoptui("status", "toy", "--json").json
    return found


def test_status_shows_nan_and_infinity_and_forgets_what_is_left_out(hoptui: Hoptui, node: TestNode) -> None:
    found = diverged(hoptui, node)
    assert (found["metrics"]["loss"], found["metrics"]["grad_norm"]) == ("nan", "inf")
    assert "warmup" not in found["metrics"]
    shown = hoptui("status", "toy").out.split("metrics")[1].split()
    assert shown[:4] == ["loss", "NaN", "grad_norm", "inf"]
    assert found["metrics"]["episode_return"] == "nan"
    assert shown[4:6] == ["episode_return", "–"]
    [listed] = hoptui("ls", "--json").json
    assert listed["metrics"]["loss"] == "nan"


def test_the_phases_are_those_of_one_iteration(hoptui: Hoptui, node: TestNode) -> None:
    found = diverged(hoptui, node)
    assert list(found["phases"]) == ["update"]
    assert found["phases"]["update"] <= found["metrics"]["iteration_s"]
    shown = hoptui("status", "toy").out
    assert re.search(r"update +\d", shown)
    assert not re.search(r"evaluation +\d", shown)


def test_watch_agrees_with_status(hoptui: Hoptui, node: TestNode) -> None:
    diverged(hoptui, node)
    script = node.start(
        DIVERGED.replace('"toy"', '"short"').replace("run.iterations()", "run.iterations(40)")
    )
    until(lambda: [run for run in hoptui("ls", "--json").json if run["name"] == "short"])
    watched = hoptui("watch", "short", "--json", "--every", "0").out.splitlines()
    assert script.wait(10) == 0
    last = json.loads(watched[-1])["metrics"]
    assert (last["loss"], last["grad_norm"]) == ("nan", "inf")
    assert hoptui("status", "short", "--json").json["metrics"]["loss"] == "nan"
    assert "loss NaN  grad_norm inf  episode_return –" in hoptui("watch", "short").out


MANY = """
import time, hoptui
run = hoptui.connect("many")
for i in run.iterations():
    time.sleep(0.01)
    run.log({f"m{n}": 1.0 for n in range(1500)}, note="warm" if i == 0 else 1.0)
"""


def test_status_says_what_is_not_shown_of_the_metrics(hoptui: Hoptui, node: TestNode) -> None:
    node.start(MANY)
    until(lambda: [run for run in hoptui("ls", "--json").json if (run["iteration"] or 0) > 5])

    def whole() -> dict[str, Any] | None:
        """The status once it has the first row, whose note is no number, and later ones with a note."""
        found: dict[str, Any] = hoptui("status", "many", "--json").json
        return found if (found["bad_values"], found["metrics_left_out"]) == (1, 1500 + 2 - 1024) else None

    found = until(whole)
    assert len(found["metrics"]) == 1024
    shown = hoptui("status", "many").out
    assert "\n  1 logged value was no number\n" in shown
    assert "\n  478 more metrics: hoptui export has all\n" in shown
