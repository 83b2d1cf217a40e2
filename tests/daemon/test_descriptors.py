"""A daemon near its limit of file descriptors: it refuses with a reason, and never aborts."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import ExitStack

import pytest
import zmq

from hoptui.daemon import descriptors
from hoptui.node import processes
from hoptui.protocol import codec, messages
from tests.conftest import RawViewer, TestNode, over, until
from tests.impatient import brisk_command


def limited(soft: int, hard: int, command: list[str]) -> list[str]:
    """A command under limits of open files."""
    code = (
        "import os, resource, sys; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-c", code, *command]


def test_the_soft_limit_is_raised(node: TestNode) -> None:
    node.spawn(limited(130, 400, brisk_command()))
    pid = until(node.daemon_pid, what="the daemon")
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (400, 400)


def test_a_daemon_with_too_few_does_not_start_and_says_why(node: TestNode) -> None:
    command = limited(40, 40, [sys.executable, "-m", "hoptui.daemon"])
    ended = subprocess.run(
        command, env=node.environment, capture_output=True, text=True, timeout=20, check=False
    )
    assert (ended.returncode, str(descriptors.LEAST) in ended.stderr) == (1, True)


@pytest.mark.guarantee("few-descriptors")
def test_more_connections_than_descriptors(node: TestNode) -> None:
    """It aborted. Runs and viewers that come too late get a reason; those that are there are served."""
    node.spawn(limited(descriptors.LEAST, descriptors.LEAST, brisk_command()))
    pid = until(node.daemon_pid, what="the daemon")
    viewer = node.viewer("first")
    refused: list[str] = []
    welcome: list[zmq.Socket[bytes]] = []
    with ExitStack() as stack:
        for number in range(descriptors.LEAST):
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            stack.callback(context.destroy, linger=0)
            sock = context.socket(zmq.DEALER)
            sock.connect(f"ipc://{node.where.runs}")
            hello = messages.RunHello(
                protocol=messages.PROTOCOL,
                run=f"run{number:05}",
                name="many",
                epoch=1,
                nonce=str(number),
                pid=os.getpid(),
                started=0,
            )
            sock.send(codec.encode(hello))
            if not sock.poll(3000 if not refused else 100):
                break
            answer = codec.to_run([sock.recv()])
            if isinstance(answer, messages.Error):
                assert answer.code == "descriptors"
                refused.append(answer.text)
            else:
                welcome.append(sock)
        assert refused, "a reason, before the sockets are shut"
        assert str(descriptors.LEAST) in refused[0]
        until(lambda: not node.where.runs.exists(), what="shut sockets")
        assert viewer.state().pid == pid
        recorded = [node.where.recording(f"run{number:05}") for number in range(len(welcome))]
        until(lambda: all(path.exists() for path in recorded), what="a recording of each run")
        assert viewer.state().history == "", "connections took no descriptor of a recording"
        for sock in welcome:
            sock.send(codec.encode(messages.Bye(reason="finished")))
        until(lambda: all(run.exited_wall for run in viewer.state().runs), what="the end of the runs")
    until(lambda: node.where.runs.exists(), what="open sockets, now that the others have left")
    assert not over(pid)
    assert processes.lock_holder(node.where) == pid
    until(lambda: _welcomed(node), what="a viewer that is welcome")


def _welcomed(node: TestNode) -> bool:
    viewer = RawViewer.__new__(RawViewer)
    viewer.context = zmq.Context()
    viewer.heard = []
    viewer.socket = viewer.context.socket(zmq.DEALER)
    viewer.socket.connect(f"ipc://{node.where.viewers}")
    try:
        viewer.send(messages.ViewerHello(protocol=messages.PROTOCOL, viewer="late", client="late"))
        return isinstance(viewer.receive(), messages.ViewerWelcome)
    finally:
        viewer.close()


def test_none_is_free_where_even_listing_them_fails() -> None:
    """The daemon ended, with a traceback in its log."""
    code = """if True:
        import resource
        from hoptui.daemon import descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True:
                held.append(open("/dev/null"))
        except OSError:
            print(descriptors.free())
    """
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True
    )
    assert ended.stdout == "0\n"


def test_without_a_limit_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda which: infinite)
    assert descriptors.free() >= descriptors.REFUSE
    assert descriptors.raise_limit() == resource.RLIM_INFINITY
