"""Knobs that a run does not offer: a command for one is refused with the reason."""

from __future__ import annotations

import pytest

from hoptui.sdk.run import Run
from tests.conftest import TestNode
from tests.run_state import run_state
from tests.sdk.unit_run import send

WHY = "the loader reads it once"
DECLINES = f"""
import time, hoptui
run = hoptui.connect("toy")
run.decline_knob("batch_size", {WHY!r})
for _ in run.iterations():
    time.sleep(0.01)
"""


@pytest.mark.usefixtures("off")
def test_a_declined_knob_is_refused_with_the_reason(run: Run) -> None:
    run.decline_knob("batch_size", WHY)
    (refused,) = send(run, knob="batch_size", value=8)
    assert (refused.stage, refused.code) == ("rejected", "declined")
    assert refused.fields == {"knob": "batch_size", "reason": WHY}
    (unknown,) = send(run, knob="batch", value=8)
    assert unknown.code == "unknown_knob"


@pytest.mark.usefixtures("off")
def test_a_knob_that_is_declared_as_well_is_offered(run: Run) -> None:
    run.decline_knob("batch_size", WHY)
    knob = run.knob("batch_size", 4, min=1, max=8)
    send(run, knob="batch_size", value=8)
    run.boundary(0)
    assert knob.value == 8
    assert [outcome.stage for outcome in run_state(run).inbox.collect_outcomes()] == ["applied"]


def test_viewers_and_the_command_line_know_the_reason(node: TestNode) -> None:
    node.start(DECLINES)
    viewer = node.viewer()
    assert viewer.run().declined == {"batch_size": WHY}
    done = node.hoptui("set", "toy", "batch_size=8")
    assert done.returncode == 1
    assert WHY in done.stderr
