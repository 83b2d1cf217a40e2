"""How a run ended: its exit code or its signal, as the kernel says, and never a guess."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hoptui.daemon import process_endings
from hoptui.daemon.process_endings import UNKNOWN, ending_of
from tests.conftest import RawViewer, TestNode, until

ROOT = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}

KERNEL = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in platform.release().split(".")[:2])
NEEDS_LINUX_6_15 = pytest.mark.skipif(KERNEL < (6, 15), reason="the kernel does not keep exit codes")

ENDINGS = [
    pytest.param("pass", ("exited", "exit code 0, without a report"), id="exit 0"),
    pytest.param("import sys; sys.exit(3)", ("failed", "exit code 3"), id="exit 3"),
    pytest.param("import os; os._exit(255)", ("failed", "exit code 255"), id="exit 255"),
    pytest.param("import os; os.kill(os.getpid(), 9)", ("killed", "by SIGKILL"), id="kill"),
    pytest.param("import os; os.kill(os.getpid(), 15)", ("killed", "by SIGTERM"), id="term"),
    pytest.param("import os; os.kill(os.getpid(), 40)", ("killed", "by signal 40"), id="real time"),
]


@pytest.fixture
def dead() -> Iterator[Callable[[str], tuple[int, subprocess.Popen[bytes]]]]:
    """A process that has ended and that nobody has reaped, and its pidfd."""
    opened: list[int] = []

    def end(script: str) -> tuple[int, subprocess.Popen[bytes]]:
        child = subprocess.Popen([sys.executable, "-c", script])
        opened.append(os.pidfd_open(child.pid))
        os.waitid(os.P_PIDFD, opened[-1], os.WEXITED | os.WNOWAIT)
        return opened[-1], child

    yield end
    for number in opened:
        os.close(number)


Dead = Callable[[str], tuple[int, "subprocess.Popen[bytes]"]]


@pytest.mark.parametrize(("script", "expected"), ENDINGS)
def test_a_process_that_nobody_has_reaped(dead: Dead, script: str, expected: tuple[str, str]) -> None:
    pidfd, child = dead(script)
    assert ending_of(pidfd, child.pid)[:2] == expected
    child.wait(10)


@NEEDS_LINUX_6_15
@pytest.mark.parametrize(("script", "expected"), ENDINGS)
def test_a_process_that_its_parent_has_reaped(dead: Dead, script: str, expected: tuple[str, str]) -> None:
    pidfd, child = dead(script)
    child.wait(10)
    assert ending_of(pidfd, child.pid)[:2] == expected


def test_what_the_kernel_does_not_say_is_unknown(dead: Dead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_endings, "_by_pidfd", lambda pidfd: None)
    pidfd, child = dead("import sys; sys.exit(3)")
    child.wait(10)
    assert ending_of(pidfd, child.pid) == UNKNOWN
    assert (UNKNOWN.reason, UNKNOWN.known) == ("exited", False)


LOOP = """
import os, signal, sys, time, hoptui
run = hoptui.connect("toy")
for i in run.iterations():
    time.sleep(0.01)
    if os.path.exists(sys.argv[1]):
        break
{end}
"""
RUNS = [
    pytest.param("", ("finished", ""), 0, id="end of the script"),
    pytest.param("sys.exit(0)", ("finished", ""), 0, id="exit 0"),
    pytest.param("sys.exit(3)", ("failed", "exit code 3"), 3, id="exit 3"),
    pytest.param("sys.exit('bad config')", ("failed", "exit code 1"), 1, id="exit with a text"),
    pytest.param("raise ValueError('no')", ("exception", "ValueError: no"), 1, id="exception"),
    pytest.param("os._exit(0)", ("exited", "exit code 0, without a report"), 0, id="_exit 0"),
    pytest.param("os._exit(5)", ("failed", "exit code 5"), 5, id="_exit 5"),
    pytest.param("os.kill(os.getpid(), 15)", ("killed", "by SIGTERM"), -15, id="SIGTERM"),
    pytest.param("os.kill(os.getpid(), 11)", ("killed", "by SIGSEGV"), -11, id="SIGSEGV"),
    pytest.param("os.abort()", ("killed", "by SIGABRT"), -6, id="abort"),
    pytest.param("os.kill(os.getpid(), 9)", ("killed", "by SIGKILL"), -9, id="SIGKILL"),
    pytest.param("run.close(); sys.exit(3)", ("finished", ""), 3, id="closed before"),
    pytest.param(
        "run._core.state.switch_off('a fault')", ("exited", "exit code 0, without a report"), 0, id="off"
    ),
    pytest.param("run.stop('me'); run.boundary()", ("stopped", "by me"), 0, id="stopped"),
]


def exit_of(viewer: RawViewer, name: str = "toy") -> tuple[str, str] | None:
    run = viewer.run(name)
    return (run.exit_reason, run.exit_detail) if run.exit_reason else None


@NEEDS_LINUX_6_15
@pytest.mark.parametrize(("end", "expected", "code"), RUNS)
def test_a_run_ended_as_its_process_did(
    node: TestNode, end: str, expected: tuple[str, str], code: int, tmp_path: Path
) -> None:
    viewer = node.viewer()
    child = node.start(LOOP.format(end=end), str(tmp_path / "go"))
    viewer.run("toy")
    (tmp_path / "go").touch()
    assert child.wait(20) == code
    assert until(lambda: exit_of(viewer)) == expected


RANK = """
import os, sys, time
from pathlib import Path
import hoptui
from tests.sdk.two_ranks import FolderStore
rank = int(sys.argv[1])
run = hoptui.connect("two", ranks=FolderStore(Path(sys.argv[2]), rank))
for i in run.iterations():
    time.sleep(0.01)
    if rank == 0 and (Path(sys.argv[2]) / "fail").exists():
        raise RuntimeError("connection closed by peer")
"""


@NEEDS_LINUX_6_15
def test_the_rank_that_died_is_named(node: TestNode, tmp_path: Path) -> None:
    viewer = node.viewer()
    first, second = (node.start(RANK, str(rank), str(tmp_path), **ROOT) for rank in range(2))
    until(lambda: len(viewer.run("two").ranks) == 1, what="rank 1")
    second.send_signal(signal.SIGKILL)
    second.wait(10)
    (tmp_path / "fail").touch()
    assert first.wait(20) == 1
    reason, detail = until(lambda: exit_of(viewer, "two"))
    assert reason == "exception"
    assert detail == "RuntimeError: connection closed by peer; rank 1 killed by SIGKILL"


@NEEDS_LINUX_6_15
def test_a_rank_that_dies_while_the_run_goes_on_is_an_event(node: TestNode, tmp_path: Path) -> None:
    viewer = node.viewer()
    _, second = (node.start(RANK, str(rank), str(tmp_path), **ROOT) for rank in range(2))
    until(lambda: len(viewer.run("two").ranks) == 1, what="rank 1")
    second.send_signal(signal.SIGKILL)
    second.wait(10)
    found = until(lambda: [event for event in viewer.fetch().events if event.code == "rank.ended"])
    assert {name: found[0].fields[name] for name in ("rank", "reason", "detail")} == {
        "rank": 1,
        "reason": "killed",
        "detail": "by SIGKILL",
    }
