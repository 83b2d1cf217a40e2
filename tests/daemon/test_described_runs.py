"""The details of a run, from its script to viewers and to its recording, also across daemons."""

from __future__ import annotations

import os
import signal

import msgspec
import pytest

from hoptui.domain.details import RunDetails
from hoptui.protocol import messages
from hoptui.recording import Recording, library
from tests.conftest import RawViewer, TestNode, over, until

SCRIPT = """
import sys, time, hoptui
run = hoptui.connect("toy", config={"lr": 3e-4, "api_key": "abc"}, tags=["baseline"], notes="why")
for i in run.iterations():
    time.sleep(0.01)
    run.log(loss=1.0)
    run.summary["iterations"] = i
    if i == 20:
        run.config["later"] = True
    if run.stopping:
        break
run.summary["final"] = 7
"""


def describe(viewer: RawViewer, run: str) -> RunDetails | None:
    return viewer.ask(messages.Describe(id=9, run=run), messages.Description).details


def known(viewer: RawViewer, run: str) -> RunDetails:
    found = describe(viewer, run)
    assert found is not None
    return found


def test_details_reach_viewers_and_the_recording_and_a_new_daemon(node: TestNode) -> None:
    child = node.start(SCRIPT, RANK="0", HF_TOKEN="secret")
    viewer = node.viewer()
    run = viewer.run("toy")
    details = until(lambda: (d := describe(viewer, run.run)) and "later" in d.config and d, what="the config")
    assert details.config == {"lr": 3e-4, "api_key": "***", "later": True}
    assert (details.tags, details.notes, viewer.run("toy").tags) == (("baseline",), "why", ("baseline",))
    assert details.environment["RANK"] == "0"
    assert "secret" not in msgspec.json.encode(details).decode()
    before = details.summary["iterations"]
    until(lambda: known(viewer, run.run).summary["iterations"] > before, what="a later summary")

    os.kill(pid := node.daemon_pid(), signal.SIGKILL)
    until(lambda: over(pid), what="the daemon's end")
    second = until(lambda: node.daemon_pid() and node.viewer("again"), what="another daemon")
    until(lambda: (d := describe(second, run.run)) and d.config == details.config, what="the details again")

    child.send_signal(signal.SIGTERM)
    child.wait(10)
    path = node.where.recording(run.run)
    until(lambda: second.run("toy").exit_reason, what="the end of the run")
    with Recording.open(path) as recording:
        found = library.known_run(recording)
    assert found is not None
    assert found.details is not None
    assert found.details.config == details.config
    assert found.state.tags == ("baseline",)
    assert describe(second, "nobody") is None


def test_the_last_summary_is_sent_at_the_end(node: TestNode) -> None:
    script = """
import time, hoptui
run = hoptui.connect("short")
for i in run.iterations():
    time.sleep(0.01)
run.summary["final"] = 7
"""
    child = node.start(script)
    viewer = node.viewer()
    viewer.outcome(viewer.command(viewer.run("short"), "stop"))
    assert child.wait(20) == 0
    run = until(lambda: (r := viewer.run("short")).exit_reason and r, what="the end")
    assert known(viewer, run.run).summary == {"final": 7}


@pytest.mark.guarantee("run-size")
def test_huge_details_end_no_connection(node: TestNode) -> None:
    script = """
import sys, time, hoptui
run = hoptui.connect("huge", config={f"k{i}": "x" * 10_000 for i in range(3000)}, notes="n" * 10**6)
for i in range(400):
    run.knob(f"knob{i}", 1, description="d" * 3000)
run.summary.update({f"k{i}": [list(range(1000))] * 50 for i in range(1000)})
for i in run.iterations():
    time.sleep(0.01)
    run.log(i=i)
"""
    node.start(script)
    viewer = node.viewer()
    run = viewer.run("huge")
    until(lambda: viewer.vital(run.run).step > 5, what="iterations")
    details = until(lambda: (d := describe(viewer, run.run)) and d.summary_left_out and d, what="the summary")
    assert details.config_left_out > 2000
    assert details.summary_left_out > 900
    assert len(msgspec.msgpack.encode(details)) < 64 << 10
    assert viewer.vital(run.run).state == "live"
