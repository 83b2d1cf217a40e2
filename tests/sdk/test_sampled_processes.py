"""Which processes of a training are sampled: not its forked children, and none if it is switched off."""

from __future__ import annotations

import subprocess

import pytest

from hoptui.domain.stacks import Stack, unpack
from hoptui.presentation import stacks
from hoptui.protocol import messages
from tests.conftest import RawViewer, TestNode, until

pytestmark = pytest.mark.timeout(120)
LIMIT_S = 60.0
FORKS = """
import os, sys, threading, hoptui
run = hoptui.connect("forks")
parent = os.getpid()

def in_parent():
    sorted(range(50_000), key=str)

def in_child():
    sorted(range(50_000), key=str)

def child():
    for step in range(1_000_000):
        in_child()
        run.log(loss=1.0)
        run.boundary(step)
        if step == 20:
            names = [thread.name for thread in threading.enumerate()]
            print(names, len(os.listdir("/proc/self/task")), flush=True)
        if os.getppid() != parent:
            os._exit(0)

for step in run.iterations():
    in_parent()
    if step == 3 and not os.fork():
        child()
"""
WORKERS = """
import threading, hoptui, torch
run = hoptui.connect("forks")

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return self.in_child()

    def in_child(self):
        sorted(range(20_000), key=str)
        return sum(thread.name.startswith("hoptui") for thread in threading.enumerate())

def in_parent():
    for batch in torch.utils.data.DataLoader(Images(), num_workers=2, batch_size=8):
        names = [thread.name for thread in threading.enumerate()]
        run.log(of_workers=batch.sum(), of_parent=names.count("hoptui-stacks"))
        if not run.boundary():
            break

in_parent()
"""
LOOP = """
import threading, hoptui
run = hoptui.connect("{name}", stacks={stacks})
for step in run.iterations():
    sorted(range(20_000), key=str)
    names = [thread.name for thread in threading.enumerate()]
    run.log(samplers=names.count("hoptui-stacks"))
"""


def _samples(viewer: RawViewer, run: str) -> tuple[messages.RankStacks, ...]:
    return viewer.ask(messages.FetchStacks(id=1, run=run), messages.RunStacks).ranks


def _samples_after(viewer: RawViewer, run: str, t: int) -> list[Stack]:
    """All stacks of the run, once there are some that were sampled after the stamp `t`."""

    def found() -> list[Stack]:
        ranks = _samples(viewer, run)
        return [stack for each in ranks for stack in unpack(each.samples) if each.samples.ended > t]

    return until(found, seconds=LIMIT_S, what="stack samples")


def _functions(stacks: list[Stack]) -> set[str]:
    return {frame.function.rpartition(".")[2] for stack in stacks for frame in stack}


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


@pytest.mark.guarantee("forked-child")
def test_a_forked_child_has_no_sampler_and_its_parent_keeps_its_own(node: TestNode) -> None:
    viewer = node.viewer()
    child = node.start(FORKS)
    assert _line(child) == "['MainThread'] 1\n"
    run = viewer.run("forks").run
    found = _functions(_samples_after(viewer, run, viewer.fetch().now))
    assert "in_parent" in found
    assert not {"child", "in_child"} & found


@pytest.mark.guarantee("forked-child")
def test_workers_of_a_data_loader_have_no_sampler_and_their_parent_keeps_its_own(node: TestNode) -> None:
    viewer = node.viewer()
    node.start(WORKERS, OMP_NUM_THREADS="1")
    run = until(lambda: viewer.run("forks"), seconds=LIMIT_S).run
    until(lambda: viewer.vital(run).step > 3, seconds=LIMIT_S, what="batches")
    found = _functions(_samples_after(viewer, run, viewer.fetch().now))
    assert "in_parent" in found
    assert "in_child" not in found
    (rows,) = viewer.fetch(cursors={f"run/{run}": 0}).columns
    assert set(rows.column("of_workers")) == {0.0}
    assert rows.column("of_parent")[-1] == 1.0


@pytest.mark.parametrize(("stacks_on", "variable"), [("False", "on"), ("True", "off"), ("True", "0")])
def test_what_is_switched_off_is_not_sampled_and_where_says_so(
    stacks_on: str, variable: str, node: TestNode
) -> None:
    viewer = node.viewer()
    off = node.start(LOOP.format(name="off", stacks=stacks_on), HOPTUI_STACKS=variable)
    run = viewer.run("off").run
    node.start(LOOP.format(name="on", stacks="True"))
    other = viewer.run("on").run
    until(lambda: _samples(viewer, other), seconds=LIMIT_S, what="samples of the run that began later")
    assert _samples(viewer, run) == ()
    last = {}
    for columns in viewer.fetch(cursors={f"run/{run}": 0, f"run/{other}": 0}).columns:
        last[columns.source] = columns.column("samplers")[-1]
    assert last == {f"run/{run}": 0.0, f"run/{other}": 1.0}
    why = f"hoptui: off has no stack samples: {stacks.OFF}\n"
    where = node.hoptui("where", "off")
    assert (where.returncode, where.stderr) == (3, why)
    off.terminate()
    node.status_at_end("off")
    where = node.hoptui("where", "off")
    assert (where.returncode, where.stderr) == (3, why)
