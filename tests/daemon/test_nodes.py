"""One run on two nodes: each node has a directory, and so a daemon, of its own.

Each node tells the other what its ranks do, over the store of the ranks.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from hoptui.domain.jobs import JobState
from hoptui.model.recorded.store import RecordedStore
from hoptui.protocol.job_records import decode_state
from hoptui.recording import Recording
from tests.conftest import RawViewer, TestNode, new_node, until
from tests.daemon.test_ranks import TRAINS
from tests.impatient import impatient_daemon
from tests.integrations.rank_pair import free_port
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
        asked = until(lambda: samples(other), seconds=30, what="samples")
        assert (asked["rank"], asked["ranks"]) == (1, [1])

        # What rank 0 is told holds on both, and each node shows it.
        assert node.hoptui("set", "two", "grad_accum=8").returncode == 0
        there = other.viewer("later")
        until(lambda: there.run("two").knobs[0].value == 8, what="the new value on the node of rank 1")
        first.send_signal(signal.SIGTERM)
        assert (first.wait(10), second.wait(10)) == (0, 0)
        until(lambda: there.run("two").exit_reason, what="the end")
        assert there.run("two").exit_reason == "stopped"
    assert other.where.recording(run.run).exists()


def samples(node: TestNode) -> dict[str, Any] | None:
    """What `hoptui where` shows without a rank, None before there are samples."""
    asked = node.hoptui("where", "two", "--json")
    found: dict[str, Any] = json.loads(asked.stdout or "{}")
    return found if asked.returncode == 0 else None


def job_of(viewer: RawViewer, run: str) -> JobState | None:
    """The state of a run on all its nodes, as a node tells it now."""
    body = viewer.fetch(job=run, wait_s=0.0).job
    return decode_state(body) if body is not None else None


def complete(viewer: RawViewer, run: str) -> JobState:
    """The state of a run once both nodes are in it."""
    until(lambda: conditions(job_of(viewer, run)) == ["live", "live"], seconds=60, what="both nodes")
    state = job_of(viewer, run)
    assert state is not None
    return state


def recorded(node: TestNode, run: str) -> JobState | None:
    """What the recording of a node has of the state, as a replay shows it at its end."""
    with Recording.open(node.where.recording(run)) as opened:
        store = RecordedStore(opened)
        store.seek(store.span[1])
        return store.jobs.get(run)


def conditions(state: JobState | None) -> list[str]:
    return [node.condition for node in state.nodes] if state is not None else []


@pytest.mark.slow
def test_both_nodes_show_all_ranks_and_take_commands(node: TestNode, other: TestNode) -> None:
    node.daemon()
    there = other.viewer()
    with pair(TRAINS, {}, of_ranks=(node.environment, other.environment)) as (first, second):
        run = until(lambda: there.state().runs, seconds=60, what="the run on the node of rank 1")[0].run
        for each, own in ((node, 0), (other, 1)):
            viewer = each.viewer("asks")
            state = complete(viewer, run)
            assert (state.run, state.world, state.head, state.here) == (run, 2, 0, own)
            assert state.store_problem == ""
            assert [rank.rank for _, rank in state.ranks()] == [0, 1]
            assert all((rank.step or 0) > 0 and rank.condition == "live" for _, rank in state.ranks())
            assert all((rank.iteration_s or 0.0) > 0.01 for _, rank in state.ranks())

        told = other.hoptui("set", "two", "grad_accum=8")
        assert told.returncode == 0, told.stderr
        assert "grad_accum 4 → 8" in told.stdout
        (record,) = [r for r in node.viewer("later").fetch(run=run).commands if r.knob == "grad_accum"]
        assert (record.stage, record.effective, record.origin.kind) == ("applied", 8, "person")
        refused = other.hoptui("set", "two", "grad_accum=1000")
        assert refused.returncode != 0
        assert other.hoptui("tune", "two").returncode != 0

        until(lambda: recorded(node, run) and recorded(other, run), seconds=30, what="the recorded state")

        # The node of rank 1 disappears without a word.
        again = node.viewer("again")
        second.kill()
        until(lambda: conditions(job_of(again, run))[1:] == ["silent"], seconds=60, what="a silent node")
        silent = job_of(again, run)
        assert silent is not None
        assert silent.nodes[1].summary is not None  # its last state stays
        assert silent.nodes[1].age_s >= 5  # it is told in tenths of a second
        assert first.poll() is None


TORCH = """
import sys, time
import torch, torch.distributed as dist
import hoptui

rank = int(sys.argv[1])
dist.init_process_group("gloo", rank=rank, world_size=2)
run = hoptui.connect("torch")
knob = run.knob("n", 4, min=1, max=64)
ones = torch.ones(3)
for i in run.iterations():
    dist.all_reduce(ones)
    time.sleep(0.02)
run.close()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_store_of_torch_carries_the_state_and_commands(node: TestNode, other: TestNode) -> None:
    pytest.importorskip("torch")
    node.daemon()
    there = other.viewer()
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": "1"}
    with pair(TORCH, master, of_ranks=(node.environment, other.environment), begin="") as children:
        run = until(lambda: there.state().runs, seconds=60, what="the run on the node of rank 1")[0].run
        for each in (node, other):
            state = complete(each.viewer("asks"), run)
        assert (state.head, state.here, state.store_problem) == (0, 1, "")
        told = other.hoptui("set", "torch", "n=8")
        assert told.returncode == 0, told.stderr
        assert "n 4 → 8" in told.stdout
        assert other.hoptui("stop", "torch", "--yes").returncode == 0
        assert [child.wait(20) for child in children] == [0, 0]
        last = job_of(node.viewer("later"), run)
        assert last is not None
        assert last.nodes[1].condition in ("left", "live")
