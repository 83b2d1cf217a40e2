"""One run on two nodes under real agents of torchrun: a rank dies, and both nodes start their ranks again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hoptui.protocol.messages import RunState
from tests.conftest import RawViewer, TestNode, new_node, until
from tests.daemon.test_nodes import complete, conditions, job_of
from tests.integrations.rank_pair import free_port

SCRIPT = """
import json, sys, time
from pathlib import Path
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg
import hoptui

folder = Path(sys.argv[1])
saved = folder / "checkpoint.json"
store, rank, world = next(dist.rendezvous("env://"))
# With gloo, ranks find old addresses in the store that the agents keep, and fail.
dist.init_process_group("fake", store=store, rank=rank, world_size=world)
known = json.loads(saved.read_text()) if saved.exists() else None
run = hoptui.connect("elastic", resume=known["hoptui"] if known else None)
knob = run.knob("n", 4, min=1, max=64)
start = known["step"] if known else 0
for step in run.iterations(1_000_000, start=start):
    time.sleep(0.02)
    if rank == 0 and step % 20 == 0:
        partial = saved.with_suffix(".partial")
        partial.write_text(json.dumps({"hoptui": run.state_dict(), "step": step}))
        partial.rename(saved)
    if knob.value != 4 and not (folder / f"seen-{rank}").exists():
        (folder / f"seen-{rank}").write_text(f"{step - start} {knob.value}")
    if (folder / "end").exists():
        break
run.close()
"""
START_S, RESTART_S, END_S = 120.0, 150.0, 40.0
"""Limits for a machine that has much else to do. Two agents import torch twice each."""


@contextmanager
def agent(
    node: TestNode, port: str, script: Path, folder: Path, *, host: bool
) -> Iterator[subprocess.Popen[bytes]]:
    """An agent with one rank, in a session of its own. It and its rank are gone afterwards."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    command += ["--rdzv-id", "elastic", "--rdzv-conf", f"is_host={int(host)}", "--local-addr", "127.0.0.1"]
    command += ["--monitor-interval", "0.2", str(script), str(folder)]
    environment = node.environment | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (folder / f"agent-{int(host)}.log").open("wb") as log:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield child
    finally:
        child.terminate()  # it ends its rank
        with suppress(subprocess.TimeoutExpired):
            child.wait(END_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(END_S)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_dead_rank_starts_the_next_restart_on_both_nodes(node: TestNode, tmp_path: Path) -> None:
    script, port = tmp_path / "train.py", free_port()
    script.write_text(SCRIPT)
    with (
        new_node() as other,
        agent(node, port, script, tmp_path, host=True) as first,
        agent(other, port, script, tmp_path, host=False) as second,
    ):
        nodes = {0: node, 1: other}
        viewers = {at: each.viewer() for at, each in nodes.items()}
        until(
            lambda: None not in [_run(viewer) for viewer in viewers.values()],
            seconds=START_S,
            what="the run on both",
        )
        ranks = {_last(viewer).rank: at for at, viewer in viewers.items()}
        assert set(ranks) == {0, 1}
        before = {at: _last(viewer) for at, viewer in viewers.items()}
        assert before[0].run == before[1].run
        complete(viewers[0], before[0].run)
        until(lambda: (tmp_path / "checkpoint.json").exists(), seconds=START_S, what="a checkpoint")

        os.kill(before[ranks[1]].pid, signal.SIGKILL)

        def restarted() -> bool:
            # A viewer that asks nothing is forgotten: so both ask.
            return False not in [_restarted(viewers[at], run) for at, run in before.items()]

        try:
            until(restarted, seconds=RESTART_S, what="the restart on both nodes")
        except AssertionError as error:
            seen_by = [
                [(r.epoch, r.pid, r.rank, r.exit_reason) for r in v.state().runs] for v in viewers.values()
            ]
            logs = [path.read_text()[-2000:] for path in sorted(tmp_path.glob("agent-*.log"))]
            raise AssertionError(f"{error}: {seen_by}", *logs) from None
        after = {at: _last(viewer) for at, viewer in viewers.items()}
        assert {run.run for run in after.values()} == {before[0].run}, "the same run"
        assert {run.world for run in after.values()} == {2}
        ranks = {run.rank: at for at, run in after.items()}
        assert set(ranks) == {0, 1}, "the rendezvous gives out the ranks anew"
        for each in nodes.values():
            viewer = each.viewer("later")
            until(lambda viewer=viewer: _complete(viewer, before[0]), seconds=RESTART_S, what="all ranks")  # type: ignore[misc]

        told = nodes[ranks[1]].hoptui("set", "elastic", "n=8")
        assert told.returncode == 0, told.stderr
        until(lambda: len(list(tmp_path.glob("seen-*"))) == 2, what="the new value on both ranks")
        (tmp_path / "end").touch()
        assert (first.wait(END_S), second.wait(END_S)) == (0, 0)
        seen = {path.name: path.read_text() for path in sorted(tmp_path.glob("seen-*"))}
        assert len(seen) == 2, seen
        assert len(set(seen.values())) == 1, "at one iteration of the restart, with one value"
        assert next(iter(seen.values())).endswith(" 8")


def _run(viewer: RawViewer) -> RunState | None:
    """The run on a node, None before there is one that lives."""
    live = [run for run in viewer.state().runs if not run.exit_reason]
    return live[0] if live else None


def _restarted(viewer: RawViewer, before: RunState) -> bool:
    run = _run(viewer)
    return run is not None and run.epoch > before.epoch and run.pid != before.pid


def _complete(viewer: RawViewer, before: RunState) -> bool:
    """Whether a node shows both nodes, of the restart."""
    state = job_of(viewer, before.run)
    return (
        state is not None
        and state.epoch > before.epoch
        and state.world == 2
        and conditions(state) == ["live", "live"]
        and sorted(rank.rank for _, rank in state.ranks()) == [0, 1]
    )


def _last(viewer: RawViewer) -> RunState:
    run = _run(viewer)
    assert run is not None
    return run
