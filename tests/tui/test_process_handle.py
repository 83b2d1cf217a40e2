"""Only the very process that was shown is ever signalled, and only one's own on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from hoptui.domain.devices import GpuProcess
from hoptui.protocol.messages import NodeState
from hoptui.tui import process_handle as module
from hoptui.tui.process_handle import NotYoursError, ProcessHandle
from tests.conftest import until

ME = psutil.Process()


@pytest.fixture(autouse=True)
def counted_by_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run in a container, where nothing is ended."""
    monkeypatch.setattr(module, "whose_pids", lambda: "machine")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as started:
        until(psutil.Process(started.pid).cmdline, what="its command line, a moment after it has begun")
        yield started
        started.kill()


def node(**fields: Any) -> NodeState:
    """This machine's, as if this process were its daemon."""
    here = {"host": os.uname().nodename, "pid": ME.pid, "started_wall": ME.create_time()}
    return NodeState(**{**here, "version": "0", "wall_offset_ns": 0, **fields})


def shown(pid: int, **fields: Any) -> GpuProcess:
    """As the sampler would tell of it."""
    told = psutil.Process(pid)
    command = " ".join(told.cmdline())[:200]
    return GpuProcess(**{"gpu": "GPU-0", "pid": pid, "user": told.username(), "command": command, **fields})


def test_the_process_itself_gets_the_signal(child: subprocess.Popen[bytes]) -> None:
    with ProcessHandle(shown(child.pid), node()) as held:
        assert held.lives()
        assert (held.pid, held.user) == (child.pid, ME.username())
        assert "time.sleep(600)" in held.command
        held.end()
        assert child.wait(20) == -signal.SIGTERM
        assert not held.lives()
        with pytest.raises(NotYoursError, match="has ended meanwhile: nothing was sent"):
            held.end(signal.SIGKILL)


def test_one_that_ended_while_the_question_stood_is_not_said_to_have_got_a_signal(
    child: subprocess.Popen[bytes],
) -> None:
    with ProcessHandle(shown(child.pid), node()) as held:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has taken notice
        with pytest.raises(NotYoursError, match="has ended meanwhile: nothing was sent"):
            held.end()


def test_a_pid_that_is_another_processs_by_now_is_left_alone(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProcessHandle(shown(child.pid), node()) as held:
        held.started -= 10.0
        with pytest.raises(NotYoursError, match="has ended meanwhile"):
            held.end()
    with pytest.raises(NotYoursError, match="is another one by now"):
        ProcessHandle(shown(child.pid, command="python train.py"), node())
    assert child.poll() is None


def test_handles_do_not_pile_up(child: subprocess.Popen[bytes]) -> None:
    before = ME.num_fds()
    for _ in range(3):
        ProcessHandle(shown(child.pid), node()).close()
        with pytest.raises(NotYoursError):
            ProcessHandle(shown(child.pid, command="other"), node())
    assert ME.num_fds() == before


@pytest.mark.parametrize(
    ("told", "fields", "sentence"),
    [
        ({"command": ""}, {}, "is unknown here: it belongs to another container or user"),
        ({"user": ""}, {}, "is unknown here"),
        ({}, {"host": "elsewhere"}, "the processes are on elsewhere, not on this machine"),
        ({}, {"started_wall": 1.0}, "may be another one here"),
        ({}, {"pid": 1 << 22}, "may be another one here"),
    ],
)
def test_what_may_not_be_ended_says_why(
    child: subprocess.Popen[bytes], told: dict[str, Any], fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(NotYoursError, match=sentence):
        ProcessHandle(shown(child.pid, **told), node(**fields))
    assert child.poll() is None


def test_in_a_container_the_drivers_pids_are_not_ours(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "whose_pids", lambda: "container")
    with pytest.raises(NotYoursError, match="the driver reports the machine's"):
        ProcessHandle(shown(child.pid), node())


def test_one_that_is_gone_or_is_somebody_elses_or_this_dashboard(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = shown(child.pid)
    with pytest.raises(NotYoursError, match="is this dashboard"):
        ProcessHandle(shown(ME.pid), node())
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(NotYoursError, match="only your own can be ended from here"):
        ProcessHandle(one, node())
    monkeypatch.undo()
    monkeypatch.setattr(module, "whose_pids", lambda: "machine")
    child.kill()
    child.wait(20)
    with pytest.raises(NotYoursError, match="there is no process"):
        ProcessHandle(one, node())
