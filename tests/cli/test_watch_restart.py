"""`hoptui watch` while the daemon is killed and another one begins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.conftest import SCRIPT, TestNode, until


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def test_watch_goes_on_after_a_restart_of_the_daemon(node: TestNode) -> None:
    node.start(SCRIPT)
    viewer = node.viewer()
    until(lambda: viewer.run("toy"), what="the run")
    command = [sys.executable, "-u", "-m", "hoptui", "watch", "toy", "--every", "0"]
    watch = node.spawn(command)
    assert "loss" in _line(watch)
    daemon = node.daemon_pid()
    os.kill(daemon, signal.SIGKILL)
    until(lambda: not node.daemon_pid(), what="its end")
    node.daemon()
    until(lambda: node.daemon_pid() != daemon, what="another daemon")
    again = node.viewer("another")

    def iteration() -> int:
        return max((vital.step for vital in again.fetch().vitals.values()), default=0)

    at = until(iteration, what="the run again")
    until(lambda: _iteration(_line(watch)) > at, what="rows of the new daemon")
    assert watch.poll() is None


def _iteration(line: str) -> int:
    found = line.partition("iteration ")[2].partition("  ")[0]
    return int("".join(filter(str.isdigit, found)) or 0)
