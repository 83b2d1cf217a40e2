"""Knobs and commands that a run does not offer are refused with the reason."""

from __future__ import annotations

import json

import pytest

from hoptui.sdk.run import Run
from tests.conftest import TestNode
from tests.run_state import run_state
from tests.sdk.unit_run import send

WHY = "the loader reads it once"
DECLINES = f"""
import time, hoptui
run = hoptui.connect("toy")
run.decline("batch_size", {WHY!r})
run.decline("stop", {WHY!r})
for _ in run.iterations():
    time.sleep(0.01)
"""


@pytest.mark.usefixtures("off")
def test_a_declined_knob_is_refused_with_the_reason(run: Run) -> None:
    run.decline("batch_size", WHY)
    (refused,) = send(run, knob="batch_size", value=8)
    assert (refused.stage, refused.code) == ("rejected", "declined")
    assert refused.fields == {"knob": "batch_size", "reason": WHY}
    (unknown,) = send(run, knob="batch", value=8)
    assert unknown.code == "unknown_knob"


@pytest.mark.usefixtures("off")
def test_a_knob_that_is_declared_as_well_is_offered(run: Run) -> None:
    run.decline("batch_size", WHY)
    knob = run.knob("batch_size", 4, min=1, max=8)
    send(run, knob="batch_size", value=8)
    run.boundary(0)
    assert knob.value == 8
    assert [outcome.stage for outcome in run_state(run).inbox.collect_outcomes()] == ["applied"]


@pytest.mark.usefixtures("off")
def test_a_declined_command_is_refused_until_it_is_offered_again(run: Run) -> None:
    run.decline("pause", WHY)
    (refused,) = send(run, "pause")
    assert (refused.stage, refused.code) == ("rejected", "declined")
    assert refused.fields == {"verb": "pause", "reason": WHY}
    run.decline("pause", "")
    assert send(run, "pause")[0].stage == "accepted"


@pytest.mark.usefixtures("off")
@pytest.mark.parametrize(("verb", "value"), [("checkpoint", None), ("profile", 3)])
def test_a_declined_command_is_offered_once_it_has_a_handler(run: Run, verb: str, value: int | None) -> None:
    run.decline(verb, WHY)
    (refused,) = send(run, verb, value=value)
    assert (refused.code, refused.fields) == ("declined", {"verb": verb, "reason": WHY})
    getattr(run, f"on_{verb}")(lambda *_: None)
    assert send(run, verb, value=value)[0].stage == "accepted"
    run.decline(verb, WHY)
    assert send(run, verb, value=value)[0].code == "declined", "the last word counts"


def test_viewers_and_the_command_line_know_the_reason(node: TestNode) -> None:
    node.start(DECLINES)
    viewer = node.viewer()
    assert viewer.run().declined == {"batch_size": WHY, "stop": WHY}
    assert json.loads(node.hoptui("status", "toy", "--json").stdout)["declined"] == viewer.run().declined
    shown = node.hoptui("status", "toy").stdout.splitlines()
    assert [line.split()[0] for line in shown if line.endswith(WHY)] == ["batch_size", "stop"]
    done = node.hoptui("set", "toy", "batch_size=8")
    assert done.returncode == 1
    assert WHY in done.stderr
    done = node.hoptui("stop", "toy", "--yes")
    assert done.returncode == 1
    assert WHY in done.stdout + done.stderr
