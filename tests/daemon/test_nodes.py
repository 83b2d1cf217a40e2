"""One run on two nodes: each node has a directory, and so a daemon, of its own."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from tests.conftest import TestNode, new_node, until
from tests.daemon.test_ranks import TRAINS
from tests.impatient import impatient_daemon
from tests.sdk.two_ranks import pair


@pytest.fixture
def other() -> Iterator[TestNode]:
    """The node of rank 1."""
    with new_node() as found:
        yield found


def test_a_node_without_rank_0_shows_and_records_its_ranks(node: TestNode, other: TestNode) -> None:
    for each in (node, other):
        impatient_daemon(each)
    here, there = node.viewer(), other.viewer()
    with pair(TRAINS, {}, of_ranks=(node.environment, other.environment)) as (first, second):
        until(lambda: there.state().runs, seconds=60, what="the run on the node of rank 1")
        run = there.run("two")
        assert (run.rank, run.world, run.pid, run.ranks) == (1, 2, second.pid, ())
        assert (here.run("two").rank, here.run("two").pid, here.run("two").ranks) == (0, first.pid, ())
        assert here.run("two").run == run.run
        assert [knob.spec.name for knob in run.knobs] == ["grad_accum"]
        until(lambda: there.vital(run.run).step > 20, what="iterations")
        assert there.vital(run.run).state == "live"
        until(lambda: there.fetch(cursors={f"run/{run.run}": 0}).columns, what="rows of rank 1")

        status = json.loads(other.hoptui("status", "two", "--json").stdout)
        assert [(rank["rank"], rank["pid"]) for rank in status["ranks"]] == [(1, second.pid)]
        assert status["ranks"][0]["iteration_s"] >= 0.02
        stacks = json.loads(other.hoptui("stack", "two", "--json").stdout)
        assert [each["rank"] for each in stacks["ranks"]] == [1]
        assert json.loads(other.hoptui("where", "two", "--json").stdout)["rank"] == 1

        # What rank 0 is told holds on both, and each node shows it.
        assert node.hoptui("set", "two", "grad_accum=8").returncode == 0
        there = other.viewer("later")
        until(lambda: there.run("two").knobs[0].value == 8, what="the new value on the node of rank 1")
        first.send_signal(signal.SIGTERM)
        assert (first.wait(10), second.wait(10)) == (0, 0)
        until(lambda: there.run("two").exit_reason, what="the end")
        assert there.run("two").exit_reason == "stopped"
    assert other.where.recording(run.run).exists()
