"""A run that is still declaring its knobs: what `ls` says, and what `set` waits for."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import TestNode, until

SCRIPT = """
import sys, time, hoptui
run = hoptui.connect("slow")
sys.stdin.readline()
lr = run.knob("lr", 0.1, min=0.0, max=1.0)
sys.stdin.readline()
for i in run.iterations():
    time.sleep(0.01)
"""


def test_a_run_is_starting_until_its_first_iteration_and_set_waits_for_its_knobs(node: TestNode) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=node.environment, stdin=subprocess.PIPE, text=True
    )
    node._children.append(run)
    assert run.stdin is not None
    viewer = node.viewer()
    until(lambda: viewer.run("slow"), what="the run")
    (listed,) = json.loads(node.hoptui("ls", "--json").stdout)
    assert (listed["state"], listed["knobs"]) == ("starting", {})
    change = node.spawn([sys.executable, "-u", "-m", "hoptui", "set", "slow", "lr=0.5"])
    assert change.stderr is not None
    assert "waiting for lr" in change.stderr.readline()
    run.stdin.write("\n")
    run.stdin.flush()
    until(lambda: viewer.run("slow").knobs, what="the knob")
    assert "starting" in node.hoptui("ls").stdout
    run.stdin.write("\n")
    run.stdin.flush()
    assert change.wait(15) == 0
    assert [knob.value for knob in viewer.run("slow").knobs] == [0.5]
    until(lambda: viewer.vital(listed["run"]).state == "live", what="the first iteration")


DECLINES = """
import sys, hoptui
run = hoptui.connect("slow")
run.decline("batch_size", "the loader reads it once")
sys.stdin.readline()
"""


def test_set_does_not_wait_for_a_knob_that_the_script_has_declined(node: TestNode) -> None:
    node._children.append(
        subprocess.Popen(
            [sys.executable, "-c", DECLINES], env=node.environment, stdin=subprocess.PIPE, text=True
        )
    )
    viewer = node.viewer()
    until(lambda: viewer.run("slow").declined, what="the run")
    done = node.hoptui("set", "slow", "batch_size=8", "--timeout", "60", seconds=30)
    assert done.returncode == 1
    assert "waiting" not in done.stderr
    assert "batch_size cannot change in this run: the loader reads it once" in done.stderr
