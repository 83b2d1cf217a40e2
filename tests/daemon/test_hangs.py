"""A run without progress is shown as hung, with the odd rank, and a run that works is not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hoptui.daemon.hangs import Hangs
from hoptui.daemon.rank_summaries import node_summary
from hoptui.domain.columns import pack
from hoptui.domain.jobs import JobNode, JobState, NodeSummary, RankSummary
from hoptui.domain.stacks import Stack, StackFrame
from hoptui.domain.stacks import pack as pack_stacks
from hoptui.presentation import sentences
from hoptui.protocol.messages import Pulse, RunHello, Stacks
from tests.conftest import TestNode, until
from tests.daemon.quiet_node import RUN, SECOND, QuietNode
from tests.impatient import impatient_daemon

SITE = "/opt/env/lib/python3.12/site-packages/"
READ = (StackFrame("/a/train.py", "main", 9), StackFrame("/a/data.py", "read", 37, call="recv"))
REDUCE = (
    StackFrame("/a/train.py", "main", 120),
    StackFrame(f"{SITE}torch/distributed/c10d_logger.py", "wrapper", 83),
    StackFrame(f"{SITE}torch/distributed/distributed_c10d.py", "all_reduce", 3252, call="wait"),
)
SAVE = (StackFrame("/a/train.py", "main", 9), StackFrame(f"{SITE}torch/serialization.py", "save", 9))
EVALUATE = (StackFrame("/a/train.py", "main", 9), StackFrame("/a/train.py", "evaluate", 50, call="recv"))
DEBUG = (StackFrame("/a/train.py", "main", 9), StackFrame("/usr/lib/python3.12/pdb.py", "Pdb.interaction", 1))

LOOP = (
    StackFrame("/a/train.py", "<module>", 90),
    StackFrame("/usr/lib/python3.12/asyncio/runners.py", "run", 194),
    StackFrame("/usr/lib/python3.12/asyncio/base_events.py", "BaseEventLoop._run_once", 1898),
)
SELECT = StackFrame("/usr/lib/python3.12/selectors.py", "EpollSelector.select", 468, call="_selector.poll")
SHELL = (*LOOP, SELECT)
AWAIT = (*LOOP, StackFrame("/a/train.py", "rewards", 31), SELECT)


class Case:
    """A run, the judge of hangs, and the states of its processes."""

    def __init__(self, world: int = 1) -> None:
        self.quiet = quiet = QuietNode()
        self.states: dict[int, str] = {}
        self.hangs = Hangs(quiet.node, lambda pid: self.states.get(pid, "S"))
        self.world = world
        hello = RunHello(
            protocol=1, run=RUN, name="lm", epoch=1, nonce="n", pid=1, started=0, step=0, world=world
        )
        self.hello = hello
        quiet.runs.receive(b"0", None, hello)
        self.progress_at = quiet.now
        self.stacks: dict[int, Stack] = {}
        self.pulsing = set(range(world))

    def join(self, rank: int) -> None:
        self.quiet.runs.receive(b"%d" % rank, None, structs.replace(self.hello, rank=rank, pid=1 + rank))

    def iterate(self, *seconds: float) -> None:
        for each in seconds:
            self.wait(each)
            self.progress_at = self.quiet.now
            step = self.quiet.run.last_step + 1
            row = (self.quiet.now, step, {"iteration_s": each})
            self.quiet.node.rows((pack(f"run/{RUN}", [row]),))
            self.wait(0)

    def wait(self, seconds: float, phase: str = "", *, paused: bool = False) -> None:
        """So much time passes, with a pulse, samples and a look each second."""
        end = self.quiet.now + int(seconds * SECOND)
        while True:
            now = self.quiet.now = min(end, self.quiet.now + SECOND)
            pulse = Pulse(
                step=self.quiet.run.last_step,
                t=now,
                progress_age_s=(now - self.progress_at) / SECOND,
                phase=phase,
                paused=paused,
            )
            for rank in range(self.world):
                if rank in self.pulsing:
                    self.quiet.runs.receive(b"%d" % rank, None, pulse)
                    if stack := self.stacks.get(rank):
                        samples = pack_stacks({stack: 10}, now - SECOND, now)
                        self.quiet.runs.receive(b"%d" % rank, None, Stacks(samples=samples))
            self.hangs.tend()
            if now >= end:
                return

    @property
    def code(self) -> str:
        because = self.quiet.run.judge(self.quiet.now / SECOND)[1]
        return because.code if because is not None else ""

    @property
    def text(self) -> str:
        return sentences.text_of(self.quiet.run.judge(self.quiet.now / SECOND)[1])

    @property
    def told(self) -> list[tuple[str, int | None]]:
        return [(event.code, event.step) for event in self.quiet.node.events if event.kind == "hung"]


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_run_without_progress_is_hung_once_and_goes_on(case: Case) -> None:
    case.stacks[0] = READ
    case.iterate(*[0.5] * 20)
    case.wait(9.5)
    assert (case.code, case.told) == ("state.in_phase", [])
    case.wait(2)
    assert case.text == "no iteration ended for 11 s; it is in data.py:37 read (recv)"
    case.wait(60)
    assert case.told == [("run.hung", 21)]
    case.iterate(1.0)
    assert case.code == ""
    assert [code for code, _ in case.told] == ["run.hung", "run.progress"]
    event = [each for each in case.quiet.node.events if each.kind == "hung"][-1]
    assert 70 < event.fields["after_s"] < 74


def test_other_nodes_know_which_rank_does_not_answer() -> None:
    case = Case(world=2)
    case.join(1)
    case.stacks[0] = REDUCE
    case.iterate(*[0.5] * 20)
    case.pulsing.discard(1)
    case.wait(40)
    assert case.code == "state.hung"
    ranks = node_summary(case.quiet.node, case.quiet.run, 1).ranks
    assert [rank.condition for rank in ranks] == ["hung", "unknown"]


def test_a_slow_loop_needs_five_iterations_without_progress(case: Case) -> None:
    case.iterate(*[6.0] * 10)
    case.wait(29)
    assert case.code != "state.hung"
    case.wait(3)
    assert case.code == "state.hung"


def test_an_iteration_that_is_long_now_and_then_is_not_hung(case: Case) -> None:
    for _ in range(4):
        case.iterate(*[1.0] * 20)
        case.iterate(40.0)
    assert [code for code, _ in case.told] == ["run.hung", "run.progress"], "the first of them"
    case.wait(59)
    assert case.code != "state.hung"
    case.wait(3)
    assert case.code == "state.hung"


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        (SAVE, "it saves in train.py:9 main"),
        (EVALUATE, "it evaluates in train.py:50 evaluate"),
        (DEBUG, ""),
        (SHELL, ""),
    ],
)
def test_long_work_and_a_debugger_are_not_hung(case: Case, stack: Stack, text: str) -> None:
    case.stacks[0] = stack
    case.iterate(*[0.5] * 20)
    case.wait(60)
    assert (case.code, case.told) == ("state.works", [])
    assert text in case.text


def test_a_task_that_awaits_for_too_long_is_hung(case: Case) -> None:
    case.stacks[0] = AWAIT
    case.iterate(*[0.5] * 20)
    case.wait(12)
    assert case.text == "no iteration ended for 12 s; it is in train.py:31 rewards (_selector.poll)"
    assert [code for code, _ in case.told] == ["run.hung"]


def test_a_phase_of_that_name_is_not_hung(case: Case) -> None:
    case.iterate(*[0.5] * 20)
    case.wait(30, phase="evaluation")
    assert case.text == "no iteration ended for 30 s: in evaluation"
    case.wait(8)
    assert case.told == [], "work after the evaluation has time, too"
    case.wait(4)
    assert case.code == "state.hung"


def test_a_pause_is_not_hung(case: Case) -> None:
    case.iterate(*[0.5] * 20)
    case.wait(60, paused=True)
    assert (case.code, case.told) == ("state.paused", [])


def test_the_first_and_the_last_iteration_are_not_hung(case: Case) -> None:
    case.wait(100)
    assert case.code == "state.works"
    case.iterate(100.0, *[0.5] * 20)
    assert case.told == []
    case.wait(12)
    assert case.code == "state.hung", "the first iteration says nothing about later ones"


def test_a_thread_without_a_stack_is_no_hang(case: Case) -> None:
    case.stacks[0] = READ
    case.iterate(*[0.5] * 20)
    case.stacks.clear()
    case.wait(30)
    assert (case.code, [code for code, _ in case.told]) == ("state.no_stack", [])


def test_the_odd_rank_is_first() -> None:
    case = Case(world=8)
    for rank in range(1, 8):
        case.join(rank)
    case.stacks = dict.fromkeys(range(8), REDUCE) | {5: READ}
    case.iterate(*[0.5] * 20)
    case.wait(12)
    odd, others = "rank 5 of 8 is in data.py:37 read (recv)", "7 ranks wait in all_reduce, train.py:120"
    assert case.text == f"no iteration ended for 12 s; {odd}; {others}"


@pytest.mark.parametrize(
    ("state", "text"), [("T", "stopped (SIGSTOP)"), ("R", "C code holds the interpreter")]
)
def test_a_rank_that_does_not_answer_is_named(state: str, text: str) -> None:
    case = Case(world=4)
    for rank in (1, 2):
        case.join(rank)
    case.stacks = dict.fromkeys(range(3), REDUCE)
    case.iterate(*[0.5] * 20)
    case.pulsing.discard(2)
    case.states[3] = state
    case.wait(12)
    assert f"rank 2 does not answer: {text}" in case.text
    assert "last seen 12 s ago in train.py:120 main (all_reduce);" in case.text
    assert "ranks 0, 1 wait in all_reduce" in case.text
    assert "1 rank not known on this node" in case.text


def test_ranks_of_other_nodes_are_named_by_their_lines() -> None:
    case = Case(world=6)
    case.join(1)
    case.stacks = dict.fromkeys(range(2), REDUCE)

    def node(index: int, ranks: tuple[RankSummary, ...]) -> JobNode:
        summary = NodeSummary(host=f"gpu0{index}", run="r", epoch=1, number=1, wall=0.0, ranks=ranks)
        return JobNode(index=index, condition="live", age_s=0.0, summary=summary)

    at = "data.py:37 read"
    odd = RankSummary(rank=3, waiting=0.0, line=at, kind="input", line_share=1.0)
    found = (
        node(0, (RankSummary(rank=0), RankSummary(rank=1))),
        node(1, (RankSummary(rank=2, waiting=1.0), odd)),
    )
    run = case.quiet.node.registry.get(RUN)
    assert run is not None
    run.job = JobState(run="r", epoch=1, world=6, nodes=found, here=0)
    case.iterate(*[0.5] * 20)
    case.wait(12)
    assert "rank 3 on gpu01 is most in data.py:37 read" in case.text
    assert "rank 2 on gpu01 mostly waits for other ranks" in case.text
    assert case.text.endswith("2 ranks not known on this node")


def test_a_daemon_that_was_stopped_does_not_judge_at_once(case: Case) -> None:
    case.iterate(*[0.5] * 20)
    case.quiet.now += 100 * SECOND
    case.hangs.tend()
    assert (case.code, case.told) == ("state.no_pulse", [])
    case.wait(3)
    assert case.told == []
    case.wait(10)
    assert [code for code, _ in case.told] == ["run.hung"]


HANG = """
import ctypes, os, signal, time, hoptui
run = hoptui.connect("toy")
def read():
    {how}
for step in run.iterations():
    time.sleep(0.01)
    if step == 50:
        read()
"""
HOWS = {
    "Python": ("time.sleep(1000)", "it is in <string>:5 read (time.sleep)"),
    "C": ("ctypes.PyDLL(None).sleep(1000)", "it does not answer: C code holds the interpreter"),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", "it does not answer: stopped (SIGSTOP)"),
}


@pytest.mark.parametrize("how", HOWS)
def test_a_user_sees_a_hang(node: TestNode, how: str) -> None:
    impatient_daemon(node, hung_s=2.5, no_pulse_s=1.5)
    call, expected = HOWS[how]
    training = node.start(HANG.format(how=call))
    viewer = node.viewer()
    try:
        event = until(
            lambda: next((each for each in viewer.fetch().events if each.code == "run.hung"), None),
            what="the event",
        )
        text = sentences.event_text(event)
        assert expected in text
        status: dict[str, Any] = json.loads(node.hoptui("status", "toy", "--json").stdout)
        assert (status["state"], status["because"]["code"]) == ("hung", "state.hung")
        assert "◔ hung" in node.hoptui("ls").stdout
        assert "hung: no iteration ended for" in node.hoptui("status", "toy").stdout
    finally:
        training.send_signal(signal.SIGCONT)
        training.kill()
        training.wait(10)


ABANDONED = """
import os, sys, threading, torch, torch.distributed as dist, hoptui
rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
run = hoptui.connect("pair", ranks="auto")
def leave():
    threading.Event().wait()
for step in run.iterations():
    threading.Event().wait(0.02)
    if step == 50 and rank == 1:
        leave()
    dist.all_reduce(torch.ones(4))
"""


def test_the_rank_that_left_a_collective_is_named(node: TestNode, tmp_path: Path) -> None:
    """A rank that is stopped is named as such, too."""
    impatient_daemon(node, hung_s=2.5, no_pulse_s=1.5)
    program = tmp_path / "pair.py"
    program.write_text(ABANDONED)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(tmp_path / "store")],
            env={**node.environment, "RANK": str(rank), "WORLD_SIZE": "2"},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    viewer = node.viewer()

    def hung(expected: str) -> bool:
        because = viewer.vital(viewer.run("pair").run).because
        return (
            because is not None and because.code == "state.hung" and expected in sentences.sentence(because)
        )

    try:
        until(lambda: viewer.fetch().vitals, what="the run", seconds=60)
        until(lambda: hung("rank 1 of 2 is in pair.py:8 leave"), what="the odd rank", seconds=60)
        until(lambda: hung("rank 0 of 2 waits in all_reduce, pair.py:13"), what="the other one")
        ranks[1].send_signal(signal.SIGSTOP)
        until(lambda: hung("rank 1 does not answer: stopped (SIGSTOP)"), what="the stopped rank")
    finally:
        for each in ranks:
            each.kill()
        for each in ranks:
            each.wait(10)
