"""What protects a node from other users and from the network, with a real daemon and a real run."""

from __future__ import annotations

import os
import stat

import psutil
import pytest

from hoptui.node.processes import user_name
from hoptui.protocol import messages
from tests.conftest import TestNode


@pytest.mark.guarantee("socket-mode")
def test_only_the_user_may_open_the_socket_files(node: TestNode) -> None:
    before = os.umask(0)
    try:
        node.viewer()
    finally:
        os.umask(before)
    for path in (node.where.runs, node.where.viewers):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600


@pytest.mark.guarantee("peer-author")
def test_the_author_of_a_command_is_the_process_that_sent_it(node: TestNode) -> None:
    node.start()
    viewer = node.viewer()
    forged = messages.Origin(kind="tuner", user="root", pid=1, client="forged")
    record = viewer.outcome(viewer.command(viewer.run(), knob="grad_accum", value=8, origin=forged))
    assert record.stage == "applied"
    assert (record.origin.kind, record.origin.user, record.origin.pid, record.origin.client) == (
        "person",
        user_name(),
        os.getpid(),
        viewer.name,
    )


@pytest.mark.guarantee("no-network")
def test_nothing_listens_on_the_network(node: TestNode) -> None:
    training = psutil.Process(node.start().pid)
    viewer = node.viewer()
    viewer.run()
    daemon = psutil.Process(node.daemon_pid())
    assert daemon.net_connections("unix"), "its sockets are seen"
    for process in (training, daemon, *daemon.children(recursive=True)):
        assert process.net_connections("inet") == []
    bound = [c.laddr for c in training.net_connections("unix") if c.laddr]
    assert bound == [], "a training process has no socket to connect to"
