"""The processes of runs on their way to viewers: with those on GPUs, and only if they are new."""

from __future__ import annotations

from hoptui.daemon.handlers import pages
from hoptui.domain.devices import RunProcess
from tests.daemon.quiet_node import RUN, QuietNode


def test_a_new_tree_is_a_new_version() -> None:
    quiet = QuietNode()
    quiet.hello()
    version = quiet.node.processes_version
    tree = (RunProcess(pid=7, parent=0, run=RUN),)
    quiet.node.set_tree(tree)
    assert quiet.node.processes_version == version + 1
    quiet.node.set_tree(tree)
    assert quiet.node.processes_version == version + 1


def test_a_large_tree_is_cut_to_its_share() -> None:
    tree = tuple(RunProcess(pid=i, parent=1, run=RUN, command="x" * 200) for i in range(2000))
    sent = pages.tree(tree)
    assert tree[: len(sent)] == sent
    assert 200 < len(sent) < 600
