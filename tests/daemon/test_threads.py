"""A thread that ends by an error is reported by `hoptui doctor`, `hoptui ls` and the dashboard.

That holds for each thread that the daemon or a run starts.
"""

from __future__ import annotations

import ast
import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hoptui.daemon.metrics_server import MOST_CONNECTIONS, MetricsServer
from tests.conftest import TestNode, until
from tests.tui.test_terminal import Screen

ROOT = Path(__file__).parents[2]
PACKAGES = ("daemon", "sdk")
STARTERS = {"Thread", "Timer", "ThreadPoolExecutor", "ThreadingMixIn", "start_new_thread", "run_in_executor"}

DAEMON = """
import sys
def broken(*_, **__):
    raise RuntimeError("planted")
{plant}
from hoptui.daemon.__main__ import main
sys.exit(main())
"""
RUN = """
import sys, tempfile, time
from pathlib import Path
sys.path.insert(0, {root!r})
import hoptui
from hoptui.sdk import daemon_link, job_exchange, rank_schedule, stack_sampler
from tests.sdk.two_ranks import FolderStore
run = hoptui.connect("toy", ranks={ranks})
def broken(*_, **__):
    raise RuntimeError("planted")
for step in run.iterations():
    time.sleep(0.01)
    run.log(loss=1.0)
    if step == {at}:
        {broken} = broken
"""
ARCHIVE = "from hoptui.daemon.archive import Archive; Archive._drain = broken"
METRICS = "from hoptui.daemon.metrics_server import MetricsServer; MetricsServer.service_actions = broken"
ALERTS = "from hoptui.daemon.alert_worker import AlertWorker; AlertWorker._turn = broken"
KILLS: dict[str, tuple[str, str]] = {
    "hoptui/daemon/alert_worker.py Thread": (ALERTS, "alerts"),
    "hoptui/daemon/archive.py Thread": (ARCHIVE, "history"),
    "hoptui/daemon/metrics_server.py Thread": (METRICS, "metrics"),
    "hoptui/sdk/daemon_link.py Thread": ("", "runs"),
    "hoptui/sdk/job_exchange.py Thread": ("", "runs"),
    "hoptui/sdk/rank_schedule.py Thread": ("", "runs"),
    "hoptui/sdk/stack_sampler.py Thread": ("", "runs"),
}
"""What plants an error into a thread of the daemon, and the check of `hoptui doctor` that reports it."""
ALONE = ("daemon_link.DaemonLink._send_due", "None")
BROKEN = {
    "hoptui/sdk/job_exchange.py Thread": (
        "job_exchange.JobExchange._turn",
        "FolderStore(Path(tempfile.mkdtemp()), 0)",
    ),
    "hoptui/sdk/rank_schedule.py Thread": (
        "rank_schedule.RankSchedule._note_pace",
        "FolderStore(Path(tempfile.mkdtemp()), 0)",
    ),
    "hoptui/sdk/stack_sampler.py Thread": ("stack_sampler.StackSampler.sample", "None"),
}
"""Where the error of a run's thread is planted, and its ranks."""
OF_ONE_REQUEST = {
    "hoptui/daemon/metrics_server.py ThreadingMixIn",
    "hoptui/daemon/metrics_server.py Timer",
    "hoptui/daemon/output_files.py Thread",
    "hoptui/sdk/installed_packages.py Thread",
}
"""Threads that end by themselves, or begin again with the next request for output."""

DASHBOARD = """
import sys
from hoptui.__main__ import main
sys.argv = ["hoptui", "attach", "toy"]
sys.exit(main())
"""


def starts() -> Iterator[str]:
    """Where threads are started, and by what."""
    for package in PACKAGES:
        for path in sorted((ROOT / "hoptui" / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                used = (
                    node.func if isinstance(node, ast.Call) else node if isinstance(node, ast.Name) else None
                )
                name = getattr(used, "attr", getattr(used, "id", ""))
                if name in STARTERS:
                    yield f"{path.relative_to(ROOT)} {name}"


def test_each_start_of_a_thread_is_tried() -> None:
    assert set(starts()) == KILLS.keys() | OF_ONE_REQUEST


@pytest.mark.guarantee("thread-ends")
@pytest.mark.parametrize("thread", KILLS)
def test_a_thread_that_ends_is_reported_everywhere(node: TestNode, thread: str) -> None:
    plant, check = KILLS[thread]
    node.environment["HOPTUI_METRICS"] = "127.0.0.1:0"
    node.spawn([sys.executable, "-c", DAEMON.format(plant=plant)])
    until(node.daemon_pid, what="the daemon")
    broken, ranks = BROKEN.get(thread, ALONE)
    at = -1 if plant else 30
    training = node.start(RUN.format(at=at, broken=broken, ranks=ranks, root=str(ROOT)))
    viewer = node.viewer()
    run = viewer.run()

    def failed() -> str:
        listed = node.hoptui("ls")
        assert listed.returncode == 0
        return listed.stderr if "planted" in listed.stderr else ""

    assert until(failed, what="the reason in hoptui ls").count("\n") == 1
    checks = [line for line in node.hoptui("doctor").stdout.splitlines() if "planted" in line]
    assert [line.split()[1] for line in checks] == [check]
    screen = Screen(node.where.directory, script=DASHBOARD)
    try:
        screen.until(b"planted")
    finally:
        screen.close()
    assert training.poll() is None
    if plant:
        later = node.viewer("later")  # the first may have been silent for so long that the daemon dropped it
        before = later.vital(run.run).step
        until(lambda: later.vital(run.run).step > before, what="progress")


@pytest.mark.guarantee("thread-ends")
@pytest.mark.parametrize("starter", ["Thread", "Timer"])
def test_a_request_for_metrics_that_gets_no_thread_holds_no_slot(
    starter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[object] = []

    def app(_: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        served.append(start_response("200 OK", []))
        return []

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    server = MetricsServer("127.0.0.1", 0, app)
    with contextlib.ExitStack() as stack:
        stack.callback(server.close, 1.0)
        with monkeypatch.context() as patch:
            patch.setattr(getattr(threading, starter), "start", refused)
            for _ in range(2 * MOST_CONNECTIONS):
                assert ask(server) == b""
        assert b"200 OK" in ask(server)
    assert len(served) == 1
    assert server.problem == ""


def ask(server: MetricsServer) -> bytes:
    """The answer to a request, empty if the connection is closed without one."""
    place = ("127.0.0.1", server.server_port)
    with socket.create_connection(place, 5) as connection, contextlib.suppress(OSError):
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return connection.recv(4096)
    return b""
