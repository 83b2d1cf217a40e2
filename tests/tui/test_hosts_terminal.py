"""A dashboard on another host, on a pseudo-terminal: however it ends, its ssh ends with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import until
from tests.tui.test_terminal import Screen

# An ssh that never gets anywhere, in the place of the real one; with a child of its own, as a jump host has.
SSH = "#!/bin/sh\nsleep 600 & echo no route yet >&2\ncat > /dev/null\n"
APP = """
import sys
from hoptui.cli.main import main
sys.exit(main(["attach", "ssh://gpu07", "ssh://gpu08/ppo"]))
"""


@pytest.fixture
def screen(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Screen]:
    directory = tmp_path_factory.mktemp("tui") / "d"
    directory.mkdir(mode=0o700)
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    shown = Screen(directory, script=APP)
    try:
        yield shown
    finally:
        shown.close()


def over(process: psutil.Process) -> bool:
    """Gone, or waiting for whoever adopted it to notice."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ssh_of(screen: Screen) -> list[psutil.Process]:
    """Its ssh processes, without what these have started."""
    return [p for p in psutil.Process(screen.pid).children() if "ssh" in " ".join(p.cmdline())]


@pytest.mark.parametrize("number", [0, signal.SIGHUP, signal.SIGTERM])
def test_no_ssh_outlives_it(screen: Screen, number: int) -> None:
    screen.until(rb"connecting to gpu08")
    family = [p for ours in ssh_of(screen) for p in (ours, *ours.children())]
    assert len(family) >= 4
    if number:
        os.kill(screen.pid, number)
    else:
        os.write(screen.master, b"q")
    assert screen.ended() == (128 + number if number else 0)
    assert all(over(process) for process in family)


def test_not_even_if_it_is_killed(screen: Screen) -> None:
    screen.until(rb"connecting to gpu08")
    family = ssh_of(screen)
    assert len(family) == 2
    os.kill(screen.pid, signal.SIGKILL)
    assert screen.ended() == -signal.SIGKILL
    until(
        lambda: all(over(process) for process in family), what="the end of ssh, told by the end of its input"
    )
