"""Whose processes are on a GPU, and what is not ours to see."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoptui.telemetry.gpu import LONGEST_COMMAND, ProcessOwners


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", "x" * 300], stdin=subprocess.PIPE
    ) as process:
        yield process


def namespace(proc: Path, inode: int) -> Path:
    """A /proc whose pid namespace is the one of this inode."""
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to(f"pid:[{inode}]")
    return proc


def test_a_process_has_a_user_and_a_command(child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    user, command = ProcessOwners(namespace(tmp_path, 4026531836)).of(child.pid)
    assert user in (getpass.getuser(), str(os.getuid()))
    assert command.startswith(f"{sys.executable} -c")
    assert len(command) == LONGEST_COMMAND


def test_in_a_container_only_a_process_with_an_nvidia_device_open_is_named(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    people = ProcessOwners(namespace(tmp_path, 4026532999))
    descriptors = tmp_path / str(child.pid) / "fd"
    descriptors.mkdir(parents=True)
    (descriptors / "0").symlink_to("/dev/null")
    assert people.of(child.pid) == ("", "")  # the driver means another process of this number
    (descriptors / "7").symlink_to("/dev/nvidia0")
    people.keep(set())
    assert people.of(child.pid)[1].startswith(sys.executable)


@pytest.mark.parametrize("pid", [-1, 0, 2**31 - 1, 2**32 - 1])
def test_a_pid_that_is_none_of_ours_has_neither(pid: int) -> None:
    assert ProcessOwners().of(pid) == ("", "")


def test_a_process_that_ended_is_forgotten(child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    people = ProcessOwners(namespace(tmp_path, 4026531836))
    assert people.of(child.pid) != ("", "")
    child.communicate()
    assert people.of(child.pid) == ("", "")
