"""`hoptui stack`: where the ranks of a run are now."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.cli.commands.stack import py_spy, py_spy_program
from hoptui.domain.facts import fact
from hoptui.domain.stacks import Stack, StackFrame, pack
from hoptui.protocol.messages import HUNG, RankStacks, RankState
from tests.cli.conftest import Hoptui
from tests.cli.ras_service import answer, replaying, service
from tests.client.fake_daemon import FakeDaemon
from tests.conftest import TestNode, until

SITE = "/opt/env/lib/python3.12/site-packages/"
READ: Stack = (StackFrame("/a/train.py", "main", 9), StackFrame("/a/data.py", "read", 37, call="recv"))
REDUCE: Stack = (
    StackFrame("/a/train.py", "main", 120),
    StackFrame(f"{SITE}torch/distributed/distributed_c10d.py", "all_reduce", 3252, call="wait"),
)
SPY = """#!/bin/sh
echo '[{"thread_name": "trainer", "os_thread_id": 4711, "frames": [
 {"name": "step", "filename": "fit.py", "line": 5}]},
 {"thread_name": "MainThread", "os_thread_id": 4710, "frames": [
 {"name": "read", "filename": "data.py", "line": 37}, {"name": "main", "filename": "train.py", "line": 9}]}]'
"""
IN_A_THREAD = """
import ctypes, pathlib, sys, threading, hoptui
hold_the_interpreter = ctypes.PyDLL(None).pause
def train():
    for step in run.iterations():
        if pathlib.Path(sys.argv[1]).exists():
            print(threading.get_native_id(), flush=True)
            hold_the_interpreter()
        threading.Event().wait(0.01)
run = hoptui.connect("fit", stacks=False)
trainer = threading.Thread(target=train)
trainer.start()
trainer.join()
"""


def refusing(_: socket.socket) -> None:
    raise AssertionError("it was asked")


@pytest.fixture
def three(ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """Three ranks of four are on this node. Rank 2 sends no samples."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    run = ppo.node.runs[0]
    ranks = (RankState(rank=1, pid=os.getpid()), RankState(rank=2, pid=os.getpid()))
    mine = structs.replace(run, world=4, ranks=ranks, pid=os.getpid())
    ppo.node = structs.replace(ppo.node, runs=(mine, *ppo.node.runs[1:]))
    ppo.stacks[run.run] = (
        RankStacks(rank=0, samples=pack({REDUCE: 20}, 0, 2)),
        RankStacks(rank=1, samples=pack({READ: 20}, 0, 2)),
    )
    return ppo


def test_the_odd_rank_is_first(hoptui: Hoptui, three: FakeDaemon) -> None:
    found = hoptui("stack", "ppo")
    assert found.code == 0
    lines = [line for line in found.out.splitlines() if not line.startswith(" ")]
    assert lines[0].startswith("rank 1 of 4 is in data.py:37 read (recv) (samples of the last 10 s, ")
    assert lines[1].startswith("rank 0 of 4 waits in all_reduce, train.py:120 (samples")
    assert lines[2] == "rank 2 has sent no stack samples for 10 s; pip install 'hoptui[stack]' reads it"
    assert lines[3] == "1 rank not known on this node"
    assert "    /a/data.py:37 read" in found.out


def test_json_has_the_stacks_and_their_sources(hoptui: Hoptui, three: FakeDaemon) -> None:
    found = hoptui("stack", "ppo", "--json").json
    assert [group["ranks"] for group in found["groups"]] == [[1], [0]]
    assert [frame["line"] for frame in found["groups"][0]["stack"]] == [9, 37]
    assert [each["source"] for each in found["ranks"]] == ["samples", "samples", None]
    assert hoptui("stack", "ppo", "--rank", "0", "--json").json["groups"][0]["ranks"] == [0]


def test_a_rank_without_samples_is_read_by_py_spy(
    hoptui: Hoptui, three: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "py-spy"
    program.write_text(SPY)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = hoptui("stack", "ppo", "--rank", "2")
    assert "rank 2 of 4 is in data.py:37 read (by py-spy, now)" in found.out
    for text in ("#!/bin/sh\nexit 1\n", "#!/bin/sh\necho nonsense\n", "#!/bin/sh\necho '[1]'\n", SPY[:60]):
        program.write_text(text)
        assert py_spy(os.getpid()) == ()


def test_py_spy_reads_the_thread_that_trains(
    hoptui: Hoptui, three: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment need not be active. A thread that has ended is not taken for another one."""
    program = tmp_path / "py-spy"
    program.write_text(SPY)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    run = three.node.runs[0]
    for thread, source in ((4711, "py-spy"), (4712, None)):
        ranks = (run.ranks[0], structs.replace(run.ranks[1], thread=thread))
        three.node = structs.replace(
            three.node, runs=(structs.replace(run, ranks=ranks), *three.node.runs[1:])
        )
        found = hoptui("stack", "ppo", "--rank", "2", "--json")
        assert [(each["thread"], each["source"]) for each in found.json["ranks"]] == [(thread, source)]
        assert [group["line"] for group in found.json["groups"]] == ([5] if source else [])


@pytest.mark.skipif(py_spy_program() is None, reason="py-spy is not installed")
def test_a_loop_in_another_thread_that_hangs_in_c_code(
    hoptui: Hoptui, node: TestNode, tmp_path: Path
) -> None:
    script = tmp_path / "fit.py"
    script.write_text(IN_A_THREAD)
    hang = tmp_path / "hang"
    process = node.spawn([sys.executable, str(script), str(hang)])
    viewer = node.viewer()
    until(lambda: viewer.run("fit").thread not in (0, process.pid), what="the thread that trains")
    hang.touch()
    assert process.stdout is not None
    thread = int(process.stdout.readline())
    assert viewer.run("fit").thread == thread

    def in_the_call() -> bool:
        found = hoptui("stack", "fit", "--json").json
        assert [each["thread"] for each in found["ranks"]] == [thread]
        return [group["line"] for group in found["groups"]] == [line]

    line = 1 + IN_A_THREAD.splitlines().index("            hold_the_interpreter()")
    until(in_the_call, what="the stack of the call")
    plain = hoptui("stack", "fit")
    assert plain.out.splitlines()[-1] == f"    {script}:{line} train"
    assert "(by py-spy, now)" in plain.out


def test_what_nccl_says_of_the_ranks(
    hoptui: Hoptui, three: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is in `--json` as it is. The text says which rank has left out a collective."""
    run = three.node.runs[0]
    ranks = (structs.replace(run.ranks[0], pid=os.getppid()),)
    three.node = structs.replace(three.node, runs=(structs.replace(run, ranks=ranks), *three.node.runs[1:]))
    text = answer((os.getpid(), os.getppid()))
    with service(refusing) as port:  # the run is not hung
        monkeypatch.setenv("NCCL_RAS_ADDR", f"localhost:{port}")
        assert hoptui("stack", "ppo", "--json").json["nccl"] is None
    hung = fact(HUNG, seconds=42.0, groups=[], silent=[], unseen=0)
    three.vitals[run.run] = structs.replace(three.vitals[run.run], state="busy", because=hung)
    with service(replaying(text)) as port:
        monkeypatch.setenv("NCCL_RAS_ADDR", f"localhost:{port}")
        assert hoptui("stack", "ppo", "--json").json["nccl"] == json.loads(text)
    with service(replaying(text)) as port:
        monkeypatch.setenv("NCCL_RAS_ADDR", f"localhost:{port}")
        lines = hoptui("stack", "ppo").out.splitlines()
    assert "NCCL: rank 1 has begun 5 × AllReduce, rank 0 has begun 6 ×" in lines
    assert lines[-1] == "NCCL answers on this node: --json has its communicators and what they count"


def test_what_there_is_not_is_said_in_a_sentence(hoptui: Hoptui, three: FakeDaemon) -> None:
    wrong = hoptui("stack", "ppo", "--rank", "7")
    assert (wrong.code, wrong.err) == (3, "hoptui: ppo has no rank 7 on this node, only 0, 1, 2\n")
    assert hoptui("stack", "pop").code == 3
    three.stacks.clear()
    assert hoptui("stack", "ppo").code == 3
